"""The DAG that holds the books: what its tasks do with what a run finds, and who triggers it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.domain.quality.books import Fault, Finding, Reconciliation, Sums
from millrace.domain.quality.ranges import Mark
from millrace.domain.topics.offsets import TopicPartition
from millrace.errors import UnreachableError
from support.declarations import CHECKOUT, example_project, upsert_instead

P0 = TopicPartition("shop.purchases", "id", 0)
AT = datetime(2026, 5, 4, 12, tzinfo=UTC)
REACHED = Mark(1, {P0: 100})
SUMS = Sums(100, 80, 5, 10, 5, 15)


def ran(*findings: Finding, reached: Mark = REACHED) -> Reconciliation:
    return Reconciliation("shop.purchases", AT, AT, reached, reached, reached, SUMS, findings, identity=7)


class Run:
    """One run of the task: what the books say, what is asked of them, what stands in XCom."""

    def __init__(self) -> None:
        self.found: Reconciliation | Exception = ran()
        self.asked: list[Any] = []
        self.counts: dict[str, Any] = {}
        self.params: dict[str, Any] = {"stream": None, "deep": False}

    def reconcile_on(self, *_: object, **asked: Any) -> tuple[Reconciliation]:
        self.asked.append(asked)
        if isinstance(self.found, Exception):
            raise self.found
        return (self.found,)

    def xcom_push(self, key: str, value: Any) -> None:
        self.counts[key] = value

    def __call__(self) -> None:
        from millrace.airflow.quality.operators import ReconcileBooks

        context: Any = {"ti": self, "params": self.params}
        ReconcileBooks(task_id="purchases", pipeline="shop", stream="purchases").execute(context)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    from millrace.airflow.shared import settings
    from millrace.usecases.quality import books as quality_books

    made = Run()
    platform = SimpleNamespace(settings=SimpleNamespace(root=example_project(tmp_path)))
    monkeypatch.setattr(settings, "airflow_platform", lambda: platform)
    monkeypatch.setattr(quality_books, "reconcile_on", made.reconcile_on)
    return made


def test_it_is_green_where_the_books_balance_and_leaves_numbers(run: Run) -> None:
    run()
    assert run.counts == {
        "counts": {
            "run": 7,
            "balance": "balanced",
            "offsets": 100,
            "rows": 80,
            "quarantined": 5,
            "dropped": 10,
            "gaps": 5,
            "left": 0,
        }
    }
    assert (run.asked[0]["deep"], run.asked[0]["actor"]) == (False, "dag:shop.books")


def test_it_is_red_with_the_ranges_named(run: Run) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    run.found = ran(
        Finding(Fault.MISSING, P0, ((3, 5), (9, 10)), 3, 2), Finding(Fault.UNWITNESSED, P0, ((20, 21),), 1, 1, "why")
    )
    with pytest.raises(AirflowFailException) as caught:
        run()
    assert str(caught.value).splitlines() == [
        "missing: shop.purchases/0 [3, 5) [9, 10), 3 offsets",
        "unwitnessed: shop.purchases/0 [20, 21), 1 offset: why",
    ]
    assert (run.counts["counts"]["missing"], run.counts["counts"]["unwitnessed"]) == (3, 1)


def test_what_is_not_known_is_red_too_and_a_long_list_is_cut(run: Run) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    run.found = ran(*[Finding(Fault.UNBOOKED, P0, ((n, n + 1),), 1, 1) for n in range(60)])
    with pytest.raises(AirflowFailException, match=r"and 10 more$"):
        run()


def test_where_nothing_was_ever_written_it_is_skipped(run: Run) -> None:
    from airflow.sdk.exceptions import AirflowSkipException

    run.found = ran(reached=Mark())
    with pytest.raises(AirflowSkipException, match="the stream has written nothing yet"):
        run()


def test_the_form_asks_for_one_stream_and_for_the_first_offset(run: Run) -> None:
    from airflow.sdk.exceptions import AirflowSkipException

    run.params = {"stream": "another", "deep": True}
    with pytest.raises(AirflowSkipException):
        run()
    assert run.asked == []
    run.params = {"stream": "purchases", "deep": True}
    run()
    assert run.asked[0]["deep"] is True


@pytest.mark.parametrize("alike", [True, False])
def test_the_form_has_rows_made_again_and_is_red_where_one_differs(
    run: Run, monkeypatch: pytest.MonkeyPatch, alike: bool
) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    from millrace.domain.quality.recompute import Apart, Difference, Recomputed
    from millrace.usecases.quality import recompute as quality_recompute

    apart = () if alike else (Apart(Difference.UNMADE, "", 1, ()),)
    found, asked = Recomputed(100, 90, compared=90, alike=90, apart=apart), list[int]()
    monkeypatch.setattr(quality_recompute, "recompute", lambda *_, sample, **more: asked.append(sample) or found)
    run()
    run.params = {"stream": "purchases", "deep": False, "sample": 100}
    if alike:
        run()
    else:
        with pytest.raises(AirflowFailException, match="stored, and the app makes no row of the record: 1"):
            run()
    assert asked == [100]


def test_of_a_stream_that_upserts_no_row_is_made_again_and_the_log_says_so(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from millrace.airflow.quality.operators import ReconcileBooks

    upsert_instead(tmp_path)
    told = list[str]()
    log = SimpleNamespace(info=lambda *_: None, warning=lambda text, *words: told.append(text % words))
    monkeypatch.setattr(ReconcileBooks, "log", log)
    run.params = {"stream": "purchases", "deep": False, "sample": 100}
    run()
    assert run.counts["counts"]["balance"] == "balanced"
    lack = "an upserted table has the last row of each key, not the row of each offset"
    assert told[-1] == f"no row is recomputed: {lack}"


def test_a_server_that_is_away_is_tried_again(run: Run) -> None:
    run.found = UnreachableError("the sink database does not answer")
    with pytest.raises(UnreachableError):
        run()


@pytest.mark.parametrize(("form", "before"), [("rewind", "verify"), ("redrive", "run")])
def test_it_runs_daily_and_after_a_form_that_changed_a_stream_for_that_stream(
    monkeypatch: pytest.MonkeyPatch, form: str, before: str
) -> None:
    from millrace.airflow.pipeline import pipeline_dags

    monkeypatch.setenv("AIRFLOW__CORE__DAGS_FOLDER", str(CHECKOUT / "dags"))
    dags = pipeline_dags("shop")
    minute, hour, *rest = dags["shop.books"].schedule.split()
    assert (minute.isdigit(), hour.isdigit(), rest) == (True, True, ["*"] * 3)
    assert [task.task_id for task in dags["shop.books"].tasks] == ["purchases"]
    last = dags[f"shop.{form}"].get_task("books")
    assert last.upstream_task_ids == {before}
    from airflow.sdk.exceptions import DagRunTriggerException

    with pytest.raises(DagRunTriggerException) as caught:
        last.execute({"params": {"stream": "purchases"}})
    assert (caught.value.trigger_dag_id, caught.value.conf) == ("shop.books", {"stream": "purchases"})
    assert caught.value.dag_run_id.startswith(f"after_{form}__")
