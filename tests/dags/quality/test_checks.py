"""The DAG that checks quality: when it runs, and what its task does with what a check finds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.domain.quality.results import QualityCheck
from millrace.errors import UnreachableError
from millrace.usecases.quality.check import Checked
from support.declarations import example_project
from support.quality.checks_made import BROKEN, EMPTY, PASSED, UNTRIED, WARNED, made


class Run:
    """One run of the task: what the check finds, what it is asked, what stands in XCom."""

    def __init__(self) -> None:
        self.found: QualityCheck | Exception = made(PASSED)
        self.asked: list[Any] = []
        self.counts: dict[str, Any] = {}
        self.params: dict[str, str | None] = {"from": None, "to": None}

    def check_on(self, *_: object, window: Any, **__: object) -> tuple[Checked]:
        self.asked.append(window)
        if isinstance(self.found, Exception):
            raise self.found
        return (Checked(self.found, warned=tuple(map(str, self.found.warned)), evidence_problem="the bucket is away"),)

    def xcom_push(self, key: str, value: Any) -> None:
        self.counts[key] = value

    def __call__(self) -> None:
        from millrace.airflow.quality.operators import CheckQuality

        context: Any = {"ti": self, "params": self.params}
        CheckQuality(task_id="check", pipeline="shop", stream="purchases").execute(context)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    from millrace.airflow.shared import settings
    from millrace.usecases.quality import check as quality

    made_run = Run()
    platform = SimpleNamespace(settings=SimpleNamespace(root=example_project(tmp_path)))
    monkeypatch.setattr(settings, "airflow_platform", lambda: platform)
    monkeypatch.setattr(quality, "check_on", made_run.check_on)
    return made_run


def test_it_is_green_where_all_is_well_and_where_rules_only_warn(run: Run) -> None:
    run()
    run.found = made(PASSED, WARNED)
    run()
    assert run.counts == {
        "counts": {
            "check": 7,
            "verdict": "passed",
            "rows": 100,
            "passed": 1,
            "failed": 0,
            "warned": 1,
            "errors": 0,
            "skipped": 0,
        }
    }


def test_a_broken_rule_is_red_with_its_count_and_three_sources(run: Run) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    run.found = made(PASSED, BROKEN, UNTRIED, WARNED)
    with pytest.raises(AirflowFailException) as caught:
        run()
    assert str(caught.value).splitlines() == [
        "sane: 5 of 100 rows break it (range); from shop.purchases/0@0, shop.purchases/0@1, shop.purchases/0@2 ...",
        "lost: error: column `lost` does not exist (not_null)",
    ]
    assert (run.counts["counts"]["failed"], run.counts["counts"]["errors"]) == (1, 1)


def test_what_could_not_be_looked_at_is_red(run: Run) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    run.found = made(UNTRIED, rows=None, problem="table shop.purchases is not there")
    with pytest.raises(AirflowFailException, match=r"nothing could be checked: table shop\.purchases is not there"):
        run()


def test_no_rows_are_no_success(run: Run) -> None:
    from airflow.sdk.exceptions import AirflowSkipException

    run.found = made(EMPTY, rows=0)
    with pytest.raises(AirflowSkipException, match="the check found no rows"):
        run()
    assert run.counts["counts"]["verdict"] == "empty"


def test_a_database_that_is_away_is_tried_again(run: Run) -> None:
    run.found = UnreachableError("the sink database does not answer")
    with pytest.raises(UnreachableError):
        run()


def test_the_form_asks_for_a_window_with_two_ends(run: Run) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    run.params = {"from": "2026-05-04T00:00Z", "to": "2026-05-05T00:00Z"}
    run()
    assert run.asked[0][1] - run.asked[0][0] == timedelta(days=1)
    run.params = {"from": "", "to": ""}
    run()
    assert run.asked[1] is None
    for params in ({"from": "2026-05-04T00:00Z", "to": None}, {"from": "noon", "to": "2026-05-05T00:00Z"}):
        run.params = params
        with pytest.raises(AirflowFailException):
            run()


@pytest.mark.parametrize(
    ("every", "runs"),
    [("5m", 288), ("10m", 144), ("30m", 48), ("1h", 24), ("2h", 12), ("12h", 2), ("1d", 1)],
)
def test_it_runs_as_often_as_declared(every: str, runs: int) -> None:
    from croniter import croniter

    from millrace.airflow.shared.defaults import often
    from millrace.declarations.fields import parse_duration

    schedule = often("shop.quality.purchases", parse_duration(every))
    assert isinstance(schedule, str)
    day = datetime(2026, 5, 4, tzinfo=UTC)
    times = croniter(schedule, day - timedelta(seconds=1))
    found = [times.get_next(datetime) for _ in range(runs + 1)]
    assert found[runs - 1] < day + timedelta(days=1) <= found[runs]
    assert {later - earlier for earlier, later in pairwise(found)} == {parse_duration(every)}


def test_what_divides_no_day_is_a_time_between_runs() -> None:
    from millrace.airflow.shared.defaults import often

    assert often("x", timedelta(minutes=7)) == timedelta(minutes=7)
    assert often("x", timedelta(minutes=90)) == timedelta(minutes=90)
    assert often("x", timedelta(seconds=330)) == timedelta(seconds=330)
