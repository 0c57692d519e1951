"""Records in quarantine of a real stream, put through again once what made them bad is mended."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from millrace import spec
from millrace.domain.plan import Plan, PlanStatus, StoredPlan
from millrace.domain.quality.books import Balance, Reconciliation
from millrace.embedded.stack import Stack
from millrace.errors import RefusedError, StalePlanError
from millrace.usecases import plans, quality_books
from millrace.usecases.redrive import make_plan, selection_of
from millrace.wiring import Platform, open_platform
from support.apps import App

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


def test_what_a_mended_schema_lets_pass_becomes_rows_once_and_the_books_balance(servers: Stack) -> None:
    app = App(servers, schema=SCHEMA, transform=TRANSFORM)
    app.produce([*events(0, 20), b"nope", None, *nameless(900, 910), *events(20, 40)])
    expected = sum(2 if n % 10 == 3 else 1 for n in range(40) if n % 10 != 7)
    with app.running():
        app.until(lambda: (len(app.rows()), len(app.quarantine())) == (expected, 12), "all rows")
    with pytest.raises(RefusedError, match="none of 12 records would leave quarantine"):
        planned(app)

    mend(app, "name STRING NOT NULL", "name STRING")
    plan = planned(app)
    print(plan)
    [change] = plan.changes
    assert change.subject == f"{app.topic} missing_field"
    assert dict(change.before) == {"in_quarantine": "10"}
    assert dict(change.after) == {
        "in_quarantine": "0",
        "become_rows": "9, 10 rows in all",
        "dropped_by_the_transform": "1",
    }
    assert (len(app.rows()), len(app.quarantine())) == (expected, 12)
    done = run(app, plan)
    print(done)
    assert done.status is PlanStatus.DONE
    assert [id_ for (id_,) in app.rows(where="id >= 900")] == [900, 901, 902, 903, 903, 904, 905, 906, 908, 909]
    assert app.quarantine() == [("not_json",), ("null_value",)]
    found = books(app)
    assert (found.balance, found.findings) == (Balance.BALANCED, ())
    assert (found.sums.rows, found.sums.quarantined, found.sums.dropped) == (expected + 10, 2, 5)
    with pytest.raises(StalePlanError):
        run(app, plan)
