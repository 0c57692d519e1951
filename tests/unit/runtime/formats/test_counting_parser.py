"""The parser that counts names: equal to Python's own parser where it knows all names, and never higher."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.domain.declaration.pipeline import Column, ColumnType, ValueFormat, ValueSchema
from millrace.runtime.formats.json.counting_parser import CountingParser, NameCounter, Parsed
from millrace.runtime.formats.json.field_types import NULL
from millrace.runtime.formats.json.known_fields import Place
from support.formats.json_names import different_names_in, names_in

SCHEMA = ValueSchema(
    ValueFormat.JSON,
    (
        Column("id", ColumnType.INT, required=True),
        Column("note", ColumnType.STRING),
        Column("amount", ColumnType.DECIMAL, precision=5, scale=2),
    ),
)
SCALAR = Place(has_scalar=True)
POINT = Place(names={"x": SCALAR, "y": SCALAR})
KNOWN = {
    "extra": SCALAR,
    "place": Place(names={"city": SCALAR, "point": POINT}),
    "lines": Place(elements=POINT),
    "grid": Place(elements=Place(elements=POINT)),
    "mixed": Place(
        names={"a": SCALAR, "b": Place(names={"c": SCALAR}, has_scalar=True)}, elements=POINT, has_scalar=True
    ),
}
MAY_BE_ABSENT = ("note", "amount", *KNOWN)
PARSER, BY_VALUE = CountingParser(SCHEMA, KNOWN), NameCounter(SCHEMA, KNOWN)
FULL = (
    b'{"id":1,"note":"a","amount":1.5,"extra":null,"place":{"city":"Delft","point":{"x":1,"y":[2]}},'
    b'"lines":[{"x":1},{"y":2},{},{"x":1,"y":2}],"grid":[[{"x":1}],[],[{"y":1},{"x":null}]],"mixed":{"a":1,"b":{"c":2}}}'
)
GOOD = [
    FULL,
    b'{"id":1}',
    b'{"mixed":"text","id":2,"note":null,"amount":null}',
    b'{"id":3,"mixed":[{"x":1},{"x":2,"y":3}],"lines":[],"place":{}}',
    b'{"id":4,"mixed":null,"lines":null,"grid":null,"place":null}',
    b'{"id":5,"mixed":{"b":7},"place":{"point":{}}}',
    b'{"id":6,"mixed":2.5,"grid":[[]],"extra":{}}',
]


def expected(values: Sequence[bytes]) -> tuple[int, dict[str, int]]:
    documents = list(map(json.loads, values))
    absent = {name: sum(name not in document for document in documents) for name in MAY_BE_ABSENT}
    return sum(map(different_names_in, values)), absent


def counts(parsed: Parsed) -> tuple[int, dict[str, int]]:
    return parsed.names, dict(parsed.absent)


def test_names_and_absent_fields_are_what_pythons_own_parser_finds() -> None:
    for values in ([value] for value in GOOD):
        assert counts(PARSER.parse(values)) == expected(values)
    parsed = PARSER.parse(GOOD * 3)
    assert counts(parsed) == expected(GOOD * 3)
    assert (parsed.refused, len(parsed.records)) == ([], len(GOOD) * 3)


def test_fields_that_objects_lack_at_any_depth_count_as_absent() -> None:
    lacking = b'{"id":1,"note":"a","amount":1.5,"place":{"city":"Delft"},"lines":[{"x":1},{}],"mixed":null}'
    assert PARSER.parse([lacking]).fields_absent == 2 + 1 + 1 + 2  # of the record, of the place, of each line
    assert PARSER.parse([lacking, b"{", lacking]).fields_absent == 12


def test_names_by_value_add_up_to_the_names_of_all() -> None:
    found = BY_VALUE.names_by_value(GOOD)
    assert found == list(map(different_names_in, GOOD))
    assert sum(found) == PARSER.parse(GOOD).names
    assert BY_VALUE.names_by_value(GOOD[::-1]) == found[::-1]


def test_records_hold_the_declared_fields_and_mark_absent_ones() -> None:
    full, bare, nulls = PARSER.parse(GOOD[:3]).records
    assert (full.f0, full.f1, bytes(full.f2)) == (1, "a", b"1.5")
    assert (bare.f0, bare.f1, bare.f2, bare.u0, bare.u1) == (1, None, NULL, msgspec.UNSET, msgspec.UNSET)
    assert (nulls.f0, nulls.f1, bytes(nulls.f2), nulls.u4) == (2, None, b"null", "text")


def test_a_null_is_present() -> None:
    parsed = PARSER.parse([b'{"id":1,"note":null,"amount":null,"extra":null,"place":null}'] * 5)
    assert (parsed.names, parsed.absent["note"], parsed.absent["amount"], parsed.absent["extra"]) == (25, 0, 0, 0)
    assert parsed.absent["lines"] == 5


REFUSED = {
    "trailing text": FULL + b"x",
    "a second document": FULL + FULL,
    "trailing brace": FULL + b"}",
    "the last field is unknown": FULL[:-1] + b',"unknown":1}',
    "an unknown name inside": FULL.replace(b'"c":2', b'"c":2,"d":3'),
    "an unknown name in the last element": FULL.replace(b'{"x":1,"y":2}]', b'{"x":1,"y":2,"z":3}]'),
    "wrong type at the end": FULL[:-1] + b',"id":"x"}',
    "wrong type of a nested place at the end": FULL[:-1] + b',"place":7}',
    "no required field": FULL.replace(b'"id":1,', b""),
    "a comma at the end": FULL[:-1] + b",}",
    "only nested objects are whole": FULL[:-1] + b',"lines":[{"x":1},{"x":1},{"x":1},{',
    "half of a surrogate pair": FULL[:-1] + b',"note":"\\ud800"}',
    "too deep": FULL[:-1] + b',"extra":' + b"[" * 100_000,
    "deep objects": FULL[:-1] + b',"extra":' + b'{"a":' * 5_000,
    "nothing": b"",
    "an array": b"[" + FULL + b"]",
    "no JSON": b"nope",
}


@pytest.mark.parametrize("refused", REFUSED.values(), ids=REFUSED)
def test_a_refused_value_counts_for_nothing_wherever_it_stands(refused: bytes) -> None:
    true = expected(GOOD)
    for places in ([0], [3], [len(GOOD)], [0, 0, 4, len(GOOD) + 3]):
        values = list(GOOD)
        for place in places:
            values.insert(place, refused)
        parsed = PARSER.parse(values)
        assert parsed.refused == places if len(places) == 1 else len(parsed.refused) == len(places)
        assert [row for row, value in enumerate(values) if value == refused] == parsed.refused
        assert [row for row, record in enumerate(parsed.records) if record is None] == parsed.refused
        assert counts(parsed) == true
    assert counts(PARSER.parse(GOOD)) == true


def test_a_record_that_ends_at_any_byte_counts_for_nothing() -> None:
    cut = [FULL[:end] for end in range(len(FULL))]
    values = [value for pair in zip(cut, GOOD * len(FULL), strict=False) for value in pair]
    kept = values[1::2]
    parsed = PARSER.parse(values)
    assert parsed.refused == list(range(0, len(values), 2))
    assert counts(parsed) == expected(kept)


def test_a_block_of_refused_values_has_no_names() -> None:
    parsed = PARSER.parse(list(REFUSED.values()))
    assert parsed.refused == list(range(len(REFUSED)))
    assert counts(PARSER.parse([FULL])) == expected([FULL])
    assert counts(parsed) == (0, dict.fromkeys(MAY_BE_ABSENT, 0))


def test_a_block_without_values_has_no_names() -> None:
    assert counts(PARSER.parse([])) == (0, dict.fromkeys(MAY_BE_ABSENT, 0))


DOUBLED = [
    b'{"id":1,"id":2}',
    b'{"id":1,"\\u0069d":2}',
    b'{"id":1,"note":"a","note":"b"}',
    b'{"id":1,"extra":1,"ex\\u0074ra":2}',
    b'{"id":1,"place":{"city":"a","city":"b"}}',
    b'{"id":1,"place":{"point":{"x":1,"\\u0078":2}}}',
    b'{"id":1,"place":{"point":{"x":1}},"place":{"point":{"y":1}}}',
    b'{"id":1,"lines":[{"x":1},{"y":1,"x":2,"y":3}]}',
    b'{"id":1,"grid":[[{"x":1,"x":1},{"x":1}]]}',
    b'{"id":1,"mixed":{"a":1,"b":{"c":1,"c":2}}}',
    b'{"id":1,"mixed":{"a":1},"mixed":"text"}',
]


@pytest.mark.parametrize("value", DOUBLED, ids=repr)
def test_a_doubled_name_of_an_object_counts_once(value: bytes) -> None:
    true = different_names_in(value)
    assert true < names_in(value)
    parsed = PARSER.parse([FULL, value, FULL])
    assert (parsed.refused, parsed.names) == ([], true + 2 * different_names_in(FULL))
    assert BY_VALUE.names_by_value([FULL, value, FULL])[1] == true


def test_a_place_takes_what_was_seen_there_and_nothing_else() -> None:
    values = [b'{"id":1,"%b":%b}' % (name, given) for name in (b"mixed", b"place", b"lines") for given in SHAPES]
    taken = {row for row, record in enumerate(PARSER.parse(values).records) if record is not None}
    assert taken == {0, 1, 2, 3, 4, 5, 6, 7 + 0, 7 + 1, 14 + 0, 14 + 2}
    assert PARSER.parse(values[:7]).names == sum(map(different_names_in, values[:7]))


SHAPES = (b"null", b"{}", b'[{"x":1}]', b'"text"', b"7", b"2.5", b"true")


def test_a_place_without_known_names_is_skipped_whatever_stands_there() -> None:
    values = [b'{"id":1,"extra":%b}' % given for given in (b"{}", b"[[[]]]", b"1e999", b"9" * 5_000, b'"\\u00e4"')]
    parsed = PARSER.parse(values)
    assert (parsed.refused, parsed.names) == ([], 2 * len(values))
    inside = PARSER.parse([b'{"id":1,"extra":{"unknown":1}}'])
    assert (inside.refused, inside.names) == ([], 2)  # one less than the document has


def test_a_name_that_the_parser_uses_itself_never_raises_the_count() -> None:
    for name in (b"_", b"__", b"_____", b"every", b"n0", b"f0", b"u0"):
        value = b'{"id":1,"place":{"point":{"x":1,"%b":null},"%b":null}}' % (name, name)
        parsed = PARSER.parse([value])
        assert parsed.refused == [0] or parsed.names < names_in(value)


def test_undeclared_names_may_be_those_that_the_parser_uses_itself() -> None:
    names = ["f0", "u0", "n0", "every", "_", "__", "Record", "self", "", "größe", "a b", "\x7f", "x" * 5_000]
    known = {name: Place(names={inside: SCALAR for inside in names}) for name in names}
    value = json.dumps({"id": 1} | {name: dict.fromkeys(names, 1) for name in names}).encode()
    parsed = CountingParser(SCHEMA, known).parse([value, b'{"id":1}'])
    assert (parsed.refused, parsed.names) == ([], 2 + len(names) + len(names) ** 2)
    assert {parsed.absent[name] for name in names} == {1}


def test_a_parser_of_required_fields_alone_counts_too() -> None:
    schema = ValueSchema(ValueFormat.JSON, SCHEMA.columns[:1])
    parser = CountingParser(schema, {})
    assert parser.fields == 1
    assert counts(parser.parse([b'{"id":1}', b"{", b'{"id":1,"id":2}'])) == (2, {})
    assert NameCounter(schema, {}).names_by_value([b'{"id":1}', b'{"id":1,"id":2}']) == [1, 1]


MAPS = {
    "map": Place(entries=POINT),
    "within": Place(names={"map": Place(entries=Place(has_scalar=True, names={"c": SCALAR})), "d": SCALAR}),
}
WITH_MAPS = [
    b'{"id":1,"map":{"k1":{"x":1},"k2":{},"k3":{"x":1,"y":2}},"within":{"map":{"a":1,"b":{"c":2}},"d":1}}',
    b'{"id":2,"map":{},"within":{"d":1}}',
    b'{"id":3,"map":null,"within":{"map":null}}',
    b'{"id":4,"within":{"map":{"a\\"b":1,"a\\\\":{}}}}',
    b'{"id":5}',
]


def test_names_of_maps_count() -> None:
    parser = CountingParser(SCHEMA, MAPS)
    true = list(map(names_in, WITH_MAPS))
    parsed = parser.parse([WITH_MAPS[0] + b"x", *WITH_MAPS, WITH_MAPS[0][:-1], b'{"id":1,"map":{"k":{"x":1,"z":2}}}'])
    assert (parsed.refused, parsed.names) == ([0, 6, 7], sum(true))
    assert NameCounter(SCHEMA, MAPS).names_by_value(WITH_MAPS) == true


@pytest.mark.parametrize(
    "value",
    [
        b'{"id":1,"map":{"k":{"x":1},"k":{"x":2}}}',
        b'{"id":1,"map":{"k":{},"\\u006b":{"x":2}}}',
        b'{"id":1,"map":{"k":{"x":1,"x":2}}}',
        b'{"id":1,"map":{"k":{}},"map":{"j":{}}}',
        b'{"id":1,"within":{"map":{"a":1,"b":2,"a":3}}}',
        b'{"id":1,"within":{"map":{"a":1},"map":{"b":2}}}',
        b'{"id":1,"within":{"map":{"a":1}},"within":{}}',
    ],
    ids=repr,
)
def test_a_doubled_name_in_or_beside_a_map_shows(value: bytes) -> None:
    parser = CountingParser(SCHEMA, MAPS)
    parsed = parser.parse([WITH_MAPS[0], value])
    assert parsed.refused == []
    assert parsed.names < names_in(WITH_MAPS[0]) + names_in(value)
    assert NameCounter(SCHEMA, MAPS).names_by_value([value])[0] < names_in(value)


def members(values: dict[str, st.SearchStrategy[str]]) -> st.SearchStrategy[str]:
    """Objects with any of these names, some of them doubled."""
    pair = st.sampled_from(sorted(values)).flatmap(lambda name: values[name].map(lambda value: f'"{name}" :{value}'))
    return st.lists(pair, max_size=5).map(lambda found: "{" + ",".join(found) + "}")


SCALARS = st.sampled_from(["1", "null", '"a"', '":"', "2.5", "true"])
POINTS = members({"x": SCALARS, "y": SCALARS})
ARRAYS = st.lists(POINTS, max_size=3).map(lambda found: "[" + ",".join(found) + "]")
RECORDS = members(
    {
        "id": st.just("1"),
        "note": st.sampled_from(['"a"', "null", "7"]),
        "extra": SCALARS,
        "place": members({"city": SCALARS, "point": POINTS, "other": SCALARS}),
        "lines": ARRAYS,
        "grid": st.lists(ARRAYS, max_size=2).map(lambda found: "[" + ",".join(found) + "]"),
        "mixed": st.one_of(SCALARS, ARRAYS, members({"a": SCALARS, "b": members({"c": SCALARS})})),
    }
).map(str.encode)


@given(st.lists(st.tuples(RECORDS, st.sampled_from([b"", b"", b"", b"x", b"}", b","])), min_size=1, max_size=8))
def test_of_any_values_the_kept_ones_are_counted_exactly(found: list[tuple[bytes, bytes]]) -> None:
    values = [value + tail for value, tail in found]
    parsed = PARSER.parse([*values, FULL])
    kept = [value for value, record in zip([*values, FULL], parsed.records, strict=True) if record is not None]
    assert counts(parsed) == expected(kept)
    assert BY_VALUE.names_by_value(kept) == list(map(different_names_in, kept))
    assert len(kept) + len(parsed.refused) == len(values) + 1


def test_counts_do_not_drift_over_many_blocks() -> None:
    parser = CountingParser(SCHEMA, KNOWN)
    first = counts(parser.parse([*GOOD, *REFUSED.values()]))
    found = Counter(str(counts(parser.parse([*GOOD, *REFUSED.values()]))) for _ in range(50))
    assert found == {str(first): 50}
    assert first == expected(GOOD)


def same_shape(depth: int) -> tuple[Place, Any]:
    place, document = SCALAR, 1
    for _ in range(depth):
        place, document = Place(names={"a": place}), {"a": document}  # type: ignore[assignment]
    return place, document


@pytest.mark.parametrize("depth", [1, 5, 19])
def test_names_at_any_known_depth_count(depth: int) -> None:
    place, document = same_shape(depth)
    parser = CountingParser(SCHEMA, {"deep": place})
    value = json.dumps({"id": 1, "deep": document}).encode()
    assert parser.parse([value] * 3).names == 3 * (2 + depth)
    doubled = value.replace(b'"a": 1', b'"a": 1, "a": 2')
    assert (parser.parse([doubled]).names, names_in(doubled)) == (2 + depth, 3 + depth)
