"""Rows that name their topic: each goes to it in order, or its record is refused with the reason."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millrace.adapters.kafka_output import RowsProducer
from millrace.adapters.kafka_values import Target
from millrace.settings import KafkaSettings

DECLARED = ("a", "b", "\u00fc")
NOT_UTF8 = (b"\xff", b"a\xff", b"\xed\xa0\x80", b"\xc3")
NAMES = st.sampled_from([None, b"", b"c", b"A", b"a\0", *(name.encode() for name in DECLARED), *NOT_UTF8])


def sent(names: Sequence[bytes | None], type_: pa.DataType) -> tuple[dict[str, list[int]], dict[int, str]]:
    """Return the offsets of the rows that each topic gets, and the reason at each offset that is refused."""
    block = pa.RecordBatch.from_pydict(
        {
            "_topic_id": pa.array(["id"] * len(names)),
            "_partition": pa.array([0] * len(names), pa.int32()),
            "_offset": pa.array(range(len(names)), pa.int64()),
            "topic": pa.array(names, pa.large_binary()).cast(pa.large_string(), safe=False).cast(type_),
        }
    )
    targets = {name: Target(name, (), None, True, False, 1, 1_000, 1_000) for name in DECLARED}
    settings = KafkaSettings({"bootstrap.servers": "nowhere:9092"})
    refused: dict[tuple[str, int, int], str] = {}
    parts = RowsProducer(settings, "test", "s", 1, 1, (), targets, by_column=True)._by_target(block, refused)
    found = {target.name: part.column("_offset").to_pylist() for target, part in parts}
    return found, {offset: why for (_, _, offset), why in refused.items()}


@pytest.mark.parametrize("type_", [pa.string(), pa.large_string()], ids=str)
def test_a_topic_that_is_not_utf8_refuses_its_record_alone(type_: pa.DataType) -> None:
    found, refused = sent([b"a", b"\xff", b"c", None, b"a"], type_)
    assert found == {"a": [0, 4]}
    assert refused == {
        1: "the row names no topic: `topic` is not UTF-8",
        2: "the row names the topic c, which is not declared for it",
        3: "the row names no topic",
    }


@given(st.lists(NAMES, max_size=12))
@example([*NOT_UTF8, None, b"a"])
def test_each_row_goes_to_the_topic_that_it_names_or_is_refused(names: Sequence[bytes | None]) -> None:
    found, refused = sent(names, pa.string())
    for name in DECLARED:
        assert found.get(name, []) == [row for row, given in enumerate(names) if given == name.encode()]
    declared = [name.encode() for name in DECLARED]
    assert sorted(refused) == [row for row, given in enumerate(names) if given not in declared]
    for row, why in refused.items():
        assert ("is not UTF-8" in why) is (names[row] in NOT_UTF8)
