"""Fields that the schema does not name: counted record by record, whatever else is wrong with one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.domain.declaration.pipeline import Column, ColumnType, Key, ValueFormat, ValueSchema
from millrace.domain.formats.undeclared import MOST_KEPT, Undeclared
from millrace.runtime.formats.decoded import RecordDecoder
from millrace.runtime.formats.field_tally import LONGEST_NAME, MOST_COUNTED, FieldTally, as_text, from_text
from millrace.runtime.formats.registry import decoder_of

COLUMNS = (
    Column("id", ColumnType.INT, required=True),
    Column("note", ColumnType.STRING),
    Column("at", ColumnType.TIMESTAMP),
    Column("amount", ColumnType.DECIMAL, precision=5, scale=2),
)
SCHEMA = ValueSchema(ValueFormat.JSON, COLUMNS)
DECLARED = {column.name for column in COLUMNS}
DECODER = decoder_of(SCHEMA, None)


def undeclared(values: Sequence[bytes | None], decoder: RecordDecoder = DECODER) -> Undeclared:
    return decoder.decode(values, [b"k"] * len(values), [0] * len(values)).undeclared


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ('{"id":1,"note":"a","at":"2026-01-31T10:00:00Z","amount":1}', set()),
        ('{"id":1}', set()),
        ('{ "id" : 1, "note" : null }', set()),
        ('{"id":1,"note":"\\":"}', set()),
        ('{"id":1,"Note":"a"}', {"Note"}),
        ('{"id":1,"Note" : "a"}', {"Note"}),
        ('{"id":1,"note":"a","note2":null,"":1}', {"note2", ""}),
        ('{"id":1,"\\u006eote":"a"}', set()),
        ('{"id":1,"\\u004eote":"a"}', {"Note"}),
        ('{"id":1,"inside":{"note":1,"other":{"deep":2}},"list":[{"each":1}]}', {"inside", "list"}),
        ('{"id":1,"last":{}}', {"last"}),
        ('{"first":{"x":1},"id":1}', {"first"}),
        ('{"id":1,"long":%s}' % ("9" * 5_000), {"long"}),  # more digits than Python makes an integer of
        ('{"Id":1}', {"Id"}),  # bad, as `id` is absent: the name says why
        ('{"id":"x","extra":1}', {"extra"}),
        ('{"id":1,"amount":1.234,"extra":1}', {"extra"}),
        ('{"id":1,"at":"2026-01-31T10:00:00.1234567Z","extra":1}', {"extra"}),
        ('{"id":1,"note":"\\u0000","extra":1}', {"extra"}),
        ('{"id":1,"extra":1,"extra":2}', set()),  # no sound document, and the reason names the field
        ('{"id":1,"extra":1', set()),
        ('{"id":1,"extra":1}}', set()),
        ('[{"extra":1}]', set()),
        ('"extra"', set()),
        ("null", set()),
        ("", set()),
    ],
)
def test_only_names_at_the_top_that_the_schema_lacks_are_counted(value: str, names: set[str]) -> None:
    fine = b'{"id":1,"note":"a","at":"2026-01-31T10:00:00Z","amount":1}'
    for values in ([value.encode()], [fine, value.encode(), fine]):
        found = undeclared(values)
        assert (found.records, found.names) == (1 if names else 0, Counter(names))


def test_records_that_are_not_looked_into_count_for_nothing() -> None:
    value = b'{"id":1,"extra":1}'
    found = DECODER.decode([value, None, value, b"\xff"], [b"k"] * 4, [0, 0, -1, 0])
    assert found.undeclared == Undeclared(1, Counter(["extra"]))
    assert DECODER.decode([], [], []).undeclared == Undeclared()


def test_a_topic_whose_records_delete_counts_its_other_records() -> None:
    schema = ValueSchema(ValueFormat.JSON, (Column("key", ColumnType.STRING, required=True),), tombstones=True)
    values = [b'{"key":"k","extra":1}', None, b'{"key":"other","extra":1}']
    decoder = decoder_of(schema, Key("key"))
    assert undeclared(values, decoder) == Undeclared(2, Counter(extra=2))
    assert undeclared(values[:1], decoder) == Undeclared(1, Counter(extra=1))


NAMES = st.one_of(st.sampled_from(sorted(DECLARED)), st.text(st.characters(codec="utf-8"), max_size=5))


@given(st.lists(st.dictionaries(NAMES, st.sampled_from([None, 1, "a", {}]), max_size=4), max_size=20), st.booleans())
def test_counts_are_what_pythons_own_parser_finds(documents: list[dict[str, object]], escaped: bool) -> None:
    values = [json.dumps(document, ensure_ascii=escaped).encode() for document in documents]
    found = [set(json.loads(value)) - DECLARED for value in values]
    records, names = sum(map(bool, found)), Counter(name for each in found for name in each)
    counted = undeclared(values)
    assert counted.records == records
    plain = {name: count for name, count in names.items() if name.isprintable() and "\\" not in name}
    assert {name: counted.names[name] for name in plain} == plain
    assert len(counted.names) >= len(plain)


def test_a_name_that_cannot_be_printed_is_escaped_and_a_long_one_cut() -> None:
    names = ["\x1b[2J", "\u202eabc", "a\nb", "\0", "größe", "x" * 100_000, "x" * 99_999]
    value = json.dumps({"id": 1} | dict.fromkeys(names, 1)).encode()
    found = undeclared([value])
    assert found.records == 1
    assert found.names == {
        "\\x1b[2J": 1,
        "\\u202eabc": 1,
        "a\\nb": 1,
        "\\x00": 1,
        "größe": 1,
        "x" * (LONGEST_NAME - 1) + "…": 1,  # records, not fields
    }
    assert undeclared([value, value]).names["\\x00"] == 2


def test_long_names_that_begin_alike_are_one_however_many_they_are() -> None:
    values = [json.dumps({"id": 1, "x" * LONGEST_NAME + str(record): 1}).encode() for record in range(MOST_COUNTED)]
    assert undeclared(values).names == {"x" * (LONGEST_NAME - 1) + "…": MOST_COUNTED}


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("NOTE", "note"),
        ("no-te", "note"),
        ("no\u200bte", "note"),
        ("\ufeffid", "id"),
        ("i_d", "id"),
        ("id2", None),
        ("colour", None),
        ("", None),
        ("--", None),
    ],
)
def test_a_name_is_held_against_the_columns_by_letters_and_digits(name: str, column: str | None) -> None:
    found = undeclared([json.dumps({name: 1}).encode()])
    [shown] = found.names
    assert found.similar == ({shown: column} if column else {})


def test_a_column_may_have_any_length_and_script() -> None:
    for column, name in (("c" * 63, "C" * 63), ("strasse", "STRAßE"), ("größe", "GRÖSSE")):
        tally = FieldTally([column, "_"])
        tally.add({name, "-"})
        assert list(tally.counts().similar.values()) == [column]


def test_a_name_is_not_held_against_a_column_that_its_record_has() -> None:
    tally = FieldTally(["id", "note"])
    tally.add({"id", "ID"})
    assert tally.counts() == Undeclared(1, Counter(["ID"]))
    tally.add({"note", "ID"})
    assert tally.counts() == Undeclared(2, Counter(ID=2), {"ID": "id"})


def test_of_columns_with_the_same_letters_the_one_that_a_record_lacks_is_meant() -> None:
    tally = FieldTally(["userId", "user_id"])
    tally.add({"user_id", "UserId"})
    tally.add({"userId", "USERID"})
    assert tally.counts().similar == {"UserId": "userId", "USERID": "user_id"}


class CountedName(str):
    """A name that counts how often it is looked at."""

    hashed = 0

    def __hash__(self) -> int:
        CountedName.hashed += 1
        return super().__hash__()


def test_a_record_with_many_similar_names_makes_no_other_record_slower() -> None:
    tally = FieldTally(["note"])
    tally.add({"note"} | {CountedName("_" * length + "note") for length in range(1, 900)})
    before = CountedName.hashed
    for _ in range(3):
        tally.add({"other"})
    assert 899 <= before == CountedName.hashed
    assert tally.counts().similar == {}


def test_a_block_in_which_every_name_is_new_counts_its_records() -> None:
    tally = FieldTally(["note"])
    tally.add({f"n{number}" for number in range(MOST_COUNTED + 1)})
    assert tally.counts() == Undeclared(1)


def test_of_more_names_than_are_counted_the_frequent_and_the_similar_ones_stay() -> None:
    tally = FieldTally(["note"])
    records, new_names = 6_000, 20
    for record in range(records):
        names = {f"r{record}n{number}" for number in range(new_names)}
        tally.add(names | ({"z of a hundred"} if record % 100 == 0 else set()) | ({"Note"} if record == 7 else set()))
    assert records * new_names > 2 * MOST_COUNTED
    found = tally.counts()
    assert found.records == records
    assert len(found.names) == MOST_KEPT
    lost = 2 * records * new_names // MOST_COUNTED
    assert records // 100 - lost - 1 <= found.names["z of a hundred"] <= records // 100
    assert (found.names["Note"], found.similar) == (1, {"Note": "note"})
    assert len(tally._names) + len(tally._shown) <= 2 * (MOST_COUNTED + new_names)


def test_counts_travel_as_text() -> None:
    counts = Undeclared(3, Counter({"größe": 2, 'a"b': 1, "\\x00": 3}), {"größe": "groesse"})
    text = as_text(counts)
    assert text is not None
    assert from_text(text) == counts
    assert as_text(Undeclared()) is None
