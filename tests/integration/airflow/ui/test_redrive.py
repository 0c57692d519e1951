"""Records in quarantine redriven from Airflow's form, by a person in chromium: mend, plan, confirm, run, books.

With MILLRACE_SCREENSHOTS naming a folder, every page that was looked at is kept there as a picture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from playwright.sync_api import Page

from millrace.domain.plans.plan import PlanStatus
from support.ui.airflow_pipeline import AirflowPipeline
from support.ui.airflow_ui import AirflowUser
from support.ui.plan_ui import Form, query, started
from support.waiting import Deadline, eventually

if TYPE_CHECKING:
    from millrace.embedded.stack import Stack

pytestmark = pytest.mark.full

GOOD, WITHOUT_UNIT, AFTER_THE_MEND = range(10), range(10, 13), range(13, 14)
TASKS = ("plan", "confirm", "run", "books")
REASON = "since the new till a `unit` **may** be | missing"
SCHEMA = "number INT NOT NULL, unit STRING NOT NULL"
MENDED = "number INT NOT NULL, unit STRING"
TRANSFORM = """\
def transform(inputs, tables):
    (numbers,) = inputs.values()
    return numbers.select("number", "unit", "_source")
"""


@pytest.fixture
def pipeline(stack: Stack) -> Iterator[AirflowPipeline]:
    with started(AirflowPipeline(stack, AirflowUser(stack), "redriven", TRANSFORM, schema=SCHEMA)) as made:
        yield made


def quarantine(pipeline: AirflowPipeline) -> list[tuple[Any, ...]]:
    """Rule, partition and offset of each record in quarantine, and all that is known of it."""
    return query(
        pipeline,
        'SELECT rule, partition, "offset", bad::text FROM millrace.quarantine AS bad '
        f"WHERE stream = '{pipeline.stream}' ORDER BY 1, 2, 3",
    )


def rows(pipeline: AirflowPipeline) -> list[tuple[Any, ...]]:
    """Number and unit of each row, its partition and offset, and which transaction wrote it."""
    return query(
        pipeline, f"SELECT number, unit, _partition, _offset, xmin::text FROM {pipeline.stream} ORDER BY number"
    )


def until_there_are(pipeline: AirflowPipeline, rows_there: int, bad_there: int) -> None:
    eventually(
        lambda: (len(rows(pipeline)), len(quarantine(pipeline))) == (rows_there, bad_there),
        within=Deadline.STREAM,
        what=f"{rows_there} rows of {pipeline.stream}, and {bad_there} records in quarantine",
        ignoring=(psycopg.errors.UndefinedTable,),
    )


def test_a_redrive_from_the_form_is_confirmed_and_run_once(operator: Page, pipeline: AirflowPipeline) -> None:
    form = Form(operator, pipeline, "redrive", TASKS)
    pipeline.produce(GOOD, unit="kg")
    pipeline.produce(WITHOUT_UNIT)
    pipeline.send(b"no JSON")
    until_there_are(pipeline, len(GOOD), len(WITHOUT_UNIT) + 1)
    bad = quarantine(pipeline)
    assert [entry[0] for entry in bad] == ["missing_field"] * len(WITHOUT_UNIT) + ["not_json"]
    *without_unit, no_json = bad

    pipeline.redeploy(schema=MENDED)
    pipeline.produce(AFTER_THE_MEND)
    until_there_are(pipeline, len(GOOD) + len(AFTER_THE_MEND), len(bad))
    written = rows(pipeline)

    rejected = form.ask(reason=REASON)
    form.answer(rejected, "Reject", shown=[f"become rows {len(WITHOUT_UNIT)}", "stay not json"])
    form.wait_for(rejected, plan="success", confirm="success", run="skipped", books="skipped")
    assert form.plan_of(rejected).status is PlanStatus.REFUSED
    assert (rows(pipeline), quarantine(pipeline)) == (written, bad)

    run = form.ask(reason=REASON, chosen={"rule": "missing_field"})
    form.answer(run, "Approve", shown=[f"become rows {len(WITHOUT_UNIT)}", "only rule"])
    form.see_all_green(run)
    assert form.books() == ["success"]

    done = form.plan_of(run)
    assert (done.status, done.confirmed) == (PlanStatus.DONE, True)
    assert done.asked
    assert done.asked.by == "operator"
    assert done.plan.reason == REASON
    assert dict(done.plan.about)["only_rule"] == "missing_field"
    left = rows(pipeline)
    assert [row[:2] for row in left] == [
        (number, "kg" if number in GOOD else None) for number in (*GOOD, *WITHOUT_UNIT, *AFTER_THE_MEND)
    ]
    assert [row for row in left if row[0] not in WITHOUT_UNIT] == written
    assert sorted(row[2:4] for row in left if row[0] in WITHOUT_UNIT) == [entry[1:3] for entry in without_unit]
    assert quarantine(pipeline) == [no_json]

    form.clear(run, "run")
    assert form.end_of(run) == "success"
    assert form.plan_of(run) == done
    assert (rows(pipeline), quarantine(pipeline)) == (left, [no_json])
