"""Records in quarantine of a real stream, put through again once what made them bad is mended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import psutil
import pytest

from millrace import spec
from millrace.domain.plan import Plan, PlanStatus, StoredPlan
from millrace.domain.quality.books import Balance, Reconciliation
from millrace.domain.quality.recompute import Difference, Likeness
from millrace.embedded.stack import Stack
from millrace.errors import StalePlanError
from millrace.usecases import plans, quality_books
from millrace.usecases.redrive import make_plan, selection_of
from millrace.wiring import Platform, open_platform
from support.apps import App
from support.recomputing import differences, recompute
from support.waiting import Deadline, eventually, exit_code_of, joined

FIRST_BAD = 10_000_000
SCHEMA = "id INT NOT NULL, name STRING NOT NULL"
TRANSFORM = """
    from pyspark.sql import functions as F

    def transform(inputs, tables):
        (frame,) = inputs.values()
        several = F.when(F.col("id") % 10 == 3, F.array(F.lit(0), F.lit(1))).otherwise(F.array(F.lit(0)))
        kept = frame.where("id % 10 <> 7").withColumn("_ordinal", F.explode(several))
        return kept.select("id", "name", "_source", "_ordinal")
"""


@pytest.fixture
def servers(kafka: Stack, postgres: Stack) -> Stack:
    return postgres


def events(first: int, end: int, **more: object) -> list[dict[str, object]]:
    return [{"id": n, "name": f"n {n}", **more} for n in range(first, end)]


def nameless(first: int, end: int) -> list[dict[str, object]]:
    return [{"id": n} for n in range(first, end)]


def planned(app: App, **selected: Any) -> Plan:
    asked: dict[str, Any] = {"rule": "", "since": "", "offsets": [], "now": datetime.now(UTC), **selected}
    return make_plan(open_platform(app.settings), app.stream, selection_of(**asked), by="tests", reason="to try it")


def run(app: App, plan: Plan) -> StoredPlan:
    return plans.run(open_platform(app.settings), plan.id, actor="tests", reason="to try it")


def books(app: App) -> Reconciliation:
    platform: Platform = open_platform(app.settings)
    pipeline = spec.load_pipeline(app.root, app.pipeline)
    return quality_books.reconcile(platform, pipeline, pipeline.stream("events"), actor="tests", deep=True)


def mend(app: App, old: str, new: str) -> None:
    text = app.declaration.read_text()
    assert text.count(old) == 1
    app.declaration.write_text(text.replace(old, new))


def test_what_a_mended_schema_lets_pass_becomes_rows_once_and_can_be_made_again(servers: Stack) -> None:
    raising = TRANSFORM.replace('select("id"', "selectExpr(\"if(id IN (15, 905), raise_error('no'), id) AS id\"")
    app = App(servers, schema=SCHEMA, transform=raising)
    app.produce([*events(0, 20), b"nope", None, *nameless(900, 910), *events(20, 40)])
    expected = sum(2 if n % 10 == 3 else 1 for n in range(40) if n % 10 != 7 and n != 15)
    with app.running():
        app.until(lambda: (len(app.rows()), len(app.quarantine())) == (expected, 13), "all rows")

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
    assert (len(app.rows()), len(app.quarantine())) == (expected, 13)
    done = run(app, plan)
    assert done.status is PlanStatus.DONE
    assert [id_ for (id_,) in app.rows(where="id >= 900")] == [900, 901, 902, 903, 903, 904, 906, 908, 909]
    assert app.quarantine() == [("not_json",), ("null_value",), ("transform_failed",), ("transform_failed",)]
    found = books(app)
    assert (found.balance, found.findings) == (Balance.BALANCED, ())
    assert (found.sums.rows, found.sums.quarantined, found.sums.dropped) == (expected + 9, 4, 5)
    with pytest.raises(StalePlanError):
        run(app, plan)

    with app.database() as connection:
        connection.execute(f"UPDATE {app.table} SET name = 'x' WHERE id = 11")
        connection.execute(f"DELETE FROM {app.table} WHERE id = 904 OR (id = 13 AND _ordinal = 1)")
    made = recompute(app)
    assert (made.likeness, made.records, made.alike) == (Likeness.DIFFERENT, 52, expected + 9 + 4 - 3)
    assert {key: one.rows for key, one in differences(made).items()} == {
        (Difference.CHANGED, "name"): 1,
        (Difference.UNSTORED, ""): 2,
    }


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
            if "millrace.runtime.redrive" in child.cmdline():
                found.append(child)
    return found


def is_gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.full
def test_killed_and_run_twice_at_once_beside_a_stream_under_load_each_record_passes_once(servers: Stack) -> None:
    app = App(servers, schema=SCHEMA, transform=TRANSFORM)
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
            begun = plans.show(open_platform(app.settings), plan.id)
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
    done = plans.show(open_platform(app.settings), plan.id)
    assert dict(done.steps[0].detail)["became_rows"] == str(len(bad))
