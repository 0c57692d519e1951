"""The fields, and the task that waits for a person, that several forms have."""

from __future__ import annotations

from collections.abc import Sequence

from airflow.sdk import DAG, Param

from millrace.airflow.plans.operators import ConfirmPlan
from millrace.airflow.shared.defaults import RETRIED
from millrace.domain.declaration.pipeline import App
from millrace.domain.streams.control import SHORTEST_REASON


def stream_param(apps: Sequence[App], *, preset: bool = False) -> Param:
    """Which of these; with `preset` the form begins with it where there is but one."""
    more = {"default": apps[0].name} if preset and len(apps) == 1 else {}
    return Param(
        **more,
        type="string",
        enum=[app.name for app in apps],
        title="Stream",
        description="The stream that this form changes.",
    )


def confirm_task(dag: DAG) -> ConfirmPlan:
    """Waits until who asked has confirmed the plan."""
    return ConfirmPlan(
        task_id="confirm",
        doc_md="Waits until the user who triggered the run confirms or rejects the plan. An expired plan is refused.",
        dag=dag,
        **RETRIED | {"retries": 1},
    )


def reason_param() -> Param:
    """Why; asked for by every form that changes something."""
    return Param(
        type="string",
        minLength=SHORTEST_REASON,
        maxLength=500,
        title="Reason",
        description="For the action log.",
    )
