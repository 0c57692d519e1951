"""A real stream: its records become rows or go into quarantine, and pass once what made them bad is repaired."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import psutil
import pytest

from millrace import declarations
from millrace.domain.plans.plan import Plan, PlanStatus, StoredPlan
from millrace.domain.quality.books import Balance, Reconciliation
from millrace.domain.quality.recompute import Difference, Likeness
from millrace.embedded.stack import Stack
from millrace.errors import StalePlanError
from millrace.ports.platform import Platform
from millrace.usecases.plans import listing, running
from millrace.usecases.quality import books as quality_books
from millrace.usecases.quarantine.redrive import make_plan, selection_of
from millrace.wiring import open_platform
from support.quality.recomputing import differences, recompute
from support.streams.apps import App
from support.waiting import Deadline, eventually, exit_code_of, joined

FIRST_BAD = 10_000_000
SCHEMA = "id INT NOT NULL, name STRING NOT NULL"
TEMPLATE = """
    from pyspark.sql import functions as F

    def transform(inputs, tables):
        (frame,) = inputs.values()
        several = F.when(F.col("id") % 10 == 3, F.array(F.lit(0), F.lit(1))).otherwise(F.array(F.lit(0)))
        kept = frame.where("id % 10 <> 7").withColumn("_ordinal", F.explode(several))
        return kept.select({id}, {name}, "_source", "_ordinal")
