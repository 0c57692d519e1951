"""What a check looks at: nothing that was written after it was proven is ever left out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millrace.domain.quality.ranges import Mark, Work, bounded, gained, proven, reached
from millrace.domain.topics.offsets import OffsetRange, TopicPartition

PARTITIONS = [TopicPartition("t", "id", number) for number in range(3)]


@given(st.lists(st.integers(0, 10**6), max_size=6), st.integers(1, 10**5))
def test_what_is_too_much_is_cut_and_what_is_small_is_whole(sizes: list[int], most: int) -> None:
    ranges = [OffsetRange(TopicPartition("t", "id", n), 7, 7 + size) for n, size in enumerate(sizes) if size]
    found = bounded(ranges, most)
    assert sum(map(len, found)) == min(sum(map(len, ranges)), most)
    cut = {one.partition: len(one) for one in found}
    largest = max(cut.values(), default=0)
    for one in ranges:
        assert cut.get(one.partition, 0) in (len(one), largest, largest - 1)


@given(st.data())
def test_what_was_written_after_it_was_proven_is_looked_at_again(data: st.DataObject) -> None:
    """Lives of a stream: batches, rewinds, partitions that come late, and checks in between, some of a part alone.

    `written` has for each offset below the record of work whether it was written since a check saw it.
    """
    work: dict[tuple[int, TopicPartition], Work] = {}
    written: dict[tuple[TopicPartition, int], bool] = {}
    mark, timeline = Mark(), 1
    for _ in range(data.draw(st.integers(1, 12))):
        step = data.draw(st.sampled_from(("batch", "batch", "rewind", "check", "check")))
        if step == "rewind" and work:
            timeline += 1
            for partition in data.draw(st.sets(st.sampled_from(PARTITIONS))):
                end = reached(work.values()).offsets.get(partition, 0)
                first = data.draw(st.integers(0, end))
                work[timeline, partition] = Work(timeline, partition, first, first)
        elif step == "batch":
            partition = data.draw(st.sampled_from(PARTITIONS))
            known = work.get((timeline, partition))
            first = known.first if known else 0
            at = known.next if known else first
            end = at + data.draw(st.integers(0, 5))
            work[timeline, partition] = Work(timeline, partition, first, end)
            written |= {(partition, offset): True for offset in range(at, end)}
        elif step == "check":
            ends = reached(work.values()).offsets
            whole = gained(mark, work.values())
            looked = bounded(whole, data.draw(st.sampled_from((3, 10**6))))
            covered = {(one.partition, offset) for one in whole for offset in range(one.first, one.next)}
            open_ = {where for where, fresh in written.items() if fresh and where[1] < ends[where[0]]}
            assert open_ <= covered, (mark, work)
            mark = proven(reached(work.values()), whole, looked)
            for one in looked:
                written |= {(one.partition, offset): False for offset in range(one.first, one.next)}
