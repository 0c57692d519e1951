"""The tasks that the forms for plans share: make the plan, have it confirmed, run it.

A run of such a DAG is bound to one plan for ever, by the row of the plan. Every task reads that row and nothing else:
task states, XCom and the answers of forms can be set by anybody who may edit the run.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from millrace.airflow.shared.tasks import failing_at_once
from millrace.errors import BusyPlanError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from millrace.domain.plans.plan import Plan, StoredPlan
    from millrace.ports.platform import Platform

Found = TypeVar("Found")
WAITS_FOR_CONTROL = timedelta(hours=1)
LATE = "not confirmed in time"
TOLD = 20


class MakePlan(BaseOperator):
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
        from millrace.airflow.shared.settings import airflow_platform
        from millrace.usecases.plans import listing

        platform, user = airflow_platform(), operator_of(context)
        with failing_at_once(but_for=BusyPlanError):
            bound = listing.asked_in(platform, run_of(context))
            if bound is not None:
                must_not_have_failed(bound)
                self.log.info("this run belongs to plan %s, which is %s", bound.plan.id, state_of(bound))
                return
            plan = self.make(platform, context["params"], by=f"airflow:{user}", asked_in=run_of(context))
        for name, text in plan.about:
            self.log.info("%s: %s", name.replace("_", " "), text)
        self.log.info("plan %s expires at %s", plan.id, plan.expires)

    @abstractmethod
    def make(self, platform: Platform, params: Mapping[str, Any], *, by: str, asked_in: str) -> Plan:
        """Store the plan, bound to this run.

        Args:
            platform: the adapters.
            params: what the form says.
            by: who asks.
            asked_in: the run to bind it to.
        """


class ConfirmPlan(ApprovalOperator):
    """Shows the plan to who asked for it and waits until he confirms or rejects it, without a slot.

    What counts is the plan's row: who answered, when, and the hash of what was shown.
    """

    ui_color = "#f2e8cf"

    def __init__(self, **arguments: Any) -> None:
        super().__init__(subject="Confirm the plan", **arguments)

    def execute(self, context: Context) -> Any:
        """Show it, to who asked only; end at once where there is nothing to confirm any more."""
        from millrace.airflow.plans.body import body_of
        from millrace.airflow.shared.settings import airflow_platform
        from millrace.domain.plans.plan import PlanStatus

        platform, user = airflow_platform(), operator_of(context)
        with failing_at_once(but_for=BusyPlanError):
            stored = bound_plan(platform, context)
            if stored.confirmed or stored.status is not PlanStatus.OPEN:
                must_not_have_failed(stored)
                self.log.info("plan %s is %s: nothing to confirm", stored.plan.id, state_of(stored))
                return None
            plan, left = stored.plan, stored.plan.expires - datetime.now(UTC)
            if left <= timedelta():
                self._refuse(platform, plan, f"dag:{self.dag_id}", LATE)
                raise AirflowFailException(f"plan {plan.id} was {LATE}: trigger a new run")
            if not platform.control.plans.note_shown(plan):
                raise AirflowException(f"plan {plan.id} is no longer open")  # the next try sees why
        self.subject = f"{plan.kind.value.capitalize()} {plan.target}: plan {plan.id}"
        self.body = body_of(plan)
        self.assigned_users = [{"id": user, "name": user}]
        self.response_timeout = left
        return super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Write the answer to the plan's row.

        While the control database is away this waits for it: a second try would have to ask again, as Airflow forgets
        the answer then.
        """
        from millrace.airflow.shared.settings import airflow_platform
        from millrace.usecases.plans import confirming

        platform, user = airflow_platform(), operator_of(context)
        plan = self._patiently(lambda: bound_plan(platform, context)).plan
        answerer = event.get("responded_by_user")
        if not answerer:
            self._refuse(platform, plan, f"dag:{self.dag_id}", LATE)
            raise AirflowFailException(f"plan {plan.id} was {LATE}: trigger a new run")
        if answerer["id"] != user:
            raise AirflowFailException(f"{answerer['id']} answered, but {user} triggered this run: trigger a new run")
        if event["chosen_options"] == [self.APPROVE]:
            self._patiently(lambda: confirming.confirm(platform, plan, by=user, at=event["responded_at"]))
        else:
            self._refuse(platform, plan, f"airflow:{user}", "rejected")
        return super().execute_complete(context, event)

    def _refuse(self, platform: Platform, plan: Plan, actor: str, why: str) -> None:
        """End the plan; fails where somebody has run it meanwhile, as from a command line."""
        from millrace.domain.plans.plan import PlanStatus
        from millrace.usecases.plans import confirming

        status = self._patiently(lambda: confirming.refuse(platform, plan, actor=actor, why=why))
        if status is not PlanStatus.REFUSED:
            raise AirflowFailException(
                f"plan {plan.id} was {why}, but its status is {status.value}: run `millrace plans show {plan.id}`"
            )

    def _patiently(self, call: Callable[[], Found]) -> Found:
        from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_delay, wait_exponential

        from millrace.errors import UnreachableError

        def tell(state: RetryCallState) -> None:
            self.log.warning("the answer is not stored yet, retrying: %s", state.outcome and state.outcome.exception())

        retrying = Retrying(
            retry=retry_if_exception_type(UnreachableError),
            stop=stop_after_delay(WAITS_FOR_CONTROL),
            wait=wait_exponential(max=20),
            before_sleep=tell,
            reraise=True,
        )
        with failing_at_once(but_for=BusyPlanError):
            return retrying(call)


