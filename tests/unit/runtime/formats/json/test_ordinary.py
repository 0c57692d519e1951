"""Blocks of ordinary records: each record becomes what it becomes alone, whatever stands beside it."""

from __future__ import annotations

import functools
import json
import random
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import pytest

from millrace.domain.declaration.pipeline import Column, ColumnType, Key, ValueFormat, ValueSchema
from millrace.domain.formats.undeclared import MOST_KEPT, Undeclared
from millrace.domain.quarantine.rules import Rule
from millrace.runtime.formats.decoded import Decoded
from millrace.runtime.formats.json.decoder import Decoder
from millrace.runtime.formats.json.document import DocumentCheck
from millrace.runtime.formats.plain_decoder import plain_decoder_of
from support.checks.tiers import examples
from support.formats.bad_values import BAD, NOTED_PURCHASE, changed
from support.formats.record_kinds import DECLARED, DOCUMENTS, MORE_TWICE, NO_BLANKS, SCHEMA, VALUES, anything, compact
from support.formats.record_kinds import declared as ordinary

Row = tuple[object, ...]
DIFFERENT = examples(180)  # values of a kind; a block holds each of them several times
LARGE = 1_500


def decode(decoder: Decoder, values: Sequence[bytes | None]) -> Decoded:
    return decoder.decode(values, [b"7"] * len(values), [0] * len(values))


def new_decoder(schema: ValueSchema = SCHEMA) -> Decoder:
    return Decoder(schema, key_required=False)


def rows(found: Decoded) -> list[Row]:
    """Values with the bits of floats: 0 and -0 differ."""
    return [
        tuple(struct.pack("<d", value) if isinstance(value, float) else value for value in row)
        for row in zip(*(column.to_pylist() for column in found.columns), strict=True)
    ]


class Alone(NamedTuple):
    """A record as a decoder without any knowledge decodes it."""

    row: Row
    rule: Rule | None
    error: str | None
    truncated: bool
    undeclared: Undeclared


@functools.cache
def reader_of(schema: ValueSchema) -> Callable[[bytes | None], Alone]:
    """Return a function that reads one record by a decoder of its own, once; the plain decoder agrees."""
    plain_decoder = plain_decoder_of(schema, None)

    @functools.cache
    def alone(value: bytes | None) -> Alone:
        found = decode(new_decoder(schema), [value])
        plain = plain_decoder.decode([value], [b"7"], [0])
        assert (rows(found), found.rules, found.truncated) == (rows(plain), plain.rules, plain.truncated), value
        return Alone(rows(found)[0], found.rules[0], found.errors[0], found.truncated[0], found.undeclared)

    return alone


alone = reader_of(SCHEMA)


def check(decoder: Decoder, values: Sequence[bytes | None], schema: ValueSchema = SCHEMA) -> Decoded:
    """Decode a block; each record in it is what it is alone, and counts of undeclared fields add up."""
    found = decode(decoder, values)
    each = list(map(reader_of(schema), values))
    together = zip(rows(found), found.rules, found.errors, found.truncated, strict=True)
    for value, shown, expected in zip(values, together, each, strict=True):
        assert shown == expected[:4], value
    counts, similar = Counter[str](), dict[str, str]()
    for value, times in Counter(values).items():
        undeclared = reader_of(schema)(value).undeclared
        counts.update({name: number * times for name, number in undeclared.names.items()})
        similar |= undeclared.similar
    assert found.undeclared.records == sum(single.undeclared.records for single in each)
    if len(counts) <= MOST_KEPT:
        assert (found.undeclared.names, found.undeclared.similar) == (counts, similar)
    return found


def some(kind: str, seed: int = 7) -> tuple[list[bytes], Iterator[bytes]]:
    """Different values of a kind, and these in any order without an end."""
    draw = random.Random(f"{kind} {seed}")
    pool = [VALUES[kind](draw) for _ in range(DIFFERENT)]
    return pool, iter(functools.partial(draw.choice, pool), None)


@pytest.mark.parametrize("kind", VALUES)
def test_records_of_a_kind_are_in_a_block_what_they_are_alone(kind: str) -> None:
    pool, values = some(kind)
    taught, untaught = new_decoder(), new_decoder()
    for size in (LARGE, 1, 2, 7):
        check(taught, list(islice(values, size)))
    for size in (1, 2, 7, 150):
        check(untaught, list(islice(values, size)))
    check(taught, pool)


