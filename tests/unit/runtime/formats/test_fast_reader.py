"""The fast reader learns fields and pauses in time; results do not depend on either (`decode/test_ordinary.py`)."""

from __future__ import annotations

import gc
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

from millrace.domain.declaration.pipeline import Column, ColumnType, ValueFormat, ValueSchema
from millrace.runtime.formats.decoded import BadRecordError
from millrace.runtime.formats.field_tally import FieldTally
from millrace.runtime.formats.json.counting_parser import CountingParser
from millrace.runtime.formats.json.decoder import Decoder
from millrace.runtime.formats.json.fast_reader import FastReader
from millrace.runtime.formats.registry import decoder_of
from millrace.runtime.stream import source

SCHEMA = ValueSchema(
    ValueFormat.JSON,
    (
        Column("id", ColumnType.INT, required=True),
        Column("note", ColumnType.STRING),
        Column("amount", ColumnType.DECIMAL, precision=5, scale=2),
    ),
)


def values_of(documents: Sequence[object]) -> list[bytes]:
    return [json.dumps(document).encode() for document in documents]


def odd_of(reader: FastReader, values: Sequence[bytes]) -> int:
    """Read values; return how many have to be checked alone."""
    records, odd = reader.read(values, FieldTally(["id", "note", "amount"]))
    assert [row for row, record in enumerate(records) if record is None] == odd
    return len(odd)


def test_fields_are_learned_although_every_hundredth_value_is_large() -> None:
    values = values_of([{"id": n, "more": "x" * 2_000_000 if n % 100 == 0 else "x"} for n in range(300)])
    reader = FastReader(SCHEMA)
    assert odd_of(reader, values) == 3
    assert odd_of(reader, values[1:100]) == 0


def test_a_large_value_hides_no_deep_one() -> None:
    deep = b'{"id":1,"more":' + b"[" * 600 + b"]" * 600 + b"}"
    good = values_of([{"id": 1, "more": "x"}] * 60)
    values = [*good, deep, b'{"id":1,"more":"%b"}' % (b"x" * 2_000_000), deep, *good]
    reader = FastReader(SCHEMA)
    assert [odd_of(reader, values) for _ in range(2)] == [3, 3]
    assert reader.read(values, FieldTally(["id"]))[1] == [60, 61, 62]


def test_a_doubled_name_shows_beside_a_record_with_as_many_names_more() -> None:
    full, doubled = b'{"id":1,"note":"a","amount":1,"extra":{"x":1}}', b'{"id":1,"note":"a","note":"b","amount":1}'
    reader = FastReader(SCHEMA)
    assert odd_of(reader, [full] * 60) == 0
    assert reader.read([full, doubled], FieldTally(["id", "note", "amount"]))[1] == [1]


def test_fields_are_learned_from_many_reads_of_one_value() -> None:
    reader = FastReader(SCHEMA)
    odd = [odd_of(reader, values_of([{"id": n, "more": n}])) for n in range(60)]
    assert 0 < sum(odd) < 40
    assert sum(odd[40:]) == 0


def test_names_that_change_are_learned_as_a_map_from_many_reads_of_one_value() -> None:
    reader = FastReader(SCHEMA)
    odd = [odd_of(reader, values_of([{"id": n, "map": {f"k{n}": n}}])) for n in range(200)]
    assert sum(odd[100:]) == 0


def test_few_records_of_other_kinds_do_not_burden_the_others() -> None:
    draw = random.Random(1)
    kinds = [{f"kind{kind}_{index}": 1 for index in range(100)} for kind in range(8)]
    values = values_of([{"id": n} | (draw.choice(kinds) if n % 20 == 0 else {}) for n in range(4_000)])
    reader = FastReader(SCHEMA)
    for first in range(0, 4_000, 500):
        assert odd_of(reader, values[first : first + 500]) == 25
    assert reader._known.number == 0


def test_a_kind_that_is_frequent_is_worth_its_fields() -> None:
    more = {f"more{index}": 1 for index in range(10)}
    values = values_of([{"id": n} | (more if n % 4 == 0 else {}) for n in range(1_000)])
    assert odd_of(FastReader(SCHEMA), values) == 0


def test_reading_pauses_where_it_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[int] = []
    parse: Callable[[CountingParser, Sequence[bytes]], Any] = CountingParser.parse
    monkeypatch.setattr(CountingParser, "parse", lambda self, each: (parsed.append(len(each)), parse(self, each))[1])
    reader, draw = FastReader(SCHEMA), random.Random(2)
    for _ in range(20):
        values = values_of([{"id": 1, f"k{draw.getrandbits(60)}": 1} for _ in range(500)])
        assert odd_of(reader, values) == 500
    assert parsed.count(500) == 4
    good = values_of([{"id": 1}] * 500)
    assert [odd_of(reader, good) for _ in range(5)][-1] == 0