class RunPlan(BaseOperator):
    """Runs the plan of its run if its row says that it was confirmed, as far as one run of it goes.

    A kind may leave its plan running, for a later task to see its end. A plan that failed fails the task for good, with
    what failed named.
    """

    ui_color = "#6a994e"

    def execute(self, context: Context) -> None:
        """Run it, or go on where an earlier try stood; a plan that is done is left alone."""
        from millrace.airflow.shared.settings import airflow_platform

        platform = airflow_platform()
        operator_of(context)
        with failing_at_once(but_for=BusyPlanError):
            stored = go_on(platform, bound_plan(platform, context), self.log.info)
        self.log.info("plan %s is %s", stored.plan.id, state_of(stored))


def go_on(platform: Platform, stored: StoredPlan, tell: Callable[..., None]) -> StoredPlan:
    """Run a confirmed plan, or go on where an earlier try stood; one that is done is left alone.

    Args:
        platform: the adapters.
        stored: the plan and its fate so far.
        tell: a logger's method, told what is done.

    Raises:
        AirflowFailException: it was not confirmed, or it has come to nothing; now or before.
        MillraceError: what `running.run` raises.
    """
    from millrace.domain.plans.plan import PlanStatus
    from millrace.usecases.plans import listing, running

    plan = stored.plan
    must_not_have_failed(stored)
    if stored.status is PlanStatus.DONE:
        return listing.show(platform, plan.id)
    if not stored.confirmed:
        raise AirflowFailException(f"plan {plan.id} was not confirmed by the user who requested it")
    ran = running.run(platform, plan.id, actor=plan.by, tell=lambda text: tell("%s", text), patience=timedelta())
    must_not_have_failed(ran)
    return ran


def bound_plan(platform: Platform, context: Context) -> StoredPlan:
    """The plan that this run is bound to.

    Raises:
        AirflowFailException: there is none yet.
    """
    from millrace.usecases.plans import listing

    stored = listing.asked_in(platform, run_of(context))
    if stored is None:
        raise AirflowFailException("this run has no plan: its first task has not succeeded")
    return stored


def must_not_have_failed(stored: StoredPlan) -> None:
    """Nothing where the plan is open, running or done.

    Raises:
        AirflowFailException: it has come to nothing; with what failed of it, a line each.
    """
    from millrace.domain.plans.plan import Outcome, PlanStatus

    if stored.status in {PlanStatus.OPEN, PlanStatus.RUNNING, PlanStatus.DONE}:
        return
    plan_id = stored.plan.id
    failed = [f"{each.subject}: {each.error}" for each in stored.results if each.outcome is Outcome.FAILED]
    more = [f"and {len(failed) - TOLD} more: `millrace plans show {plan_id}`"] if len(failed) > TOLD else []
    came_to = f"plan {plan_id} is {stored.status.value}, and this run has no other plan: trigger a new run"
    raise AirflowFailException("\n".join([came_to, *failed[:TOLD], *more]))


def state_of(stored: StoredPlan) -> str:
    """A plan's status, and who confirmed it when."""
    asked = stored.asked
    return stored.status.value + (f", confirmed by {asked.by} at {asked.at}" if asked and asked.by else "")


def run_of(context: Context) -> str:
    """This run and no other, for ever: an id may be given again once its run was deleted, to another form."""
    run = context["dag_run"]
    return f"{run.dag_id}/{run.run_id}@{run.run_after.isoformat()}"


def operator_of(context: Context) -> str:
    """Who triggered the run; only an operator of the environment may."""
    from millrace.airflow.shared.settings import airflow_platform
    from millrace.usecases.declaration.environment import environment_of

    user = getattr(context["dag_run"], "triggering_user_name", None)
    if not user:
        raise AirflowFailException("no user triggered this run: press Trigger as a user of Airflow")
    operators = environment_of(airflow_platform().settings.root).operators
    if operators and user not in operators:
        raise AirflowFailException(
            f"{user} may not change streams: the environment's operators are " + ", ".join(operators)
        )
    return str(user)
