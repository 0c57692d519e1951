"""Topics as declared: plan the difference, run it, provision a pipeline."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from millrace.domain.declaration.pipeline import Pipeline
from millrace.domain.plans.plan import (
    LIFETIME,
    Change,
    ChangeResult,
    Outcome,
    Plan,
    PlanKind,
    PlanStatus,
    Refusal,
    Standing,
    StoredPlan,
    still_true,
)
from millrace.domain.retention.holds import least_kept
from millrace.domain.topics import changes as topics
from millrace.domain.topics.changes import ObservedTopic
from millrace.errors import Code, IncompleteError, MillraceError, RefusedError, StalePlanError, TopicAccessError
from millrace.ports.kafka import TopicAdmin
from millrace.usecases.plans.kind import Kind, Runner, run_alone
from millrace.usecases.retention import cuts, holds

if TYPE_CHECKING:
    from millrace.ports.platform import Platform

EXISTS = "TOPIC_ALREADY_EXISTS"
SHOWN_WITHIN = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class ProvisionReport:
    """What provisioning a pipeline came to.

    `waiting` is the stored plan of changes that a person has to run. `unmade` are declared topics that are not there
    and that nobody has asked for yet.
    """

    pipeline: str
    results: tuple[ChangeResult, ...]
    waiting: Plan | None
    refusals: tuple[Refusal, ...]
    unmade: tuple[str, ...] = ()

    @property
    def problems(self) -> tuple[str, ...]:
        """One sentence for each thing that is not as declared after provisioning."""
        failed = (f"{r.subject}: {r.action} failed: {r.error}" for r in self.results if r.outcome is Outcome.FAILED)
        refused = (f"{refusal.subject}: {refusal.what}; {refusal.next_step}" for refusal in self.refusals)
        waiting = () if self.waiting is None else self.waiting.changes
        unsafe = (f"{change.subject}: {change.action} waits for a person: {change.unsafe}" for change in waiting)
        return (*failed, *refused, *unsafe)

    @property
    def unasked(self) -> str:
        """One sentence for the topics that wait to be asked for, and how to ask; empty where there is none."""
        if not self.unmade:
            return ""
        return (
            f"missing topics, which no scheduled run creates: {', '.join(self.unmade)}. To create "
            f"{'it' if len(self.unmade) == 1 else 'them'}, trigger the DAG {self.pipeline}.topics, or run "
            f"`millrace topics plan {self.pipeline}` and `millrace plans run ID`"
        )


def propose(platform: Platform, pipeline: Pipeline, *, by: str, now: datetime | None = None) -> Plan:
    """What would make the topics of a pipeline as declared. Nothing is stored, so the control database is not needed.

    Topics that other pipelines declare are theirs to make. Of topics that shall keep less, the plan says what that
    takes and from whom; where that cannot be told, it says so. A topic that is held keeps at least what its hold says;
    where nobody can tell which are, none is made to keep less.

    Raises:
        UnreachableError: the pipeline's cluster does not answer.
    """
    admin = platform.kafka.topics(pipeline.kafka)
    created = now or datetime.now(UTC)
    observed, unreadable = _observe(admin, [topic.name for topic in pipeline.topics])
    held = holds.open_holds(platform, pipeline.kafka)
    ids = {name: topic.topic_id for name, topic in observed.items()}
    difference = topics.plan_topics(
        pipeline.topics,
        observed,
        unreadable,
        least=None if isinstance(held, MillraceError) else least_kept(held, ids),
        no_cuts=held.what if isinstance(held, MillraceError) else "",
        names=_names(admin, pipeline, observed),
    )
    return Plan(
        kind=PlanKind.TOPICS,
        target=pipeline.name,
        cluster_id=admin.cluster_id(),
        connection=pipeline.kafka,
        changes=difference.changes,
        refusals=difference.refusals,
        created=created,
        expires=created + LIFETIME,
        by=by,
        about=cuts.about(platform, pipeline.kafka, difference.changes, observed),
    )


def _names(admin: TopicAdmin, pipeline: Pipeline, observed: Mapping[str, ObservedTopic]) -> Collection[str]:
    """Return the cluster's topics, where a topic is to be made that could collide with one."""
    missing = (topic.name for topic in pipeline.topics if topic.name not in observed)
    return admin.names() if any(topics.may_collide(name) for name in missing) else ()


def store(platform: Platform, plan: Plan) -> Plan:
    """Store a plan so that it can be run, unless it changes nothing.

    An open one that says the same is returned instead.

    Raises:
        UnreachableError: the control database does not answer.
    """
    return platform.control.plans.add(plan) if plan.changes else plan


def make_plan(platform: Platform, pipeline: Pipeline, *, by: str, now: datetime | None = None) -> Plan:
    """`propose` and `store` in one.

    Raises:
        UnreachableError: the pipeline's cluster or the control database does not answer.
    """
    return store(platform, propose(platform, pipeline, by=by, now=now))


