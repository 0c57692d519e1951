"""A batch that the plain client reads: in parts that are small enough, and as many as it takes and no more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.domain.topics.offsets import OffsetRange, TopicPartition
from millrace.domain.topics.sources import TopicRecord
from millrace.runtime.stream import plain_read
from millrace.runtime.stream.plain_read import read_in_parts


class Reader:
    """Every third offset holds no record: a marker, or one that compaction removed."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def between(self, topic: str, partition: int, first: int, end: int) -> Iterator[TopicRecord]:
        self.asked.append(partition)
        for offset in range(first, end):
            if offset % 3:
                yield TopicRecord(partition=partition, offset=offset, timestamp_ms=0, key=None, value=b"x", headers=())


def ranges_of(*lengths: int, first: int = 4) -> list[OffsetRange]:
    return [OffsetRange(TopicPartition("t", "id", n), first, first + length) for n, length in enumerate(lengths)]


@given(lengths=st.lists(st.integers(0, 40), max_size=8), most=st.integers(1, 12))
def test_parts_cover_the_ranges_once_and_none_is_too_large(lengths: list[int], most: int) -> None:
    reader, ranges = Reader(), ranges_of(*lengths)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plain_read, "_PART_RECORDS", most)
        parts = list(read_in_parts(reader, ranges))  # type: ignore[arg-type]
    reached = {entry.partition: entry.first for entry in ranges}
    for part, table in parts:
        held = [(p, o) for p, o in zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True)]
        assert held == [(e.partition.partition, o) for e in part for o in range(e.first, e.next) if o % 3]
        assert part
        assert len(held) <= most
        for entry in part:
            assert entry.first == reached[entry.partition] < entry.next
            reached[entry.partition] = entry.next
    assert reached == {entry.partition: entry.next for entry in ranges}
    assert reader.asked == [number for number, length in enumerate(lengths) if length]


def test_ten_thousand_small_ranges_are_a_handful_of_batches() -> None:
    parts = list(read_in_parts(Reader(), ranges_of(*[3] * 10_000)))  # type: ignore[arg-type]
    assert len(parts) == 4
