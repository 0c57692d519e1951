"""Undeclared fields that are learned from samples: frequent ones, in bounded number and depth."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.domain.declaration.pipeline import Column, ColumnType, ValueFormat, ValueSchema
from millrace.runtime.formats.field_tally import LONGEST_NAME
from millrace.runtime.formats.json.counting_parser import CountingParser, NameCounter
from millrace.runtime.formats.json.known_fields import MOST_KNOWN, KnownFields, Place
from support.checks.tiers import examples
from support.formats.json_names import names_in

SCHEMA = ValueSchema(ValueFormat.JSON, (Column("id", ColumnType.INT), Column("note", ColumnType.STRING)))
DECLARED = ("id", "note")
SAMPLES = 40


def learned(*documents: Any) -> KnownFields:
    known = KnownFields(DECLARED)
    known.learn([value if isinstance(value, bytes) else json.dumps(value).encode() for value in documents])
    return known


def places(names: Any) -> Iterator[tuple[str, Place]]:
    """Each known name and its place, at any depth."""
    for name, place in names.items():
        yield name, place
        yield from within(place)


def within(place: Place) -> Iterator[tuple[str, Place]]:
    yield from places(place.names)
    for inside in (place.entries, place.elements):
        if inside is not None:
            yield from within(inside)


def known_names(known: KnownFields) -> list[str]:
    return [name for name, _ in places(known.undeclared)]


def test_declared_names_are_learned_inside_others_only() -> None:
    known = learned({"id": 1, "note": "a", "extra": {"id": 1, "note": {"deep": 1}}})
    assert list(known.undeclared) == ["extra"]
    assert known_names(known) == ["extra", "id", "note", "deep"]


def test_what_stands_at_a_place_is_learned() -> None:
    known = learned(
        {"text": "a", "number": 1.5, "yes": False, "nothing": None, "empty": {}, "none": []},
        {"list": [1, {"x": 1}, [2]], "mixed": "a"},
        {"mixed": {"x": None}},
        {"mixed": [{"y": 1}]},
    ).undeclared
    assert {name for name, place in known.items() if place.has_scalar} == {"text", "number", "yes", "mixed"}
    assert {name for name, place in known.items() if place.elements is not None} == {"none", "list", "mixed"}
    assert {name for name, place in known.items() if place.has_names()} == {"list", "mixed"}
    assert list(known["mixed"].names) == ["x"]
    assert not known["mixed"].names["x"].has_scalar
    inside = known["list"].elements
    assert inside is not None
    assert (list(inside.names), inside.has_scalar, inside.elements) == (["x"], True, Place(has_scalar=True))


def test_only_what_is_new_makes_a_lesson() -> None:
    known = KnownFields(DECLARED)
    lessons: Sequence[tuple[bytes, bool]] = [
        (b'{"id":1}', False),
        (b'{"a":1}', True),
        (b'{"a":"text"}', False),
        (b'{"a":null,"id":1}', False),
        (b'{"a":[]}', True),
        (b'{"a":[1]}', True),
        (b'{"a":[2,"b",null]}', False),
        (b'{"a":{}}', True),
        (b'{"a":{"b":1}}', True),
        (b'{"a":{"b":[{"c":1}]}}', True),
        (b'{"a":{"b":[{"c":2},{"c":1}]}}', False),
        (b'{"a":[{"c":2}]}', True),
    ]
    for value, is_new in lessons:
        assert known.learn([value]) is is_new, value
        assert known.learn([value]) is False, value


@pytest.mark.parametrize(
    "value", [b"", b"nope", b"[1]", b'"a"', b"null", b"7", b'{"a":1', b'{"a":1}x', b'{"a":"\xff"}', b"[" * 100_000]
)
def test_a_value_that_is_no_json_object_teaches_nothing(value: bytes) -> None:
    known = KnownFields(DECLARED)
    assert known.learn([value]) is False
    assert known.undeclared == {}
    assert known.learn([value, b'{"b":1}']) is True
    assert list(known.undeclared) == ["b"]


def test_no_samples_teach_nothing() -> None:
    assert KnownFields(DECLARED).learn([]) is False


@pytest.mark.parametrize(("times", "is_known"), [(0, False), (1, False), (SAMPLES // 2, True), (SAMPLES, True)])
def test_a_frequent_name_is_learned_and_a_rare_one_is_not(times: int, is_known: bool) -> None:
    documents = [{"often": 1} | ({"seldom": 1} if row < times else {}) for row in range(SAMPLES)]
    assert ("seldom" in learned(*documents).undeclared) is is_known
    inside = [{"often": {"x": 1} | ({"seldom": 1} if row < times else {})} for row in range(SAMPLES)]
    assert ("seldom" in known_names(learned(*inside))) is is_known


def test_names_that_change_with_each_record_are_not_learned() -> None:
    documents = [
        {"by_day": {f"day {row}": 1, f"other {row}": {"x": 1}}, "fixed": {"y": {"z": row}}, f"own {row}": 1}
        for row in range(SAMPLES)
    ]
    known = learned(*documents).undeclared
    assert list(known) == ["by_day", "fixed"]
    assert known["by_day"].names == {}
    entries = known["by_day"].entries
    assert entries is not None
    assert (list(entries.names), entries.has_scalar) == (["x"], True)
    assert known["fixed"].entries is None


def test_an_object_with_a_rare_name_now_and_then_is_no_map() -> None:
    documents = [{"place": {"x": 1, "y": 2} | ({f"own {row}": 1} if row < 3 else {})} for row in range(SAMPLES)]
    known = learned(*documents).undeclared
    assert (list(known["place"].names), known["place"].entries) == (["x", "y"], None)


def test_a_known_name_stays_known_where_it_becomes_rare() -> None:
    known = learned({"old": 1})
    known.learn([b'{"new":1}'] * 15 + [b'{"old":{"x":1}}'])
    assert list(known.undeclared) == ["old", "new"]
    assert known.undeclared["old"].has_scalar


NEVER = ['"', "\\", 'a"b', "a\\", "\n", "\t", "\0", "a\x1fb", "\r\n"]


@pytest.mark.parametrize("name", NEVER, ids=repr)
def test_a_name_that_the_parser_cannot_know_is_not_learned(name: str) -> None:
    known = learned({name: 1, "beside": {name: 1, "b": [{name: 1, "c": 2}]}})
    assert known_names(known) == ["beside", "b", "c"]
    value = json.dumps({"beside": {name: 1}}).encode()
    assert CountingParser(SCHEMA, known.undeclared).parse([value]).refused == [0]


@pytest.mark.parametrize(
    "name", ["", " ", "a b", "größe", "日本", "\U0001f600", ":", "'", "{", "id ", "ID", "f0", "x" * LONGEST_NAME]
)
def test_any_other_name_is_learned_at_each_depth(name: str) -> None:
    known = learned({name: {name: [{name: 1}]}})
    assert known_names(known) == [name] * 3
    for escaped in (False, True):
        value = json.dumps({name: {name: [{name: 1}]}}, ensure_ascii=escaped).encode()
        parsed = CountingParser(SCHEMA, known.undeclared).parse([value] * 2)
        assert (parsed.refused, parsed.names) == ([], 6)


@pytest.mark.parametrize(
    "name", ["x" * (LONGEST_NAME + 1), "x" * 100_000, "\x7f", "\u202eabc", "\u200b", "\ufeff"], ids=ascii
)
def test_a_name_that_is_shown_in_another_form_is_learned_inside_others_only(name: str) -> None:
    known = learned({name: {"a": 1}, "beside": {name: {"a": 1}}})
    assert known_names(known) == ["beside", name, "a"]
    value = json.dumps({"beside": {name: {"a": 1}}}).encode()
    parsed = CountingParser(SCHEMA, known.undeclared).parse([value])
    assert (parsed.refused, parsed.names) == ([], 3)


@pytest.mark.parametrize("shape", ["flat", "nested", "in arrays"])
def test_no_more_names_are_known_than_the_bound(shape: str) -> None:
    known = KnownFields(DECLARED)
    for lesson in range(4):
        inside = {f"n{lesson} {number}": 1 for number in range(400)}
        document = {"flat": inside, "nested": {"a": {"b": inside}}, "in arrays": {"a": [inside]}}[shape]
        known.learn([json.dumps(document).encode()])
        CountingParser(SCHEMA, known.undeclared)
    names = known_names(known)
    assert len(names) == MOST_KNOWN
    assert {"n0 0", "n0 399", "n1 399"} <= set(names)
    assert known.learn([b'{"one more":1}']) is False


def test_a_record_with_more_names_than_the_bound_teaches_so_many() -> None:
    known = learned(dict.fromkeys((f"n{number}" for number in range(20_000)), 1))
    assert len(known.undeclared) == MOST_KNOWN
    value = json.dumps(dict.fromkeys(known.undeclared, 1)).encode()
    assert CountingParser(SCHEMA, known.undeclared).parse([value]).names == MOST_KNOWN


def nested(depth: int, *, arrays: bool) -> bytes:
    before, after = (b'[{"a":', b"}]") if arrays else (b'{"a":', b"}")
    return b'{"a":' + before * depth + b"1" + after * depth + b"}"


@pytest.mark.parametrize("arrays", [False, True], ids=["objects", "arrays"])
def test_names_far_inside_are_not_learned(arrays: bool) -> None:
    by_depth = {depth: len(known_names(learned(nested(depth, arrays=arrays)))) for depth in (5, 30, 100, 300)}
    assert by_depth[5] == 6
    assert by_depth[30] == by_depth[100] == by_depth[300] < 31
    known = learned(nested(300, arrays=arrays))
    assert known.learn([nested(300, arrays=arrays)]) is False
    parsed = CountingParser(SCHEMA, known.undeclared).parse([nested(100, arrays=arrays)])
    assert parsed.refused or parsed.names < 101


NAMES = st.one_of(
    st.sampled_from(["id", "note", "a", "b", "_", "__"]), st.text(st.characters(codec="utf-8"), max_size=3)
)
NODES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**40), 2**40), st.text(st.characters(codec="utf-8"), max_size=3)
    ),
    lambda inside: st.one_of(st.lists(inside, max_size=4), st.dictionaries(NAMES, inside, max_size=4)),
    max_leaves=15,
)
DOCUMENTS = st.dictionaries(NAMES.filter(lambda name: name not in DECLARED), NODES, max_size=5)


def teach_and_parse(values: Sequence[bytes]) -> None:
    """Learn from values and parse them: no value has more names by the parser than by Python's own."""
    known = KnownFields(DECLARED)
    known.learn(values)
    parsed = CountingParser(SCHEMA, known.undeclared).parse(values)
    kept = [value for value, record in zip(values, parsed.records, strict=True) if record is not None]
    counts = NameCounter(SCHEMA, known.undeclared).names_by_value(kept) if kept else []
    assert all(count <= names_in(value) for count, value in zip(counts, kept, strict=True))
    assert sum(counts) == parsed.names