def provision(
    platform: Platform, pipeline: Pipeline, actor: str, reason: str, *, asked: bool = True
) -> ProvisionReport:
    """Make the topics of a pipeline as declared, as far as a machine may.

    Runs what can lose nothing (new topics, longer retention, other settings). What only a person may decide
    (more partitions, shorter retention, another cleanup policy) is stored as a plan of its own.

    Args:
        platform: the cluster and the control database.
        pipeline: whose topics they are.
        actor: who does it, for the action log.
        reason: why, for the action log.
        asked: whether a person asked for it now. Otherwise no topic is created, neither a new one (its author may
            still be writing the declaration, and partitions cannot be taken back) nor one that was deleted: the
            report names them.

    Raises:
        IncompleteError: something is not as declared afterwards; every such thing is named.
        UnreachableError: the cluster or the control database does not answer.
    """
    try:
        report = _provision(platform, pipeline, actor, reason, asked=asked)
    except StalePlanError:  # somebody changed these topics between our look and our run: look again, once
        report = _provision(platform, pipeline, actor, reason, asked=asked)
    if report.problems:
        waiting = report.waiting
        sentences = (*report.problems, report.unasked) if report.unasked else report.problems
        raise IncompleteError(
            f"{len(report.problems)} settings of its topics differ from the declaration: " + " | ".join(sentences),
            where=pipeline.name,
            next_step=f"read plan {waiting.id} with `millrace plans show {waiting.id}`, then run it with "
            f"`millrace plans run {waiting.id}`"
            if waiting
            else "do the next step of each, then run the DAG again",
        )
    return report


def _provision(platform: Platform, pipeline: Pipeline, actor: str, reason: str, *, asked: bool) -> ProvisionReport:
    plan = propose(platform, pipeline, by=actor)
    unmade: tuple[str, ...] = ()
    if not asked:
        unmade = tuple(change.subject for change in plan.changes if change.action == topics.CREATE)
        plan = replace(plan, changes=tuple(change for change in plan.changes if change.action != topics.CREATE))
    safe = replace(plan, changes=tuple(change for change in plan.changes if not change.unsafe), refusals=(), about=())
    unsafe = replace(plan, changes=tuple(change for change in plan.changes if change.unsafe))
    waiting = store(platform, unsafe) if unsafe.changes else None
    results: tuple[ChangeResult, ...] = ()
    if safe.changes:
        plan_id = store(platform, safe).id
        begin = lambda: Runner(actor, reason, datetime.now(UTC))  # noqa: E731
        results = run_alone(platform, plan_id, lambda stored: TOPICS_KIND, begin).results
    return ProvisionReport(pipeline.name, results, waiting, plan.refusals, unmade)


def run(platform: Platform, stored: StoredPlan, runner: Runner) -> None:
    """Make a plan's changes, if all is still as planned; or resume a run that died.

    A plan that is refused before its first change stays as it is.

    Raises:
        StalePlanError: what was planned is no longer so.
        RefusedError: as `guard`.
        UnreachableError: a server does not answer; run it again.
    """
    plan, plans = stored.plan, platform.control.plans
    cluster_id, standings = look(platform, plan)
    resumed = stored.status is PlanStatus.RUNNING
    if why := still_true(plan, standings, cluster_id=cluster_id, now=runner.now, resumed=resumed):
        plans.finish(plan.id, PlanStatus.STALE)
        raise TOPICS_KIND.untrue(plan, why)
    guard(platform, plan, standings)
    plans.begin(plan.id)
    results = []
    for change, result in run_changes(platform, plan, standings):
        results.append(result)
        _log(platform, plan, change, result, runner)
    failed = any(result.outcome is Outcome.FAILED for result in results)
    plans.finish(plan.id, PlanStatus.FAILED if failed else PlanStatus.DONE, results)


def abort(platform: Platform, stored: StoredPlan, runner: Runner) -> None:
    """Take a plan back that was never run.

    Raises:
        RefusedError: it was begun.
        UnreachableError: the control database does not answer.
    """
    plan = stored.plan
    if stored.status is not PlanStatus.OPEN:
        raise RefusedError(
            "a plan of topics that has run cannot be aborted",
            where=plan.id,
            next_step=f"run `millrace plans run {plan.id}` again",
            code=Code.UNSUPPORTED,
        )
    platform.control.plans.finish(plan.id, PlanStatus.ABORTED)
    platform.control.log.append(
        actor=runner.actor, action="plan.abort", subject=plan.target, reason=runner.because(plan)
    )


