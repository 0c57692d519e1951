"""The four tasks of the form that rewinds a stream: plan, confirm, run, verify.

A run of the DAG is bound to one plan for ever, by the row of the plan. Every task reads that row and nothing else:
task states, XCom and the answers of forms can be set by anybody who may edit the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import BaseOperator, BaseSensorOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

if TYPE_CHECKING:
    from airflow.sdk import Context

    from millrace.domain.plan import Plan, StoredPlan
    from millrace.wiring import Platform

Found = TypeVar("Found")
WAITS_FOR_CONTROL = timedelta(hours=1)
LATE = "not confirmed in its time"


class PlanRewind(BaseOperator):
    """Makes the plan that the form asks for, once; a later try, or the task cleared, finds it.

    Args:
        pipeline: the pipeline's name.
    """

    ui_color = "#f4a259"

    def __init__(self, *, pipeline: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.pipeline = pipeline

    def execute(self, context: Context) -> None:
        """Plan; refused for whom the environment does not name as operator."""
        from millrace.airflow.settings import airflow_platform
        from millrace.domain.time_travel import Policy
        from millrace.usecases import plans
        from millrace.usecases.rewind_plan import make_plan, target_of

        platform, user, params = airflow_platform(), _operator(context), context["params"]
        with _failing_at_once():
            bound = plans.asked_in(platform, _run(context))
            if bound is not None:
                _must_not_have_failed(bound)
                self.log.info("this run is bound to plan %s, which is %s", bound.plan.id, _state(bound))
                return
            plan = make_plan(
                platform,
                f"{self.pipeline}.{params['stream']}",
                target_of(params["to"], datetime.now(UTC), lambda name: None),
                policy=Policy(params["policy"]),
                by=f"airflow:{user}",
                reason=params["reason"],
                asked_in=_run(context),
            )
        for name, text in plan.about:
            self.log.info("%s: %s", name.replace("_", " "), text)
        self.log.info("plan %s, good until %s", plan.id, plan.expires)


class ConfirmPlan(ApprovalOperator):
    """Shows the plan to who asked for it and waits until he confirms or rejects it, without a slot.

    What counts is the plan's row: who answered, when, and the hash of what was shown.
    """

    ui_color = "#f2e8cf"

    def __init__(self, **arguments: Any) -> None:
        super().__init__(subject="Confirm the plan", **arguments)

    def execute(self, context: Context) -> Any:
        """Show it, to who asked only; end at once where there is nothing to confirm any more."""
        from millrace.airflow.plan_body import body_of
        from millrace.airflow.settings import airflow_platform
        from millrace.domain.plan import PlanStatus

        platform, user = airflow_platform(), _operator(context)
        with _failing_at_once():
            stored = _bound(platform, context)
            if stored.confirmed or stored.status is not PlanStatus.OPEN:
                _must_not_have_failed(stored)
                self.log.info("plan %s is %s: nothing to confirm", stored.plan.id, _state(stored))
                return None
            plan, left = stored.plan, stored.plan.expires - datetime.now(UTC)
            if left <= timedelta():
                self._refuse(platform, plan, f"dag:{self.dag_id}", LATE)
                raise AirflowFailException(f"plan {plan.id} was {LATE}: trigger a new run")
            if not platform.control().plans.note_shown(plan):
                raise AirflowException(f"plan {plan.id} is no longer open")  # the next try sees why
        self.subject = f"Rewind {plan.target}: plan {plan.id}"
        self.body = body_of(plan)
        self.assigned_users = [{"id": user, "name": user}]
        self.response_timeout = left
        return super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Write the answer to the plan's row.

        While the control database is away this waits for it: a second try would have to ask again, as Airflow forgets
        the answer then.
        """
        from millrace.airflow.settings import airflow_platform
        from millrace.usecases import plans

        platform, user = airflow_platform(), _operator(context)
        plan = self._patiently(lambda: _bound(platform, context)).plan
        answerer = event.get("responded_by_user")
        if not answerer:
            self._refuse(platform, plan, f"dag:{self.dag_id}", LATE)
            raise AirflowFailException(f"plan {plan.id} was {LATE}: trigger a new run")
        if answerer["id"] != user:
            raise AirflowFailException(f"{answerer['id']} answered, but {user} asked: trigger a new run")
        if event["chosen_options"] == [self.APPROVE]:
            self._patiently(lambda: plans.confirm(platform, plan, by=user, at=event["responded_at"]))
        else:
            self._refuse(platform, plan, f"airflow:{user}", "rejected")
        return super().execute_complete(context, event)

    def _refuse(self, platform: Platform, plan: Plan, actor: str, why: str) -> None:
        """End the plan; fails where somebody has run it meanwhile, as from a command line."""
        from millrace.domain.plan import PlanStatus
        from millrace.usecases import plans

        status = self._patiently(lambda: plans.refuse(platform, plan, actor=actor, why=why))
        if status is not PlanStatus.REFUSED:
            raise AirflowFailException(
                f"plan {plan.id} was {why}, but it is {status.value}: see `millrace plans show {plan.id}`"
            )

    def _patiently(self, call: Callable[[], Found]) -> Found:
        from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_delay, wait_exponential

        from millrace.errors import UnreachableError

        def tell(state: RetryCallState) -> None:
            self.log.warning("the answer waits to be written down: %s", state.outcome and state.outcome.exception())

        retrying = Retrying(
            retry=retry_if_exception_type(UnreachableError),
            stop=stop_after_delay(WAITS_FOR_CONTROL),
            wait=wait_exponential(max=20),
            before_sleep=tell,
            reraise=True,
        )
        with _failing_at_once():
            return retrying(call)