def test_records_of_all_kinds_in_any_order_are_what_they_are_alone() -> None:
    draw = random.Random(8)
    pool: list[bytes | None] = [*(anything(draw) for _ in range(examples(900))), None, b"", b"{}", b'{"a":1,"a":2}']
    decoder = new_decoder()
    for size in (1, 2, 7, LARGE):
        check(decoder, draw.choices(pool, k=size))
    found = check(decoder, draw.choices(pool, k=20_000))
    assert {None, Rule.NOT_JSON, Rule.DUPLICATE_FIELD, Rule.WRONG_TYPE, Rule.NULL_VALUE} <= set(found.rules)
    assert found.rules.count(None) > 10_000


def test_a_decoder_that_learned_one_kind_reads_every_other() -> None:
    for first, second in zip(VALUES, [*VALUES][5:] + [*VALUES][:5], strict=True):
        decoder = new_decoder()
        check(decoder, some(first)[0])
        check(decoder, some(second)[0])
        check(decoder, [value for pair in zip(some(first)[0], some(second)[0], strict=True) for value in pair])


@pytest.mark.parametrize("blank", NO_BLANKS, ids=ascii)
def test_a_blank_that_json_lacks_spoils_its_record_only(blank: bytes) -> None:
    value = compact(ordinary(random.Random(1)) | {"extra": {"x": 1}})
    spoiled = [
        *(blank + value, value + blank, value.replace(b",", blank + b","), value.replace(b":", b":" + blank)),
        *(value.replace(b'{"x"', b"{" + blank + b'"x"'), value.replace(b'"x":1', b'"x":1' + blank)),
    ]
    for other in spoiled:
        found = check(new_decoder(), [value] * 200 + [other] + [value] * 200)
        assert found.rules == [None] * 200 + [Rule.NOT_JSON] + [None] * 200


def purchases() -> Iterator[bytes]:
    """Good purchases: with the undeclared fields that bad ones have, and without."""
    return iter(
        functools.partial(
            random.Random(3).choice,
            [
                changed(),
                changed(note=None),
                changed(new=1),
                changed(new="a", id=1, x={"a": 1}),
                changed(x=[{"a": [{"b": 1}]}], customer_id='":'),
            ],
        ),
        None,
    )


@pytest.mark.parametrize("size", [1, 2, 7, LARGE])
@pytest.mark.parametrize("place", ["first", "last"])
def test_a_bad_record_at_an_end_of_a_block_is_named_and_its_neighbours_stay_good(size: int, place: str) -> None:
    good = purchases()
    decoder = Decoder(NOTED_PURCHASE, key_required=True)
    check(decoder, list(islice(good, LARGE)), NOTED_PURCHASE)
    for bad, rule in BAD:
        values: list[bytes | None] = [*islice(good, size - 1)]
        values.insert(0 if place == "first" else size - 1, bad)
        found = check(decoder, values, NOTED_PURCHASE)
        expected: list[Rule | None] = [None] * (size - 1)
        expected.insert(0 if place == "first" else size - 1, rule)
        assert found.rules == expected


def test_bad_records_among_good_ones_teach_nothing_wrong() -> None:
    good, draw = purchases(), random.Random(4)
    decoder = Decoder(NOTED_PURCHASE, key_required=True)
    short = [value for value, _ in BAD if value is None or len(value) < 1_000]
    for share in (0.02, 0.5, 0.9):
        values = [draw.choice(short) if draw.random() < share else next(good) for _ in range(LARGE)]
        check(decoder, values, NOTED_PURCHASE)
    found = check(decoder, short * 5, NOTED_PURCHASE)
    assert None not in found.rules


@pytest.mark.parametrize("size", [1, 2, 7, LARGE])
def test_a_block_of_empty_values_has_no_good_record(size: int) -> None:
    decoder = new_decoder()
    for value, rule in ((b"", Rule.EMPTY_VALUE), (None, Rule.NULL_VALUE), (b"{}", Rule.MISSING_FIELD)):
        found = check(decoder, [value] * size)
        assert found.rules == [rule] * size
        assert all(column.null_count == size for column in found.columns)
        assert found.undeclared == Undeclared()
    check(decoder, [compact(ordinary(random.Random(1)) | {"extra": 1})] * size)