@given(st.lists(DOCUMENTS, min_size=1, max_size=6), st.booleans())
def test_a_parser_of_what_was_learned_never_counts_too_many_names(found: list[Any], escaped: bool) -> None:
    values = [json.dumps(each, ensure_ascii=escaped).encode() for each in found]
    teach_and_parse(values)


@settings(max_examples=examples(30))
@given(st.lists(DOCUMENTS, min_size=12, max_size=24), st.booleans())
def test_a_parser_of_maps_never_counts_too_many_names(found: list[Any], escaped: bool) -> None:
    documents = [{"map": each, "in": {"map": each}, "list": [each]} for each in found]
    values = [json.dumps(each, ensure_ascii=escaped).encode() for each in documents]
    teach_and_parse(values)


EASY = st.recursive(
    st.sampled_from([None, True, 1, 2.5, "a"]),
    lambda inside: st.one_of(
        st.lists(inside, max_size=3),
        st.dictionaries(st.sampled_from(["x", "y", "größe"]), inside, min_size=1, max_size=3),
    ),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), EASY, max_size=3))
def test_a_parser_knows_the_whole_record_that_it_was_taught(document: dict[str, Any]) -> None:
    value = json.dumps(document).encode()
    known = KnownFields(DECLARED)
    known.learn([value])
    parsed = CountingParser(SCHEMA, known.undeclared).parse([value] * 3)
    assert (parsed.refused, parsed.names) == ([], 3 * names_in(value))
    assert known.learn([value]) is False


@pytest.mark.parametrize("shape", ["{}", "[]", "null", "1"])
def test_a_place_with_an_array_of_objects_takes_what_else_was_seen_there(shape: str) -> None:
    values = [f'{{"a":{each}}}'.encode() for each in ('[{"x":1}]', shape)]
    known = KnownFields(DECLARED)
    known.learn(values)
    parsed = CountingParser(SCHEMA, known.undeclared).parse(values)
    assert (parsed.refused, parsed.names) == ([], 3)
