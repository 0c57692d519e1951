"""The hourly look at what topics keep, as a task runs it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.errors import UnreachableError
from millrace.usecases.retention.check import Checked
from millrace.usecases.retention.growth import Grown
from support.declarations import example_project

WELL = Checked(told=("a table",))


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What each part of the look finds, to be replaced; all is well."""
    from millrace.airflow.shared import settings
    from millrace.usecases.retention import check as retention
    from millrace.usecases.retention import growth, holds

    found: dict[str, Any] = {"lines": [], "overdue": [], "grown": Grown({}, ()), "checked": WELL}
    platform = SimpleNamespace(settings=SimpleNamespace(root=example_project(tmp_path)))
    monkeypatch.setattr(settings, "airflow_platform", lambda: platform)

    def told(name: str) -> Callable[..., Any]:
        def answer(*_: object, **__: object) -> Any:
            if isinstance(found[name], Exception):
                raise found[name]
            return found[name]

        return answer

    monkeypatch.setattr(holds, "end_due", told("lines"))
    monkeypatch.setattr(holds, "overdue", told("overdue"))
    monkeypatch.setattr(growth, "foresee", told("grown"))
    monkeypatch.setattr(retention, "check", told("checked"))
    return found


def run() -> None:
    from millrace.airflow.retention.operators import CheckRetention

    context: Any = {}
    CheckRetention(task_id="check", pipeline="shop").execute(context)


@pytest.mark.usefixtures("parts")
def test_it_is_green_where_all_is_well() -> None:
    run()


def test_a_hold_that_ended_is_well_and_one_that_waits_is_red(parts: dict[str, Any]) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    parts["lines"] = ["orders: its hold has ended"]
    run()
    parts["overdue"] = ["orders"]
    with pytest.raises(AirflowFailException, match="orders: its hold has ended"):
        run()


def test_every_breach_is_in_the_one_error(parts: dict[str, Any]) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    parts["grown"] = Grown({}, (), new=["a disk is full soon"], known=["another was before"])
    parts["checked"] = Checked(wrong=["a reader is late"], known=["a topic was large before"])
    with pytest.raises(AirflowFailException) as caught:
        run()
    assert str(caught.value).splitlines() == ["a disk is full soon", "a reader is late"]


def test_a_part_that_cannot_be_done_keeps_no_other_from_it_and_is_tried_again(parts: dict[str, Any]) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    parts["lines"] = UnreachableError("the control database does not answer")
    with pytest.raises(UnreachableError):
        run()
    parts["checked"] = Checked(wrong=["a reader is late"])
    with pytest.raises(AirflowFailException, match=r"(?s)a reader is late.*the control database does not answer"):
        run()
