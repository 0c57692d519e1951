"""The form of a pipeline that makes a plan, its tasks run by hand on a platform that has nothing but plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.domain.plans.plan import Change, ChangeResult, Plan, PlanKind, PlanStatus
from support.fakes.plans import FakePlans
from support.fakes.platform import PartsPlatform

RUN = "manual__1"
TRIGGERED = datetime(2026, 5, 1, 8, tzinfo=UTC)
DAY = timedelta(hours=24)


@dataclass(frozen=True)
class Form:
    """A DAG of pipeline `shop`, and the kind of plan and the change that it makes."""

    dag_id: str
    kind: PlanKind
    change: Change


class PlanForm:
    """A form that `anna` filled in.

    Attributes:
        params: what she filled in.
        run_in: the plans that were run, and by whom.
        outcome: the status a run of the plan gives it, or what it raises.
        results: what a run of the plan leaves of its changes.
    """

    def __init__(self, root: Path, form: Form, params: Mapping[str, Any]) -> None:
        self.form = form
        self.params = dict(params)
        self.plans = FakePlans()
        self.logged: list[tuple[str, str]] = []
        self.run_in: list[tuple[str, str]] = []
        self.outcome: PlanStatus | Exception = PlanStatus.DONE
        self.results: Sequence[ChangeResult] = ()
        self.user: str | None = "anna"
        self.triggered = TRIGGERED
        log = SimpleNamespace(append=lambda *, actor, action, subject, reason: self.logged.append((actor, action)))
        control = SimpleNamespace(plans=self.plans, log=log)
        self.platform: Any = PartsPlatform(settings=SimpleNamespace(root=root), control=control)

    def stand_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have the tasks meet this platform, whose operators are anna and bert, and its way to run a plan."""
        from millrace.airflow.shared import settings
        from millrace.domain.declaration.pipeline import Environment
        from millrace.usecases.declaration import environment
        from millrace.usecases.plans import running

        monkeypatch.setenv("MILLRACE_ROOT", str(Path(__file__).resolve().parents[3]))
        monkeypatch.setattr(settings, "airflow_platform", lambda: self.platform)
        monkeypatch.setattr(environment, "environment_of", lambda root: Environment("prod", (), ("anna", "bert")))
        monkeypatch.setattr(running, "run", self.run)

    def task(self, name: str) -> Any:
        from millrace.airflow.pipeline import pipeline_dags

        return pipeline_dags("shop")[self.form.dag_id].get_task(name).prepare_for_execution()

    @property
    def run_of_dag(self) -> str:
        """The run of the form that a plan is bound to."""
        return f"{self.form.dag_id}/{RUN}@{self.triggered.isoformat()}"

    @property
    def context(self) -> Any:
        run = SimpleNamespace(
            dag_id=self.form.dag_id, run_id=RUN, run_after=self.triggered, triggering_user_name=self.user
        )
        return {"dag_run": run, "params": self.params, "task_instance": SimpleNamespace(id="ti-1")}

    def make(self, *args: Any, by: str, asked_in: str, **asked: Any) -> Plan:
        return self.bind(by=by, asked_in=asked_in)

    def bind(self, good_for: timedelta = DAY, by: str = "airflow:anna", asked_in: str = "") -> Plan:
        """An open plan of this run."""
        now = datetime.now(UTC)
        made = Plan(
            kind=self.form.kind,
            target="shop.purchases",
            cluster_id="c",
            connection="k",
            changes=(self.form.change,),
            refusals=(),
            created=now - DAY,
            expires=now + good_for,
            by=by,
            reason="wrong numbers",
        )
        return self.plans.add(made, asked_in=asked_in or self.run_of_dag)

    def confirmed(self) -> Plan:
        """One that anna has confirmed."""
        plan = self.bind()
        assert self.plans.note_shown(plan)
        assert self.plans.confirm(plan, "anna", datetime.now(UTC))
        return plan

    def run(self, platform: Any, plan_id: str, *, actor: str, **more: Any) -> Any:
        self.run_in.append((plan_id, actor))
        if isinstance(self.outcome, Exception):
            raise self.outcome
        stored = self.plans.stored[plan_id]
        self.plans.stored[plan_id] = replace(stored, status=self.outcome, results=tuple(self.results))
        return self.plans.stored[plan_id]

    def failed(self, task: str, *, event: dict[str, Any] | None = None) -> str:
        """The sentence that a task fails with, for good."""
        from airflow.sdk.exceptions import AirflowFailException

        running = self.task(task)
        act = partial(running.execute_complete, event=event) if event else running.execute
        with pytest.raises(AirflowFailException) as caught:
            act(self.context)
        return str(caught.value)

    def shown(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        """The task that waits, with what Airflow was told to show."""
        from airflow.providers.standard.operators import hitl
        from airflow.sdk.exceptions import TaskAwaitingInput

        monkeypatch.setattr(hitl, "upsert_hitl_detail", lambda **detail: None)
        running = self.task("confirm")
        with pytest.raises(TaskAwaitingInput):
            running.execute(self.context)
        return running


def answer(option: str, user: str = "anna") -> dict[str, Any]:
    """What Airflow hands a task when somebody answered."""
    return {
        "chosen_options": [option],
        "params_input": {},
        "responded_at": datetime.now(UTC),
        "responded_by_user": {"id": user, "name": user},
    }
