"""Rules held against a real sink: exact among a million rows, whole in the face of faults, and without a value."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from millrace.domain.quality.results import Outcome
from millrace.domain.quality.rules import (
    Compare,
    Comparison,
    Exists,
    Fresh,
    HasType,
    InSet,
    Matches,
    NotNull,
    Query,
    Range,
    RowCondition,
    RowCount,
    Rule,
    Unique,
    Volume,
)
from millrace.errors import MillraceError, UnreachableError
from support.quality.sinks import TOPIC, Sink, open_sink, whole
from support.waiting import Deadline, eventually, joined

if TYPE_CHECKING:
    from support.stack.control_databases import Databases

ROWS = 4_000
TABLE = "quality.rows"


@pytest.fixture(scope="module")
def opened(control_databases: Databases) -> Iterator[Sink]:
    """The database."""
    with open_sink(control_databases) as made:
        yield made


@pytest.fixture
def sink(opened: Sink) -> Sink:
    """The database with a table of sound rows."""
    opened.make(TABLE, ROWS)
    return opened


BROKEN = {  # which rows, by n mod 120, and how: six in 120 are 5 %
    "null": ("customer = NULL", 0),
    "type": ("customer = 'x' || customer", 20),
    "bound": ("amount = -amount - 1", 40),
    "set": ("kind = 'z'", 60),
    "order": ("score = -1", 80),
    "nan": ("score = 'NaN'", 100),
}
RULES = [
    Rule("null", NotNull("customer")),
    Rule("type", Matches("customer", "^c[0-9]{4}$")),
    Rule("bound", Range("amount", 0, 1000)),
    Rule("set", InSet("kind", ("a", "b", "c"))),
    Rule("order", RowCondition("score >= 0")),
    Rule("nan", Range("score", min=-1)),
    Rule("twice", Unique(("happened",))),
    Rule("once", Query("select _topic_id, _partition, _offset from {rows} where amount < 0")),
]


@pytest.mark.parametrize("rows", [pytest.param(24_000), pytest.param(1_000_000, marks=pytest.mark.full)])
def test_each_of_six_ways_to_be_broken_is_counted_exactly(opened: Sink, rows: int) -> None:
    opened.make(TABLE, rows)
    number = "(_offset * 4 + _partition) % 120"
    for change, place in BROKEN.values():
        opened.connection.execute(f"UPDATE {TABLE} SET {change} WHERE {number} = {place}")

    found = opened.hold(TABLE, RULES, whole(rows))

    each = {name: len(range(place, rows, 120)) for name, (_, place) in BROKEN.items()}
    assert found.rows == rows
    assert {name: result.broken for name, result in found.results.items()} == {
        **each,
        "once": each["bound"],
        "twice": 0,
    }
    first = found.results["set"].sources[0]
    assert (first.topic, (first.offset * 4 + first.partition) % 120) == (TOPIC, 60)


def test_the_rows_of_a_range_are_found_by_the_key(sink: Sink) -> None:
    from millrace.adapters.quality.suite import condition_of, rows_of

    sink.make(TABLE, 200_000)
    few = [one.__class__(one.partition, 40_000, 41_000) for one in whole(200_000)]
    with psycopg.connect(**sink.database.working.keywords()) as connection:
        plan = connection.execute(f"EXPLAIN {rows_of(TABLE, condition_of(few, 'amount > 1'))}").fetchall()

    text = "\n".join(line for (line,) in plan)
    assert "rows_pkey" in text
    assert "Seq Scan" not in text
    assert sink.hold(TABLE, [Rule("n", RowCount(4000, 4000))], few).results["n"].outcome is Outcome.PASSED


def test_the_library_asks_for_no_row(sink: Sink) -> None:
    """Every statement of a check gives one row of counts, but for those about sources."""
    from millrace.adapters.quality import session as module

    answered: list[tuple[str, int]] = []
    sa = module.sa

    def after(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        answered.append((statement, cursor.rowcount))

    sa.event.listen(sa.engine.Engine, "after_cursor_execute", after)
    try:
        sink.hold(TABLE, [*RULES, Rule("c", Compare("quantity", Comparison.LESS, "amount"))], whole(ROWS))
    finally:
        sa.event.remove(sa.engine.Engine, "after_cursor_execute", after)
    rows = [
        (statement, count)
        for statement, count in answered
        if "pg_catalog" not in statement and "set_config" not in statement and count > 1
    ]
    assert all("_topic_id, _partition, _offset" in statement for statement, _ in rows), rows
    assert all(count <= 20 for _, count in rows)


@pytest.mark.parametrize(
    ("change", "rule", "said"),
    [
        ("DROP COLUMN score", Rule("r", Range("score", min=0)), "column `score` does not exist"),
        ("RENAME COLUMN score TO points", Rule("r", Range("score", min=0)), "column `score` does not exist"),
        ("ALTER COLUMN amount TYPE text", Rule("r", Range("amount", min=0)), "text has no range"),
        ("ALTER COLUMN kind TYPE int USING 1", Rule("r", Matches("kind", "a")), "`regex` is for text"),
        ("DROP COLUMN score", Rule("r", RowCondition("score > 0")), 'column "score" does not exist'),
        ("DROP COLUMN score", Rule("r", Query("select score from {rows}")), 'column "score" does not exist'),
        ("ADD COLUMN more int", Rule("r", RowCondition("customer + 1 > 0")), "operator does not exist"),
        ("ADD COLUMN more int", Rule("r", RowCondition("customer::int > 0")), "InvalidTextRepresentation"),
        ("ADD COLUMN more int", Rule("r", Matches("customer", "(")), "InvalidRegularExpression"),
        ("ADD COLUMN more int", Rule("r", Exists("customer", "quality.gone", "id")), "does not exist"),
        ("ADD COLUMN more int", Rule("r", RowCondition("1 / (quantity - 1) > 0")), "DivisionByZero"),
    ],
    ids=str,
)
def test_a_rule_that_cannot_be_tried_says_why_and_leaves_the_others_alone(
    sink: Sink, change: str, rule: Rule, said: str
) -> None:
    sink.connection.execute(f"ALTER TABLE {TABLE} {change}")
    others = [Rule("given", NotNull("customer")), Rule("small", Range("quantity", 1, 5))]

    found = sink.hold(TABLE, [others[0], rule, others[1]], whole(ROWS)).results

    assert found["r"].outcome is Outcome.ERROR
    assert said in found["r"].detail
    assert (found["given"].outcome, found["small"].broken) == (Outcome.PASSED, ROWS // 2)


def test_a_rule_that_no_row_is_about_is_not_held_to_be_kept(sink: Sink) -> None:
    found = sink.hold(TABLE, [Rule("none", NotNull("customer"), where="quantity > 1000")], whole(ROWS)).results
    assert (found["none"].outcome, found["none"].rows) == (Outcome.SKIPPED, 0)


def test_a_check_that_takes_too_long_is_an_error_of_the_rules_that_are_left(sink: Sink) -> None:
    rules = [Rule(f"slow_{n}", Query("select pg_sleep(0.2) from {rows} limit 5")) for n in range(4)]
    found = sink.hold(TABLE, rules, whole(ROWS), check=timedelta(seconds=1.5)).results
    assert found["slow_3"].outcome is Outcome.ERROR
    assert found["slow_3"].detail == "the check took too long and was ended"


def test_two_rules_that_say_the_same_are_two(sink: Sink) -> None:
    sink.connection.execute(f"UPDATE {TABLE} SET customer = NULL WHERE _offset = 0")
    found = sink.hold(TABLE, [RULES[0], replace(RULES[0], name="again")], whole(ROWS)).results
    assert {name: result.broken for name, result in found.items()} == {"null": 4, "again": 4}


def test_a_type_that_changed_is_told(sink: Sink) -> None:
    rules = [Rule("amount", HasType("amount", "numeric(12,2)")), Rule("gone", HasType("gone", "text"))]
    found = sink.hold(TABLE, rules, whole(ROWS)).results
    assert found["amount"].outcome is Outcome.PASSED
    assert (found["gone"].outcome, found["gone"].detail) == (Outcome.FAILED, "gone is not there, declared text")
    sink.connection.execute(f"ALTER TABLE {TABLE} ALTER COLUMN amount TYPE numeric(14,2)")
    assert "amount is numeric(14,2)" in sink.hold(TABLE, rules, whole(ROWS)).results["amount"].detail


def test_a_table_that_is_gone_or_empty(sink: Sink) -> None:
    sink.connection.execute(f"DELETE FROM {TABLE}")
    found = sink.hold(TABLE, [Rule("n", NotNull("customer")), Rule("some", RowCount(1))], whole(ROWS))
    assert (found.rows, found.results["n"].outcome, found.results["some"].outcome) == (
        0,
        Outcome.SKIPPED,
        Outcome.FAILED,
    )
    sink.connection.execute(f"DROP TABLE {TABLE}")
    assert sink.hold(TABLE, RULES, whole(ROWS)).columns == {}


def test_a_table_that_is_locked_is_not_waited_for_for_ever(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    from millrace.adapters.quality import session

    monkeypatch.setattr(session, "LONGEST_LOCK", timedelta(milliseconds=200))
    with psycopg.connect(**sink.database.owner.keywords()) as other:
        other.execute(f"LOCK TABLE {TABLE} IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(MillraceError, match="lock timeout"):
            sink.hold(TABLE, RULES, whole(ROWS))
    assert sink.hold(TABLE, RULES[:1], whole(ROWS)).results["null"].outcome is Outcome.PASSED


def test_what_would_run_for_ever_is_ended_and_the_rest_is_checked(sink: Sink) -> None:
    sink.connection.execute(f"UPDATE {TABLE} SET customer = repeat('a', 4000) || 'b' WHERE _offset < 100")
    endless = Rule("endless", Matches("customer", r"^(.*)(.*)\1\2$"))
    slow = Rule("slow", Query("select 1 from {rows} as a, {rows} as b, {rows} as c"))
    limits = {"statement": timedelta(milliseconds=500), "rule": timedelta(seconds=1)}

    found = sink.hold(TABLE, [endless, slow, Rule("given", NotNull("customer"))], whole(ROWS), **limits).results

    assert [found[name].detail for name in ("endless", "slow")] == ["the check took too long and was ended"] * 2
    assert found["given"].outcome is Outcome.PASSED


def test_a_table_that_was_never_analysed_is_checked_no_slower_than_it_is_sorted(sink: Sink) -> None:
    """As after `up`: PostgreSQL believes such a table to be small, and what joins it goes row by row."""
    sink.make(TABLE, 80_000, analysed=False)
    sink.connection.execute("CREATE TABLE quality.known AS SELECT DISTINCT customer AS id FROM quality.rows")
    rules = [
        Rule("twice", Unique(("customer", "amount"))),
        Rule("once", Unique(("happened",))),
        Rule("known", Exists("customer", "quality.known", "id")),
    ]
    found = sink.hold(TABLE, rules, whole(80_000), statement=timedelta(seconds=15)).results
    assert {name: result.broken for name, result in found.items()} == {"twice": 80_000, "once": 0, "known": 0}


def test_a_server_that_ends_idle_transactions_is_no_obstacle(sink: Sink, control_databases: Databases) -> None:
    reader = sink.database.working.user
    control_databases.as_superuser(f"ALTER ROLE {reader} SET idle_in_transaction_session_timeout = '2s'")
    try:
        rules = [Rule("slow", Query("select pg_sleep(0.8) from {rows} limit 3")), RULES[0]]
        found = sink.hold(TABLE, rules, whole(ROWS)).results
    finally:
        control_databases.as_superuser(f"ALTER ROLE {reader} RESET idle_in_transaction_session_timeout")
    assert (found["slow"].broken, found["null"].outcome) == (3, Outcome.PASSED)


def test_a_server_that_goes_away_is_no_verdict(sink: Sink) -> None:
    killer = Rule("killer", Query("select pg_terminate_backend(pg_backend_pid()) from {rows}"))
    rules = [killer, Rule("also", RowCondition("pg_terminate_backend(pg_backend_pid())")), RULES[0]]
    with pytest.raises(UnreachableError):
        sink.hold(TABLE, rules, whole(ROWS))


def test_sql_of_people_is_not_run_by_a_role_that_may_write(sink: Sink) -> None:
    owning = Sink(replace(sink.database, working=sink.database.owner), sink.connection)
    found = owning.hold(TABLE, [Rule("q", Query("select 1 from {rows}")), RULES[0]], whole(ROWS)).results
    assert found["q"].outcome is Outcome.ERROR
    assert "may write the table" in found["q"].detail
    assert found["null"].outcome is Outcome.PASSED


def test_no_rule_can_write(sink: Sink) -> None:
    sink.connection.execute(
        "CREATE FUNCTION quality.spoil() RETURNS int LANGUAGE sql VOLATILE SECURITY DEFINER AS "
        f"'DELETE FROM {TABLE} RETURNING 1'"
    )
    rules = [Rule("q", Query("select quality.spoil() from {rows}")), Rule("c", RowCondition("quality.spoil() = 1"))]
    found = sink.hold(TABLE, rules, whole(ROWS)).results
    assert {result.outcome for result in found.values()} == {Outcome.ERROR}
    assert "ReadOnlySqlTransaction" in found["c"].detail
    assert sink.connection.execute(f"SELECT count(*) FROM {TABLE}").fetchone() == (ROWS,)


def test_all_rules_see_one_moment(sink: Sink) -> None:
    """Rows that go while a check is under way are counted by all of its rules or by none."""
    rules = [
        Rule("waits", RowCondition("pg_advisory_xact_lock_shared(4711) is not null")),
        Rule("rows", RowCount(ROWS, ROWS)),
        Rule("given", NotNull("customer")),
    ]
    sink.connection.execute("SELECT pg_advisory_lock(4711)")

    def empty() -> None:
        waits = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711 AND NOT granted"
        eventually(
            lambda: sink.connection.execute(waits).fetchone(),
            within=Deadline.THREAD,
            what="the first rule is under way",
        )
        sink.connection.execute(f"DELETE FROM {TABLE}")
        sink.connection.execute("SELECT pg_advisory_unlock(4711)")

    thread = threading.Thread(target=empty, daemon=True)
    thread.start()
    found = sink.hold(TABLE, rules, whole(ROWS))
    joined(thread, what="the deletion")
    assert (found.rows, found.results["given"].rows) == (ROWS, ROWS)
    assert found.results["rows"].outcome is Outcome.PASSED
    assert sink.connection.execute(f"SELECT count(*) FROM {TABLE}").fetchone() == (0,)


def test_freshness_and_volume(sink: Sink) -> None:
    hour = timedelta(hours=1)
    rules = [
        Rule("event", Fresh(hour, "happened")),
        Rule("record", Fresh(hour)),
        Rule("unknown", Fresh(hour)),
        Rule("usual", Volume(0.5)),
        Rule("unusual", Volume(0.5)),
        Rule("untold", Volume(0.5)),
    ]
    usual = {"usual": (10, 30), "unusual": (21, 30), "untold": "nobody knows"}
    few = [one.__class__(one.partition, 0, 5) for one in whole(ROWS)]

    found = sink.hold(TABLE, rules, whole(ROWS), gained=few, known_age={"record": 3601.0}, usual=usual)

    outcomes = {name: result.outcome.value for name, result in found.results.items()}
    assert outcomes == {
        "event": "passed",
        "record": "failed",
        "unknown": "error",
        "usual": "passed",
        "unusual": "failed",
        "untold": "skipped",
    }
    assert (found.gained_rows, found.ages) == (20, {"event": 0.0, "record": 3601.0})
    sink.connection.execute(f"UPDATE {TABLE} SET happened = '2031-01-01' WHERE quantity = 1")
    sink.connection.execute(f"UPDATE {TABLE} SET happened = happened - interval '2 hours' WHERE quantity <> 1")
    stale = sink.hold(TABLE, rules[:1], whole(ROWS)).results["event"]  # what lies in the future makes nothing fresh
    assert stale.outcome is Outcome.FAILED


def test_bounds_that_no_float_tells_apart_are_counted_apart(sink: Sink) -> None:
    """One of 2^53 and the next whole number, which as floats are the same."""
    edge = 2**53
    sink.connection.execute(f"ALTER TABLE {TABLE} ADD COLUMN large bigint")
    sink.connection.execute(f"UPDATE {TABLE} SET large = CASE WHEN _offset = 0 THEN {edge + 1} ELSE {edge} END")
    for type_ in ("bigint", "numeric"):
        sink.connection.execute(f"ALTER TABLE {TABLE} ALTER COLUMN large TYPE {type_}")
        rules = [Rule(f"most_{most}", Range("large", max=most)) for most in (edge, edge + 1, 2**63 - 1, 2**63, 10**20)]
        rules += [Rule(f"least_{least}", Range("large", min=-least)) for least in (2**63, 2**63 + 1)]
        rules += [Rule("wide", Range("large", min=-(10**20), max=edge)), Rule("far", Range("large", min=9, max=10**20))]
        rules += [Rule(f"known_{known}", InSet("large", (1, known))) for known in (edge, edge + 1)]
        found = sink.hold(TABLE, rules, whole(ROWS))
        assert [found.results[rule.name].broken for rule in rules] == [4, *[0] * 6, 4, 0, 4, ROWS - 4], type_
    sink.connection.execute(f"UPDATE {TABLE} SET large = CASE WHEN _offset = 0 THEN 0.10000000000000001 ELSE 0.1 END")
    rules = [Rule("most", Range("large", max=0.1)), Rule("more", Range("large", max=0.2))]
    rules += [Rule("known", InSet("large", (1, 0.1))), Rule("unknown", InSet("large", (1, 0.2)))]
    found = sink.hold(TABLE, rules, whole(ROWS))
    assert [found.results[rule.name].broken for rule in rules] == [4, 0, 4, ROWS]


@pytest.mark.parametrize("type_", ["smallint", "integer", "bigint"])
def test_no_value_of_a_set_is_rounded_to_the_type_of_another_one(sink: Sink, type_: str) -> None:
    sink.connection.execute(f"ALTER TABLE {TABLE} ADD COLUMN two {type_} DEFAULT 2")
    sets = ((1, 2.5), (1, 2**40), (2, 2**40), (1, 10**20))
    rules = [Rule(f"set_{number}", InSet("two", values)) for number, values in enumerate(sets)]
    found = sink.hold(TABLE, rules, whole(ROWS))
    assert [found.results[rule.name].broken for rule in rules] == [ROWS, ROWS, 0, ROWS]


PLANTED = "planted4711"


def test_no_value_of_a_row_is_anywhere(
    sink: Sink, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Every kind of rule, broken or failing by rows that hold what is looked for afterwards."""
    sink.connection.execute(
        f"UPDATE {TABLE} SET customer = '{PLANTED}', kind = '{PLANTED}', amount = 4711.47, score = 471147, "
        "quantity = 4711471, happened = '2001-04-07 11:47:11+00' WHERE _offset >= 100"
    )
    rules = [
        Rule("null", NotNull("customer"), where="kind <> 'x'"),
        Rule("shape", Matches("customer", "^c")),
        Rule("range", Range("amount", 0, 100)),
        Rule("scores", Range("score", 0, 100)),
        Rule("set", InSet("kind", ("a", "b", "c"))),
        Rule("twice", Unique(("customer",))),
        Rule("twice_both", Unique(("customer", "amount"))),
        Rule("condition", RowCondition("quantity < 100")),
        Rule("compare", Compare("quantity", Comparison.LESS, "score")),
        Rule("exists", Exists("customer", "quality.known", "id")),
        Rule("query", Query("select * from {rows} where quantity > 100")),
        Rule("fresh", Fresh(timedelta(hours=1), "happened"), where="quantity > 100"),
        Rule("cast", RowCondition("customer::int > 0")),
        Rule("cast_query", Query("select kind::numeric from {rows} where kind::numeric > 0")),
        Rule("raised", RowCondition("quality.raise(customer)")),
        Rule("table", RowCondition("customer::regclass is not null")),
        Rule("setting", RowCondition("current_setting(customer) = 'on'")),
        Rule("many", RowCount(max=10)),
    ]
    sink.connection.execute("CREATE TABLE quality.known (id text)")
    sink.connection.execute(
        "CREATE FUNCTION quality.raise(text) RETURNS bool LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'value %', $1; END $$"
    )
    with caplog.at_level(logging.DEBUG):
        found = sink.hold(TABLE, rules, whole(ROWS))

    outcomes = {result.outcome for result in found.results.values()}
    assert outcomes == {Outcome.FAILED, Outcome.ERROR, Outcome.PASSED}
    assert found.results["raised"].detail == "the database refused it: RaiseException (SQLSTATE P0001)"
    told = capfd.readouterr()
    for where in (found.page, repr(found.results), caplog.text, told.out, told.err):
        for value in (PLANTED, "4711.47", "471147", "4711471", "2001-04-07", "11:47:11"):
            assert value not in where
    for rule in rules:
        assert rule.name in found.page


def test_the_page_asks_nobody_for_anything(sink: Sink) -> None:
    page = sink.hold(TABLE, RULES, whole(ROWS)).page
    assert "<script" not in page
    assert "src=" not in page
    assert "http" not in page.replace("http-equiv", "")