class RunPlan(BaseOperator):
    """Runs the plan of its run if its row says that it was confirmed, until the stream runs where it should."""

    ui_color = "#6a994e"

    def execute(self, context: Context) -> None:
        """Run it, or go on where an earlier try stood; a plan that is done is left alone."""
        from millrace.airflow.settings import airflow_platform

        platform = airflow_platform()
        _operator(context)
        with _failing_at_once():
            stored = _go_on(platform, _bound(platform, context), self.log.info)
        self.log.info("plan %s is %s", stored.plan.id, _state(stored))


class VerifyPlan(BaseSensorOperator):
    """Holds, without a slot between two looks, until all is read again and what lies in the sink was looked at."""

    ui_color = "#a7c957"

    def poke(self, context: Context) -> bool:
        """Whether the plan is done. One who runs it meanwhile, as from a command line, looks for us."""
        from millrace.airflow.settings import airflow_platform
        from millrace.domain.plan import PlanStatus
        from millrace.usecases.plans import BusyPlanError

        platform = airflow_platform()
        with _failing_at_once():
            bound = _bound(platform, context)
            if bound.status is PlanStatus.OPEN:
                raise AirflowFailException(f"plan {bound.plan.id} was never run: clear task `run`")
            try:
                stored = _go_on(platform, bound, self.log.info)
            except BusyPlanError as busy:
                self.log.info("%s", busy)
                return False
        if stored.status is not PlanStatus.DONE:
            return False
        for step in stored.steps:
            self.log.info("%s, done at %s: %s", step.name, step.done_at, dict(step.detail))
        return True


def _go_on(platform: Platform, stored: StoredPlan, tell: Callable[..., None]) -> StoredPlan:
    from millrace.domain.plan import PlanStatus
    from millrace.usecases import plans

    plan = stored.plan
    _must_not_have_failed(stored)
    if stored.status is PlanStatus.DONE:
        return plans.show(platform, plan.id)
    if not stored.confirmed:
        raise AirflowFailException(f"plan {plan.id} was not confirmed by who asked for it")
    return plans.run(platform, plan.id, actor=plan.by, tell=lambda text: tell("%s", text), patience=timedelta())


def _bound(platform: Platform, context: Context) -> StoredPlan:
    from millrace.usecases import plans

    stored = plans.asked_in(platform, _run(context))
    if stored is None:
        raise AirflowFailException("no plan is bound to this run: its first task has not succeeded")
    return stored


def _must_not_have_failed(stored: StoredPlan) -> None:
    from millrace.domain.plan import PlanStatus

    if stored.status not in {PlanStatus.OPEN, PlanStatus.RUNNING, PlanStatus.DONE}:
        raise AirflowFailException(
            f"plan {stored.plan.id} is {stored.status.value}, and this run is bound to it: trigger a new one"
        )


def _state(stored: StoredPlan) -> str:
    asked = stored.asked
    return stored.status.value + (f", confirmed by {asked.by} at {asked.at}" if asked and asked.by else "")


def _run(context: Context) -> str:
    """This run and no other, for ever: an id may be given again once its run was deleted, to another form."""
    run = context["dag_run"]
    return f"{run.dag_id}/{run.run_id}@{run.run_after.isoformat()}"


def _operator(context: Context) -> str:
    """Who triggered the run; only an operator of the environment may."""
    from millrace.airflow.settings import airflow_platform
    from millrace.usecases.alarms import environment_of

    user = getattr(context["dag_run"], "triggering_user_name", None)
    if not user:
        raise AirflowFailException("nobody's name stands on this run: press Trigger as a user of Airflow")
    operators = environment_of(airflow_platform().settings.root).operators
    if operators and user not in operators:
        raise AirflowFailException(
            f"{user} may not rewind streams: the environment's operators are " + ", ".join(operators)
        )
    return str(user)


@contextmanager
def _failing_at_once() -> Iterator[None]:
    """No second try for what a second try cannot better."""
    from millrace.errors import MillraceError, UnreachableError
    from millrace.usecases.plans import BusyPlanError

    try:
        yield
    except (UnreachableError, BusyPlanError):
        raise
    except MillraceError as error:
        raise AirflowFailException(str(error)) from error
