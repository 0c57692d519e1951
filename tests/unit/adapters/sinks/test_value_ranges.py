"""Values that no sink takes are found wherever they stand, and nothing else is."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.adapters.sinks.value_ranges import unheld_rows

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST_DAY = (date(1, 1, 1) - EPOCH.date()).days
LAST_DAY = (date(9999, 12, 31) - EPOCH.date()).days
DAY_US = 24 * 60 * 60 * 10**6
FIRST_US, LAST_US = FIRST_DAY * DAY_US, LAST_DAY * DAY_US + DAY_US - 1
YEARS = "`c` lies outside the years 1 to 9999"
TEXT = "`c` is not UTF-8"
# Latin-1, a surrogate, an overlong form, beyond Unicode, a text that breaks off
NOT_UTF8 = (b"\xe9t\xe9", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"half \xf0\x9f\x98")

days = st.sampled_from([FIRST_DAY - 1, FIRST_DAY, 0, LAST_DAY, LAST_DAY + 1, -(1 << 31), (1 << 31) - 1])
moments = st.sampled_from([FIRST_US - 1, FIRST_US, 0, LAST_US, LAST_US + 1, -(1 << 63), (1 << 63) - 1])
texts = st.sampled_from([b"", b"plain", "é😀\0".encode(), *NOT_UTF8])
LEAVES: tuple[tuple[pa.DataType, st.SearchStrategy[Any]], ...] = (
    (pa.date32(), days),
    (pa.timestamp("us"), moments),
    (pa.timestamp("us", tz="UTC"), moments),
    (pa.string(), texts),
    (pa.large_string(), texts),
    (pa.binary(), texts),
    (pa.int64(), moments),
)


def list_of(inner: tuple[pa.DataType, st.SearchStrategy[Any]]) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    return pa.list_(inner[0]), st.lists(st.none() | inner[1], max_size=3)


def struct_of(inner: tuple[pa.DataType, st.SearchStrategy[Any]]) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    fields = {"n": st.none() | st.just(1), "f": st.none() | inner[1]}
    return pa.struct([("n", pa.int8()), ("f", inner[0])]), st.fixed_dictionaries(fields)


def map_of(inner: tuple[pa.DataType, st.SearchStrategy[Any]]) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    return pa.map_(pa.int8(), inner[0]), st.lists(st.tuples(st.just(1), st.none() | inner[1]), max_size=3)


def keyed_by(inner: tuple[pa.DataType, st.SearchStrategy[Any]]) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    return pa.map_(inner[0], pa.int8()), st.lists(st.tuples(inner[1], st.just(1)), max_size=3)


WITHIN = (lambda inner: inner, list_of, struct_of, map_of, keyed_by)


@st.composite
def columns(draw: st.DrawFn) -> tuple[pa.DataType, list[Any]]:
    leaf = draw(st.sampled_from(LEAVES))
    type_, values = draw(st.sampled_from(WITHIN))(draw(st.sampled_from(WITHIN))(leaf))
    return type_, draw(st.lists(st.none() | values, max_size=8))


def raw(type_: pa.DataType) -> pa.DataType:
    """The same type with bytes for text, which Arrow takes from Python without a look."""
    if pa.types.is_list(type_):
        return pa.list_(raw(type_.value_type))
    if pa.types.is_map(type_):
        return pa.map_(raw(type_.key_type), raw(type_.item_type))
    if pa.types.is_struct(type_):
        return pa.struct([(field.name, raw(field.type)) for field in type_.fields])
    return {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}.get(type_, type_)


def column(type_: pa.DataType, values: Sequence[Any]) -> pa.Array:
    return pa.array(values, raw(type_)).cast(type_, safe=False)


def reasons(type_: pa.DataType, value: Any) -> set[str]:
    """By a walk through Python's values."""
    if value is None:
        return set()
    if pa.types.is_list(type_):
        return {why for one in value for why in reasons(type_.value_type, one)}
    if pa.types.is_map(type_):
        both = ((type_.key_type, 0), (type_.item_type, 1))
        return {why for pair in value for of, at in both for why in reasons(of, pair[at])}
    if pa.types.is_struct(type_):
        return {why for field in type_.fields for why in reasons(field.type, value[field.name])}
    if pa.types.is_date32(type_):
        return set() if FIRST_DAY <= value <= LAST_DAY else {YEARS}
    if pa.types.is_timestamp(type_):
        return set() if FIRST_US <= value <= LAST_US else {YEARS}
    if type_ in (pa.string(), pa.large_string()):
        return {TEXT} if value in NOT_UTF8 else set()
    return set()


@given(columns(), st.integers(0, 3))
def test_each_row_with_such_a_value_is_found_however_deep_it_lies(
    given_column: tuple[pa.DataType, list[Any]], cut: int
) -> None:
    type_, values = given_column
    found = unheld_rows(["c"], [column(type_, values).slice(cut)])
    expected = {row: reasons(type_, value) for row, value in enumerate(values[cut:])}
    assert {row: {why} for row, why in found.items()} == {row: why for row, why in expected.items() if why}


def test_the_first_column_with_such_a_value_is_named() -> None:
    far = pa.array([None, LAST_DAY + 1, 0], pa.int32()).cast(pa.date32())
    text = column(pa.string(), [b"", b"\xff", b"\xff"])
    assert unheld_rows(["day", "name"], [far, text]) == {
        1: "`day` lies outside the years 1 to 9999",
        2: "`name` is not UTF-8",
    }


@pytest.mark.parametrize("within", [lambda leaf: leaf, pa.list_], ids=["plain", "list"])
def test_a_null_has_no_value_whatever_lies_under_it(within: Any) -> None:
    """A filter or a join may leave bytes under a null."""
    far = pa.array([LAST_DAY + 1], pa.int32()).cast(pa.date32())
    inner = far if within(pa.date32()) == pa.date32() else pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), far)
    nothing = pa.py_buffer(b"\0")
    buffers = [nothing, inner.buffers()[1]]
    children = [] if inner is far else [far]
    hidden = pa.Array.from_buffers(inner.type, 1, buffers, children=children)
    assert hidden.to_pylist() == [None]
    assert unheld_rows(["c"], [hidden]) == {}
