"""Counts of names and brackets by bytes alone: never too low, and exact for documents without odd texts."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.runtime.formats.json import name_scan
from millrace.runtime.formats.json.name_scan import NameScan
from support.formats.json_names import depth_of, names_in, written

WINDOW = 128 * 1024
LIMIT = 500
FILLER = b'{"a":1}'

PLAIN_TEXTS = st.text("abcXYZ0 .ß€\U0001f600", max_size=6)
ODD_TEXTS = st.one_of(
    st.text('":\\ \n{}[],a', max_size=8),
    st.sampled_from([":", ":b", " :", '":', '" :', '\\":', "\\", "a\\", '"', '{"a":1}', '{"a" : 1}', '\\\\":', "[{"]),
    st.text(st.characters(codec="utf-8"), max_size=5),
)


def documents(texts: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    scalars = st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), texts
    )
    return st.recursive(
        scalars,
        lambda inside: st.one_of(st.lists(inside, max_size=4), st.dictionaries(texts, inside, max_size=4)),
        max_leaves=12,
    )


def values_of(found: Sequence[Any], seed: int) -> list[bytes]:
    draw = random.Random(seed)
    return [written(document, draw).encode() for document in found]


def with_windows_of(size: int, values: Sequence[bytes], limit: int = 2) -> tuple[int, list[int], list[int]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(name_scan, "_WINDOW", size)
        scan = NameScan(values)
        return scan.names(), scan.names_by_value(), scan.deeper_than(limit)


@given(st.lists(documents(ODD_TEXTS), min_size=1, max_size=6), st.integers())
def test_names_are_never_counted_too_low(found: list[Any], seed: int) -> None:
    for values in (values_of(found, seed), [json.dumps(each, separators=(",", ":")).encode() for each in found]):
        scan, true = NameScan(values), list(map(names_in, values))
        assert scan.names() >= sum(true)
        assert all(shown >= number for shown, number in zip(scan.names_by_value(), true, strict=True))


@given(st.lists(documents(PLAIN_TEXTS), min_size=1, max_size=6), st.integers())
def test_names_are_exact_without_odd_texts_whatever_the_blanks(found: list[Any], seed: int) -> None:
    values = values_of(found, seed)
    true = list(map(names_in, values))
    assert (NameScan(values).names(), NameScan(values).names_by_value()) == (sum(true), true)


@given(st.lists(documents(PLAIN_TEXTS), min_size=1, max_size=6))
@pytest.mark.parametrize(
    "form",
    [{"separators": (",", ":")}, {}, {"separators": (" , ", " : ")}, {"indent": 2}, {"indent": "\t"}],
    ids=["compact", "usual", "blanks", "lines", "tabs"],
)
def test_names_are_exact_in_each_usual_form(form: dict[str, Any], found: list[Any]) -> None:
    values = [json.dumps(each, **form).encode() for each in found]
    true = list(map(names_in, values))
    assert (NameScan(values).names(), NameScan(values).names_by_value()) == (sum(true), true)


@pytest.mark.parametrize(
    "value",
    [
        rb'{"a":"\":"}',
        rb'{"a":"x\":y"}',
        rb'{"a":"{\"b\":1,\"c\":{}}"}',
        rb'{"a":"\\"}',
        rb'{"a\\":1}',
        rb'{"\\":1,"\\\\":2}',
        rb'{"\"":1,"a\"":2,"\\\"":3}',
        b'{"a:":1,"b :":2,"c":"d:"}',
        b'{"a":"x:y","b":"x :y"}',
        b'{"":1}',
        b'{"":{"":{"":0}}}',
        b'{"a"\t\n:1}',
        b'{"a"\r\n:1,"b"      :2}',
        b'[{"a":1},{"a":1}]',
        b"[]",
        b"1",
        b'"a"',
        '{"größe":1,"€":2,"\U0001f600":3}'.encode(),
        b'{"\\u0061":1}',
    ],
    ids=repr,
)
def test_names_of_such_a_value_are_exact(value: bytes) -> None:
    for values in ([value], [FILLER, value, FILLER]):
        true = list(map(names_in, values))
        assert (NameScan(values).names(), NameScan(values).names_by_value()) == (sum(true), true)


@pytest.mark.parametrize(
    "value",
    [
        b'{"a":":b"}',
        b'{"a":" :b"}',
        b'{"a":"\\t","b":"  :"}',
        rb'{"a":"\\\":"}',
        b'["x",":"]',
        b'{":":1,"a:":2}',
        b'{"a": "\\n",":":": "}',
    ],
    ids=repr,
)
def test_a_text_that_looks_like_a_name_counts_in_its_own_value_only(value: bytes) -> None:
    counts = NameScan([FILLER, value, FILLER]).names_by_value()
    assert counts[1] > names_in(value)
    assert counts[::2] == [1, 1]
    assert NameScan([FILLER, value, FILLER]).names() == sum(counts)


def test_a_text_at_the_end_of_a_value_is_no_name_of_the_next_one() -> None:
    values = [b'"a"', b'"b"', b'"\\\\"', b"1", b'{"a":"b"}', b'"c"']
    assert (NameScan(values).names(), NameScan(values).names_by_value()) == (1, [0, 0, 0, 0, 1, 0])


SEPARATORS = {"compact": b":", "blank": b" :", "blanks": b"   :", "line": b"\n:"}


@pytest.mark.parametrize("separator", SEPARATORS.values(), ids=SEPARATORS)
@pytest.mark.parametrize("more", [b"", b',"b\\\\":2'], ids=["without backslash", "with backslash"])
def test_a_name_at_the_edge_of_a_window_counts(separator: bytes, more: bytes) -> None:
    head, tail = b'{"x"' + separator + b'"', b'","a"' + separator + b"1" + more.replace(b":", separator) + b"}"
    for shift in range(-12, 13):
        value = head + b"p" * (WINDOW + shift - len(head) - len(tail)) + tail
        true = names_in(value)
        scan = NameScan([value, FILLER])
        assert (scan.names(), scan.names_by_value()) == (true + 1, [true, 1])


@pytest.mark.parametrize("form", [{"separators": (",", ":")}, {"indent": 1}], ids=["compact", "lines"])
def test_names_of_a_value_of_several_mebibytes_are_exact(form: dict[str, Any]) -> None:
    document = {
        "list": [{"sku": number, "n\\" if form == {} else "name": "x" * (number % 40)} for number in range(90_000)]
    }
    values = [FILLER, json.dumps(document, **form).encode(), FILLER]
    assert len(values[1]) > 24 * WINDOW
    assert NameScan(values).names() == 180_003
    assert NameScan(values).names_by_value() == [1, 180_001, 1]


def test_the_window_is_even_so_that_pairs_of_bytes_fill_it() -> None:
    assert name_scan._WINDOW % 2 == 0


@given(st.lists(documents(ODD_TEXTS), min_size=1, max_size=4), st.integers(), st.sampled_from([4, 5, 6, 7, 9, 16]))
def test_small_windows_count_what_a_large_one_does(found: list[Any], seed: int, size: int) -> None:
    values = [*values_of(found, seed), b'{"line"\n:1}']
    scan = NameScan(values)
    assert with_windows_of(size, values) == (scan.names(), scan.names_by_value(), scan.deeper_than(2))


@given(st.lists(documents(st.text(':" xy', max_size=3)), min_size=1, max_size=4), st.sampled_from([2, 4, 6, 8]))
def test_small_windows_count_compact_names_as_a_large_one_does(found: list[Any], size: int) -> None:
    values = [json.dumps(each, separators=(",", ":")).encode() for each in found]
    assert with_windows_of(size, values)[0] == NameScan(values).names()


@pytest.mark.parametrize("separator", SEPARATORS.values(), ids=SEPARATORS)
@pytest.mark.parametrize("size", [4, 5, 6, 7])
def test_a_pair_that_any_edge_splits_counts(separator: bytes, size: int) -> None:
    for length in range(2 * size):
        values = [b'{"' + b"n" * length + b'"' + separator + b"1}", b'"' + b"t" * length + b'"', FILLER]
        total, by_value, _ = with_windows_of(size, values)
        assert by_value == [1, 0, 1]
        assert total == 2 or size % 2 == 1
        assert with_windows_of(size, [*values, b"[\n]"])[0] == 2  # beside a line, bytes are compared one by one


def nested(depth: int, kind: str) -> bytes:
    if kind == "arrays":
        return b"[" * depth + b"]" * depth
    if kind == "objects":
        return b'{"a":' * depth + b"1" + b"}" * depth
    pairs = depth // 2
    return b"[" * (depth % 2) + b'{"a":[' * pairs + b"]}" * pairs + b"]" * (depth % 2)


@pytest.mark.parametrize("kind", ["arrays", "objects", "both"])
@pytest.mark.parametrize("place", [0, 50, 100])
def test_only_a_value_that_is_nested_too_deep_is_named(kind: str, place: int) -> None:
    for depth in (LIMIT - 1, LIMIT, LIMIT + 1):
        values = [b'{"a":[{"b":[]}]}'] * 101
        values[place] = nested(depth, kind)
        assert depth_of(values[place]) == depth
        assert NameScan(values).deeper_than(LIMIT) == ([place] if depth > LIMIT else [])


def test_all_values_that_are_nested_too_deep_are_named() -> None:
    values = [nested(depth, "arrays") for depth in (501, 500, 499, 502, 1, 3_000)]
    assert NameScan(values).deeper_than(LIMIT) == [0, 3, 5]


def test_brackets_in_texts_hide_no_depth() -> None:
    deep = b"[" + b'"]]]]}}",[' * LIMIT + b"]" * (LIMIT + 1)
    assert depth_of(deep) == LIMIT + 1
    values = [FILLER, deep, b'["' + b"]" * 2_000 + b'"]', b'["' + b"x" * 2_000 + b'"]']
    assert NameScan(values).deeper_than(LIMIT) == [1]


def test_many_brackets_side_by_side_are_not_too_deep_where_no_value_has_too_many() -> None:
    values = [b"[" + b"[]," * 498 + b"[]]"] * 40
    assert len(values[0]) > 2 * LIMIT
    assert NameScan(values).deeper_than(LIMIT) == []


@pytest.mark.parametrize("limit", range(1, 12))
def test_the_shortest_value_that_is_too_deep_is_named(limit: int) -> None:
    for kind in ("arrays", "objects"):
        values = [nested(limit, kind), nested(limit + 1, kind)]
        for size in (4, 5, 6, 7, WINDOW):
            assert with_windows_of(size, values, limit)[2] == [1]


@given(st.lists(documents(ODD_TEXTS), min_size=1, max_size=6), st.integers(), st.integers(1, 4))
def test_no_value_that_is_too_deep_is_left_out(found: list[Any], seed: int, limit: int) -> None:
    values = values_of(found, seed)
    deep = {index for index, value in enumerate(values) if depth_of(value) > limit}
    assert deep <= set(NameScan(values).deeper_than(limit))