def _log(platform: Platform, plan: Plan, change: Change, result: ChangeResult, runner: Runner) -> None:
    platform.control.log.append(
        actor=runner.actor,
        action=change.action,
        subject=change.subject,
        reason=runner.because(plan),
        before=dict(change.before),
        after=dict(change.before if result.outcome is Outcome.FAILED else change.after),
        outcome=f"failed: {result.error}" if result.outcome is Outcome.FAILED else result.outcome.value,
    )


def look(platform: Platform, plan: Plan) -> tuple[str, tuple[Standing, ...]]:
    """The id of the cluster a plan's connection leads to, and how each of its changes stands there."""
    admin = platform.kafka.topics(plan.connection)
    observed = admin.observe(sorted({change.subject for change in plan.changes}))
    return admin.cluster_id(), tuple(topics.standing(change, observed.get(change.subject)) for change in plan.changes)


def guard(platform: Platform, plan: Plan, standings: Sequence[Standing]) -> None:
    """Refuse what may not be done now; to be asked right before a plan's changes are made.

    Raises:
        RefusedError: a topic is held, or a declared reader would lose what it has not read yet.
        UnreachableError: it could not be told.
    """
    cuts.refuse_losses(platform, plan, standings)
    holds.refuse_held(platform, plan, standings)  # last: measuring takes a while, in which a hold may begin


def run_changes(platform: Platform, plan: Plan, standings: Sequence[Standing]) -> Iterator[tuple[Change, ChangeResult]]:
    """Make a plan's changes, one request for each sort of change; each change's result comes as soon as it is known.

    A change that fails stops no other. What is found done is not done again. Settings come first: between the look at
    what a cut takes and the cut, as little as may be comes in or is moved.
    """
    admin = platform.kafka.topics(plan.connection)
    pending: dict[str, list[Change]] = {topics.SET_CONFIG: [], topics.CREATE: [], topics.ADD_PARTITIONS: []}
    for change, standing in zip(plan.changes, standings, strict=True):
        if standing is Standing.DONE:
            yield change, ChangeResult(change.action, change.subject, Outcome.FOUND_DONE)
        else:
            pending[change.action].append(change)
    for action, changes in pending.items():
        if not changes:
            continue
        outcomes = _run(admin, action, changes)
        now = _observe_shown(admin, changes, outcomes)
        for change in changes:
            error = outcomes[change.subject]
            if error is None:
                yield change, ChangeResult(change.action, change.subject, Outcome.DONE)
            elif topics.standing(change, now.get(change.subject)) is Standing.DONE:  # somebody else was first
                yield change, ChangeResult(change.action, change.subject, Outcome.FOUND_DONE)
            else:
                yield change, ChangeResult(change.action, change.subject, Outcome.FAILED, error)


def _run(admin: TopicAdmin, action: str, changes: Sequence[Change]) -> Mapping[str, str | None]:
    if action == topics.CREATE:
        return admin.create([topics.new_topic(change) for change in changes])
    if action == topics.ADD_PARTITIONS:
        return admin.add_partitions({change.subject: topics.partition_count(change) for change in changes})
    wanted: dict[str, dict[str, str]] = {}
    for change in changes:
        wanted.setdefault(change.subject, {}).update(topics.settings_of(change.after))
    return admin.set_config(wanted)


def _observe_shown(
    admin: TopicAdmin, changes: Sequence[Change], outcomes: Mapping[str, str | None]
) -> Mapping[str, ObservedTopic]:
    """The topics after a change of theirs, once the brokers show what was made, or exists by its own error.

    The controller, which answers, knows of a change a moment before the brokers do, who are asked what is there: told
    as done before they show it, a change would be made and told once more by who takes over from a runner that dies.
    """
    made = [change for change in changes if (error := outcomes[change.subject]) is None or error.startswith(EXISTS)]
    deadline = time.monotonic() + SHOWN_WITHIN.total_seconds()
    while True:
        now = _observe(admin, sorted(outcomes))[0]
        late = any(topics.standing(change, now.get(change.subject)) is Standing.PENDING for change in made)
        if not late or time.monotonic() >= deadline:
            return now
        time.sleep(0.1)


def _observe(admin: TopicAdmin, names: Sequence[str]) -> tuple[Mapping[str, ObservedTopic], Mapping[str, str]]:
    """The topics that exist, and those the cluster would not describe: these must not fail the others."""
    try:
        return admin.observe(names), {}
    except TopicAccessError as error:
        unreadable = error.failures
        rest = [name for name in names if name not in unreadable]
        if len(rest) == len(names):
            raise MillraceError(
                "the cluster refused topics outside the request", where=", ".join(unreadable), code=Code.KAFKA_REFUSED
            ) from error
        return admin.observe(rest), unreadable


TOPICS_KIND = Kind(PlanKind.TOPICS, make="millrace topics plan {target}", place="on cluster", run=run, abort=abort)