@pytest.mark.parametrize("more", MORE_TWICE, ids=repr)
def test_a_doubled_undeclared_name_in_a_block_that_learned_its_fields_is_found(more: bytes) -> None:
    good = compact(
        ordinary(random.Random(1))
        | {"extra": 1, "place": {"x": 1, "of": {"x": 1}}, "lines": [{"x": 1, "y": 2}], "new": [[[{"new": {"a": 1}}]]]}
    )
    kept = good[: good.index(b',"extra"')]
    for middle in (kept + b"," + more + b"}", good[:-1] + b"," + more + b"}"):
        for value in (middle, middle.replace(b":", b" :"), middle.replace(b",", b",\n")):
            found = check(new_decoder(), [*[good] * 700, value, *[good] * 799])
            assert [row for row, rule in enumerate(found.rules) if rule] == [700]
            assert found.rules[700] is Rule.DUPLICATE_FIELD


def test_a_lacking_name_does_not_hide_a_doubled_one() -> None:
    """The names of both records together are as many as those of two ordinary ones."""
    good = compact(ordinary(random.Random(1)) | {"extra": 1, "other": 2})
    less = good.replace(b',"other":2', b"")
    twice = good.replace(b'"extra":1', b'"extra":1,"extra":1')
    found = check(new_decoder(), [*[good] * 500, less, twice, less, *[good] * 500])
    assert [row for row, rule in enumerate(found.rules) if rule] == [501]


def test_a_record_with_20_000_undeclared_fields_is_good() -> None:
    good = compact(ordinary(random.Random(1)) | {"extra": 1})
    many = compact(ordinary(random.Random(2)) | {"extra": 1} | {f"n{number}": number for number in range(19_999)})
    for values in ([many], [good] * 3 + [many] + [good] * 3, [many] * 3 + [good] * 60):
        found = decode(new_decoder(), values)
        assert found.rules == [None] * len(values)
        assert rows(found) == [alone(value).row for value in values]
        assert found.undeclared.records == len(values)
        assert found.undeclared.names["extra"] == len(values)
        assert len(found.undeclared.names) == MOST_KEPT
    twice = many[:-1] + b',"n19998":1}'
    assert decode(new_decoder(), [good] * 300 + [many, twice] + [good] * 3).rules.index(Rule.DUPLICATE_FIELD) == 301


@pytest.mark.parametrize("before", [b"[", b'{"a":', b'{"a":[', b'{"\\u0061" : [{"b":'], ids=repr)
@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "open"])
def test_a_value_that_is_nested_100_000_deep_is_bad_and_its_neighbours_are_good(before: bytes, is_closed: bool) -> None:
    good = compact(ordinary(random.Random(1)) | {"extra": {"a": [{"b": 1}]}})
    brackets = [bracket for bracket in reversed(before.decode()) if bracket in "[{"]
    after = "".join("]" if bracket == "[" else "}" for bracket in brackets).encode()
    depth = 100_000 // len(brackets)
    deep = good[:-1] + b',"deep":' + before * depth + b"1" + (after * depth + b"}" if is_closed else b"")
    for count in (3, 200):
        found = decode(new_decoder(), [good] * count + [deep] + [good] * count)
        assert found.rules == [None] * count + [Rule.NOT_JSON] + [None] * count
        assert rows(found)[0] == rows(found)[-1] == alone(good).row


@pytest.mark.parametrize("depth", [498, 499, 500])
def test_the_bound_of_depth_is_the_same_in_a_block_that_learned_its_fields(depth: int) -> None:
    good = compact(ordinary(random.Random(1)) | {"extra": [], "place": {"a": {"a": 1}}})
    deep = good.replace(b'"extra":[]', b'"extra":' + b"[" * depth + b"]" * depth)
    objects = good.replace(b'{"a":{"a":1}}', b'{"a":' * depth + b"1" + b"}" * depth)
    for value in (deep, objects):
        found = check(new_decoder(), [good] * 300 + [value] + [good] * 300)
        assert found.rules[300] is (None if depth < 500 else Rule.NOT_JSON)
        assert found.rules.count(None) >= 600