def test_bad_records_keep_nothing_in_memory() -> None:
    """An error refers to the frames that it left, and so to what was parsed in them."""
    values = values_of([{"id": n, "more": 1} for n in range(300)])
    values[7], values[8], values[9] = b"nope", b'{"id":"x"}', b'{"id":1,"id":2}'
    values[200], values[201] = b'{"id":1,"amount":1.555,"more":1}', b'{"id":1,"amount":"1_0","more":1}'
    gc.collect()
    gc.disable()
    try:
        found = Decoder(SCHEMA, key_required=False).decode(values, [None] * 300, [0] * 300)
        kept = [each for each in gc.get_objects() if isinstance(each, BadRecordError)]
    finally:
        gc.enable()
    assert sum(rule is not None for rule in found.rules) == 5
    assert kept == []


def test_what_one_task_learned_serves_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark calls the function of a task again and again in the same worker process."""
    source._decoder_of_worker.cache_clear()
    odd: list[int] = []
    read: Callable[[FastReader, Sequence[bytes], FieldTally], Any] = FastReader.read

    def watched(self: FastReader, values: Sequence[bytes], tally: FieldTally) -> Any:
        found = read(self, values, tally)
        odd.append(len(found[1]))
        return found

    monkeypatch.setattr(FastReader, "read", watched)
    block = pa.RecordBatch.from_pydict(
        {
            "partition": pa.array([0] * 20, pa.int32()),
            "offset": pa.array(range(20), pa.int64()),
            "timestamp_ms": pa.array([0] * 20, pa.int64()),
            "value": pa.array(values_of([{"id": n, "more": n} for n in range(20)]), pa.binary()),
            "has_key": pa.array([True] * 20),
        }
    )
    for _ in range(4):
        for result in source._decode_blocks(SCHEMA, None, decoder_of)(iter([block])):
            assert result.column("id").to_pylist() == list(range(20))
            assert result.column("_undeclared")[0].as_py() == '[20, {"more": 20}, {}]'
    assert odd == [20, 0, 0, 0]
    source._decoder_of_worker.cache_clear()


@pytest.mark.parametrize("amount", [b"123.456", b'"1234.5"', b"1e9"])
def test_a_number_out_of_range_is_named_by_its_own_rule_unless_another_rule_is_broken(amount: bytes) -> None:
    good = [b'{"id":1,"amount":1.25}'] * 40
    found = Decoder(SCHEMA, key_required=False).decode(
        [*good, b'{"id":1,"amount":%b}' % amount, b'{"id":1.5,"amount":%b}' % amount, *good], [None] * 82, [0] * 82
    )
    assert [str(rule) for rule in found.rules if rule] == ["out_of_range", "wrong_type"]
    assert found.errors[40].startswith("the field `amount` does not fit DECIMAL(5,2) exactly: ")  # type: ignore[union-attr]
    assert found.columns[0].null_count == 2


def test_a_wrong_time_is_named_before_a_number_out_of_range_and_after_a_wrong_type() -> None:
    schema = ValueSchema(ValueFormat.JSON, (*SCHEMA.columns, *(Column(name, ColumnType.TIMESTAMP) for name in "ab")))
    good = b'{"id":1,"amount":1.25,"a":"2026-01-31T10:00:00Z","b":"2026-01-31T10:00:00Z"}'
    bad = [
        good.replace(b"1.25", b"1.255").replace(b'Z"}', b'X"}'),
        good.replace(b"-31", b"-32"),
        good.replace(b"-31", b"-32").replace(b'"id":1', b'"id":"1"'),
        good.replace(b"-31T", b"-32T", 1).replace(b"1.25", b'"1_0"'),
        good.replace(b"1.25", b"1.255").replace(b"2026-01-31T10:00:00Z", b"0001-01-01T00:00:00+14:00"),
    ]
    values = [*[good] * 40, *bad, *[good] * 40]
    found = Decoder(schema, key_required=False).decode(values, [None] * 85, [0] * 85)
    assert [str(rule) for rule in found.rules if rule] == [
        *("wrong_type", "out_of_range", "wrong_type", "wrong_type", "out_of_range"),
    ]
    named = [error.split("`")[1] for error in found.errors if error and "Expected" not in error]
    assert named == ["b", "a", "amount", "amount"]
    assert [column.null_count for column in found.columns] == [5, 85, 5, 5, 5]  # no record has a note