"""
LENIENT_TRANSFORM = TEMPLATE.format(id='"id"', name='"name"')
REFUSED, RAISING, FORBIDDEN = 42, 88, 205
"""Ids of records: its row has a zero character, which COPY refuses; its row raises; a check of the table forbids it."""
STRICT_TRANSFORM = TEMPLATE.format(
    id=f"""F.when(F.col("id").isin({RAISING}, 905), F.raise_error(F.concat(F.lit("no "), "id")))
            .otherwise(F.col("id")).cast("int").alias("id")""",
    name=f'F.when(F.col("id") == {REFUSED}, F.char(F.lit(0))).otherwise(F.col("name")).alias("name")',
)
MICROSECONDS, NANOSECONDS = 1_764_000_000_000_000, 1_764_000_000_000_000_000
"""Timestamps of producers that do not count milliseconds."""


@pytest.fixture
def servers(kafka: Stack, postgres: Stack) -> Stack:
    return postgres


def events(first: int, end: int, **more: object) -> list[dict[str, object]]:
    return [{"id": n, "name": f"n {n}", **more} for n in range(first, end)]


def rows_of(number: int) -> int:
    """How many rows the transform makes of a good record."""
    return 2 if number % 10 == 3 else 1


def nameless(first: int, end: int) -> list[dict[str, object]]:
    return [{"id": n} for n in range(first, end)]


def planned(app: App, **selected: Any) -> Plan:
    asked: dict[str, Any] = {"rule": "", "since": "", "offsets": [], "now": datetime.now(UTC), **selected}
    return make_plan(open_platform(app.settings), app.stream, selection_of(**asked), by="tests", reason="to try it")


def run(app: App, plan: Plan) -> StoredPlan:
    return running.run(open_platform(app.settings), plan.id, actor="tests", reason="to try it")


def books(app: App) -> Reconciliation:
    platform: Platform = open_platform(app.settings)
    pipeline = declarations.load_pipeline(app.root, app.pipeline)
    return quality_books.reconcile(platform, pipeline, pipeline.stream("events"), actor="tests", deep=True)


def mend(app: App, old: str, new: str) -> None:
    text = app.declaration.read_text()
    assert text.count(old) == 1
    app.declaration.write_text(text.replace(old, new))


def counted(app: App) -> Counter[str]:
    """Return the number of records in quarantine by rule."""
    return Counter(rule for (rule,) in app.quarantine())


def test_records_become_rows_bad_ones_go_aside_and_pass_once_when_the_schema_is_repaired(servers: Stack) -> None:
    app = App(servers, schema=SCHEMA, transform=STRICT_TRANSFORM)
    app.produce([*events(0, 50), b"nope", None, *nameless(900, 910), *events(50, 100)])
    good = [n for n in range(100) if n % 10 != 7 and n not in (REFUSED, RAISING)]
    aside = Counter(not_json=1, null_value=1, missing_field=10, sink_refused=1, transform_failed=1)
    with app.running():
        app.until(lambda: len(app.rows()) >= sum(map(rows_of, good)), "all rows")
        assert app.rows() == [(n,) for n in good for _ in range(rows_of(n))]
        assert counted(app) == aside
        [(error,)] = [found[1:] for found in app.quarantine("rule, error") if found[0] == "transform_failed"]
        assert error == f"[USER_RAISED_EXCEPTION] no {RAISING} SQLSTATE: P0001"
        good += produce_with_a_refused_row(app)
        good += produce_far_timestamps(app)
    aside += Counter(sink_refused=2, far_timestamp=2)
    assert counted(app) == aside
    expected = sum(map(rows_of, good))
    assert len(app.rows()) == expected

    mend(app, "name STRING NOT NULL", "name STRING")
    plan = planned(app)
    [change] = plan.changes
    assert change.subject == f"{app.topic} missing_field"
    assert dict(change.before) == {"in_quarantine": "10"}
    assert dict(change.after) == {
        "in_quarantine": "1",
        "become_rows": "8, 9 rows in all",
        "stay_transform_failed": "1",
        "dropped_by_the_transform": "1",
    }
    assert (len(app.rows()), counted(app)) == (expected, aside)
    done = run(app, plan)
    assert done.status is PlanStatus.DONE
    assert [id_ for (id_,) in app.rows(where="id >= 900")] == [900, 901, 902, 903, 903, 904, 906, 908, 909]
    del aside["missing_field"]
    assert counted(app) == aside + Counter(transform_failed=1)
    found = books(app)
    assert (found.balance, found.findings) == (Balance.BALANCED, ())
    assert (found.sums.rows, found.sums.quarantined, found.sums.dropped) == (expected + 9, 9, 13)
    with pytest.raises(StalePlanError):
        run(app, plan)

    with app.database() as connection:
        connection.execute(f"UPDATE {app.table} SET name = 'x' WHERE id = 11")
        connection.execute(f"DELETE FROM {app.table} WHERE id = 904 OR (id = 13 AND _ordinal = 1)")
    made = recompute(app)
    assert (made.likeness, made.records, made.alike) == (Likeness.DIFFERENT, 142, expected + 9 + 9 - 3)
    assert {key: one.rows for key, one in differences(made).items()} == {
        (Difference.CHANGED, "name"): 1,
        (Difference.UNSTORED, ""): 2,
    }


def produce_with_a_refused_row(app: App) -> list[int]:
    """Let the table refuse a row of a batch; return the ids of its neighbours, which are stored."""
    before = len(app.quarantine())
    with app.database() as connection:
        connection.execute(f"ALTER TABLE {app.table} ADD CHECK (id <> {FORBIDDEN})")
    app.produce(events(200, 210))
    app.until(lambda: len(app.quarantine()) == before + 1, "the refused row in quarantine")
    app.until(lambda: app.rows(where="id = 209"), "its neighbours in the table")
    assert app.rows(where=f"id = {FORBIDDEN}") == []
    assert (b'{"id": 205, "name": "n 205"}',) in app.quarantine("value")
    return [n for n in range(200, 210) if n % 10 != 7 and n != FORBIDDEN]


def produce_far_timestamps(app: App) -> list[int]:
    """Produce to a new partition, twice with a timestamp in another unit; return the ids that become rows.

    Spark holds one of the two timestamps, and cannot even read the other.
    """
    app.grow(3)
    app.produce(events(300, 310), partition=2)
    app.until(lambda: app.rows("_partition", where="id = 309") == [(2,)], "the rows of the new partition")

    app.produce(events(310, 311), partition=2, timestamp=MICROSECONDS)
    app.produce([*events(311, 316), {"id": FORBIDDEN, "name": "again refused"}], partition=2)
    app.produce(events(316, 317), partition=2, timestamp=NANOSECONDS)
    app.produce(events(318, 320), partition=2)
    app.until(lambda: app.rows(where="id = 319"), "the records behind them")
    kept = [number for (number,) in app.rows(where="id BETWEEN 310 AND 319")]
    assert kept == [311, 312, 313, 313, 314, 315, 318, 319]
    far = [found for found in app.quarantine("timestamp_ms, timestamp, value") if found[1] is None]
    assert far == [
        (MICROSECONDS, None, b'{"id": 310, "name": "n 310"}'),
        (NANOSECONDS, None, b'{"id": 316, "name": "n 316"}'),
    ]
    return [*(n for n in range(300, 310) if n != 307), 311, 312, 313, 314, 315, 318, 319]


def command(app: App, *words: str, **more: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "millrace.cli.main", *words],
        env={**os.environ, "MILLRACE_ROOT": str(app.root)},
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **more,
    )


def jobs(of: subprocess.Popen[str]) -> list[psutil.Process]:
    """The processes of the job that a command has started."""
    found = []
    for child in psutil.Process(of.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it may end while it is looked at
            if "millrace.runtime.jobs.redrive" in child.cmdline():
                found.append(child)
    return found


def is_gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.full
def test_killed_and_run_twice_at_once_beside_a_stream_under_load_each_record_passes_once(servers: Stack) -> None:
    app = App(servers, schema=SCHEMA, transform=LENIENT_TRANSFORM)
    app.produce([*events(0, 100), *nameless(FIRST_BAD, FIRST_BAD + 3_000), b"nope"])
    bad = {n for n in range(FIRST_BAD, FIRST_BAD + 3_000) if n % 10 != 7}
    with app.running():
        app.until(lambda: len(app.quarantine()) == 3_001, "all records")
    mend(app, "name STRING NOT NULL", "name STRING")
    over = threading.Event()
    produced = [100]

    def load() -> None:
        while not over.wait(0.1):
            app.produce([*events(produced[0], produced[0] + 50), b"nope"])
            produced[0] += 50

    loading = threading.Thread(target=load)
    with app.running():
        loading.start()
        try:
            app.until(lambda: len(app.rows()) > 1_000, "the load")
            plan = planned(app, rule="missing_field")
            with command(app, "plans", "run", plan.id, start_new_session=True) as killed:
                assert killed.stderr is not None
                [job] = eventually(lambda: jobs(killed), within=Deadline.PROCESS, what="the job of the command")
                assert next(line for line in killed.stderr if "1,000 records put through" in line)
                os.kill(killed.pid, signal.SIGKILL)
                eventually(lambda: is_gone(job), within=Deadline.PROCESS, what="the end of its job")
            begun = listing.show(open_platform(app.settings), plan.id)
            ends = []
            with command(app, "plans", "run", plan.id) as one, command(app, "plans", "run", plan.id) as other:
                for each in (one, other):
                    ends.append(exit_code_of(each, within=Deadline.STREAM, what="a run of the plan"))
        finally:
            over.set()
            joined(loading, within=Deadline.PROCESS, what="the load's end")
        sent = produced[0]
        expected = sum(2 if n % 10 == 3 else 1 for n in [*range(sent), *bad] if n % 10 != 7)
        app.until(lambda: len(app.rows()) >= expected, "all rows")
    assert sorted(ends) == [0, 4]
    assert begun.status is PlanStatus.RUNNING  # it was killed in the midst
    assert {id_ for (id_,) in app.rows() if id_ >= FIRST_BAD} == bad
    assert len(app.rows()) == expected
    assert set(app.quarantine()) == {("not_json",)}
    found = books(app)
    assert (found.balance, found.findings) == (Balance.BALANCED, ())
    done = listing.show(open_platform(app.settings), plan.id)
    assert dict(done.steps[0].detail)["became_rows"] == str(len(bad))