MEBIBYTES_16 = 16 * 1024 * 1024
LONG = {
    "a declared text": lambda: ordinary(random.Random(1)) | {"customer": "x" * MEBIBYTES_16},
    "an undeclared text": lambda: ordinary(random.Random(1)) | {"extra": ':"' * (MEBIBYTES_16 // 3)},
    "an array of numbers": lambda: ordinary(random.Random(1)) | {"extra": [1] * (MEBIBYTES_16 // 2)},
}


# Python's parser reads an undeclared array or a text with quotes alone: each takes seconds on a busy machine.
@pytest.mark.parametrize("kind", [*[*LONG][:1], *(pytest.param(kind, marks=pytest.mark.full) for kind in [*LONG][1:])])
def test_a_value_of_16_mebibytes_is_good_among_others(kind: str) -> None:
    good = compact(ordinary(random.Random(1)) | {"extra": 1})
    document = LONG[kind]()
    found = decode(new_decoder(), [good] * 120 + [compact(document)] + [good] * 3)
    assert found.rules == [None] * 124
    assert found.columns[1][120].as_py() == document["customer"]
    assert rows(found)[119] == rows(found)[121] == alone(good).row
    assert found.undeclared == Undeclared(123 + ("extra" in document), {"extra": 123 + ("extra" in document)})


def test_300_columns_of_nulls_are_null() -> None:
    types = [each for each in ColumnType if each is not ColumnType.BINARY]
    columns = []
    for index in range(300):
        kind = types[index % len(types)]
        places = (12, 2) if kind is ColumnType.DECIMAL else (None, None)
        columns.append(Column(f"c{index}", kind, False, *places))
    schema = ValueSchema(ValueFormat.JSON, tuple(columns))
    draw = random.Random(5)
    pool = [json.dumps({f"c{index}": None for index in range(300) if draw.random() < 0.5}).encode() for _ in range(20)]
    pool += [b"{}", json.dumps(dict.fromkeys((column.name for column in columns), None)).encode()]
    for size in (1, 2, 7, LARGE):
        found = check(new_decoder(schema), draw.choices(pool, k=size), schema)
        assert found.rules == [None] * size
        assert all(column.null_count == size for column in found.columns)


ORDINARY_KINDS = [kind for kind in DOCUMENTS if kind not in ("names", "wrong", "forms")]


@pytest.mark.parametrize("kind", ORDINARY_KINDS)
def test_undeclared_names_of_a_large_block_are_counted_as_python_counts_them(kind: str) -> None:
    draw = random.Random(6)
    documents = [DOCUMENTS[kind](draw) for _ in range(3_000)]
    found = decode(new_decoder(), list(map(compact, documents)))
    names = Counter(name for document in documents for name in document.keys() - DECLARED)
    assert found.rules == [None] * 3_000
    assert found.undeclared.names == names
    assert found.undeclared.records == sum(bool(document.keys() - DECLARED) for document in documents)


@pytest.mark.parametrize("row", [0, 99, 100, 1_700, 2_999])
@pytest.mark.parametrize(
    ("column", "name"), [("customer", "Customer"), ("amount", "AMOUNT"), ("at", "a_t"), ("id", "Id")]
)
def test_a_similar_name_is_found_where_one_record_of_many_lacks_the_column(row: int, column: str, name: str) -> None:
    both = ordinary(random.Random(1)) | {name: 1, "big": 1}
    values = [compact(both)] * 3_000
    assert decode(new_decoder(), values).undeclared == Undeclared(3_000, {name: 3_000, "big": 3_000})
    values[1_500] = compact(both | {column: None} if column != "id" else both)
    assert decode(new_decoder(), values).undeclared.similar == {}
    for big in (b"1", b"1e999", b"9" * 5_000):  # numbers that no parser makes
        values[row] = compact({field: value for field, value in both.items() if field != column}).replace(
            b'"big":1', b'"big":' + big
        )
        found = decode(new_decoder(), values)
        assert found.undeclared == Undeclared(3_000, {name: 3_000, "big": 3_000}, {name: column})
        assert found.rules[row] is (Rule.MISSING_FIELD if column == "id" else None)


@pytest.fixture
def read_alone(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The values whose documents are checked alone."""
    seen: list[bytes] = []
    names: Callable[[DocumentCheck, bytes], set[str]] = DocumentCheck.names

    def record(self: DocumentCheck, value: bytes) -> set[str]:
        seen.append(value)
        return names(self, value)

    monkeypatch.setattr(DocumentCheck, "names", record)
    return seen


FEW = 150  # records that may be read alone while the decoder learns
READ_FAST = ["declared", "nulls", "absent", "any_order", "flat", "nested", "arrays", "maps", "shapes", "similar"]


@pytest.mark.parametrize("kind", READ_FAST)
def test_a_block_of_ordinary_records_with_a_bad_one_is_read_together(kind: str, read_alone: list[bytes]) -> None:
    draw = random.Random(9)
    decoder = new_decoder()
    values = [compact(DOCUMENTS[kind](draw)) for _ in range(2_000)]
    bad = compact(ordinary(draw) | {"count": "1"})
    values[1_234] = bad
    assert decode(decoder, values).rules.count(Rule.WRONG_TYPE) == 1
    assert bad in read_alone
    assert len(read_alone) <= FEW
    read_alone.clear()
    assert decode(decoder, values).rules.count(None) == 1_999
    assert bad in read_alone
    assert len(read_alone) <= 20


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), (" , ", " : "), (",\n", "\t:\r\n")])
def test_blanks_of_json_make_no_record_suspicious(separators: tuple[str, str], read_alone: list[bytes]) -> None:
    draw = random.Random(10)
    documents = [DOCUMENTS["arrays"](draw) | {"place": {"x": {"y": 1}}} for _ in range(2_000)]
    decoder = new_decoder()
    values = [json.dumps(document, separators=separators).encode() for document in documents]
    assert decode(decoder, values).rules == [None] * 2_000
    assert len(read_alone) <= FEW
    read_alone.clear()
    decode(decoder, values)
    assert len(read_alone) <= 20


SUSPICIOUS = {
    "a text that begins with a colon": compact(ordinary(random.Random(1)) | {"extra": ":b"}),
    "two backslashes and a quote before a colon": compact(ordinary(random.Random(1)) | {"extra": '\\":'}),
    "U+0000 in an undeclared field": compact(ordinary(random.Random(1)) | {"extra": "\0"}),
    "a name that was never seen": compact(ordinary(random.Random(1)) | {"never": 1}),
    "a name that the parser cannot know": compact(ordinary(random.Random(1)) | {'a"': 1}),
    "another shape": compact(ordinary(random.Random(1)) | {"place": [1]}),
}


@pytest.mark.parametrize("kind", SUSPICIOUS)
def test_only_the_suspicious_record_is_read_alone(kind: str, read_alone: list[bytes]) -> None:
    draw, decoder = random.Random(11), new_decoder()
    values = [compact(ordinary(draw) | {"extra": "a", "place": {"x": 1}}) for _ in range(2_000)]
    decode(decoder, values)
    assert len(read_alone) <= FEW
    read_alone.clear()
    found = decode(decoder, [*values[:1_000], SUSPICIOUS[kind], *values[1_000:]])
    assert read_alone == [SUSPICIOUS[kind]]
    assert found.rules == [None] * 2_001


@pytest.mark.parametrize("text", ['{"a":1,"b":{"c":2}}', "x :y", 'say ":" and go', "C:\\dir\\", "a\nb"])
def test_such_texts_make_no_record_suspicious(text: str, read_alone: list[bytes]) -> None:
    decoder = new_decoder()
    values = [compact(ordinary(random.Random(1)) | {"customer": text, "extra": text})] * 2_000
    found = decode(decoder, values)
    assert found.columns[1].to_pylist() == [text] * 2_000
    assert len(read_alone) <= FEW
    read_alone.clear()
    decode(decoder, values)
    assert read_alone == []


def test_a_required_key_and_the_timestamp_are_asked_of_each_record_of_a_large_block() -> None:
    values = [compact(ordinary(random.Random(1)) | {"extra": 1})] * LARGE
    keys: list[bytes | None] = [b"7"] * LARGE
    times: list[int | None] = [0] * LARGE
    keys[3], times[700], times[701], times[1_499] = None, -1, None, 2**62
    decoder = Decoder(SCHEMA, key_required=True)
    for _ in range(2):
        found = decoder.decode(values, keys, times)
        named = {row: rule for row, rule in enumerate(found.rules) if rule}
        assert named == {3: Rule.NULL_KEY, 700: Rule.NO_TIMESTAMP, 701: Rule.NO_TIMESTAMP, 1_499: Rule.FAR_TIMESTAMP}
        assert found.undeclared == Undeclared(LARGE - 4, {"extra": LARGE - 4})
        assert found.columns[0].null_count == 4
    plain = plain_decoder_of(SCHEMA, Key("id")).decode(values, keys, times)
    assert (rows(found), found.rules) == (rows(plain), plain.rules)
