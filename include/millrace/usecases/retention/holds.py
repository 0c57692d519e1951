"""Holds: for a time, nothing that a topic has now is deleted; afterwards it keeps as much as before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from millrace.declarations import load
from millrace.domain.alarms.extent import Extent
from millrace.domain.alarms.kinds import AlarmKind
from millrace.domain.declaration.pipeline import Manage, Topic
from millrace.domain.formats.sizes import roughly_bytes
from millrace.domain.groups.snapshots import Snapshot
from millrace.domain.plans.plan import Plan, Standing
from millrace.domain.retention import holds
from millrace.domain.retention.holds import Asked, Hold, HoldPlan, Load
from millrace.domain.retention.settings import BrokerSettings, log_settings
from millrace.domain.topics import changes as topics
from millrace.domain.topics.changes import ObservedTopic
from millrace.errors import Code, MillraceError, RefusedError, UnreachableError, UsageError
from millrace.usecases.declaration.lookup import declared_topic, declared_topics
from millrace.usecases.retention import cuts
from millrace.usecases.retention.measured import Measured

if TYPE_CHECKING:
    from millrace.ports.platform import Platform

RATE_OVER = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Held:
    """A hold that was begun or extended, and what it may need.

    Attributes:
        hold: the hold.
        need_bytes: what it may keep beside what is there, on all brokers together.
        budget_bytes: what it might have needed at most; None where it needs nothing.
    """

    hold: Hold
    need_bytes: int
    budget_bytes: int | None


@dataclass(frozen=True, slots=True)
class _Ending:
    """What came of ending a hold: ended with these limits, or the records that its readers would lose by that."""

    line: str
    refused: RefusedError | None = None
    records: int = 0


def hold(
    platform: Platform,
    name: str,
    keep_for: timedelta,
    *,
    actor: str,
    reason: str,
    budget_bytes: int | None = None,
    now: datetime | None = None,
) -> Held:
    """Keep all that a topic has now for so long, or for longer where it is held already.

    The hold is written down first, then the limits are raised, then the action log tells it: who dies in between runs
    it again, and until then the topics' plans raise them.

    Args:
        platform: the adapters.
        name: the topic, by the name it is declared with.
        keep_for: how long from now on.
        actor: who asks for it.
        reason: why, for the action log.
        budget_bytes: how much it may need on all brokers together; default: half of what is free on the fullest disk
            with a replica of it, where the brokers tell.
        now: the present.

    Raises:
        UsageError: no sound declaration has this topic.
        RefusedError: it is not Millrace's to change, is not there, needs more than it may, or somebody is at it.
        UnreachableError: the cluster or the control database does not answer; run it again then.
    """
    at = now or datetime.now(UTC)
    pipeline, topic = declared_topic(platform.settings.root, name)
    if topic.manage is Manage.NONE:
        raise RefusedError(
            "the topic is declared with `manage: none`: Millrace does not change it",
            where=name,
            next_step="ask its owner, or declare `manage: full`",
        )
    kafka, admin = pipeline.kafka, platform.kafka.topics(pipeline.kafka)
    with _working(platform, kafka, name):
        observed = admin.observe([name]).get(name)
        if observed is None:
            raise RefusedError(
                "the topic does not exist",
                where=name,
                next_step="create it: run the DAG PIPELINE.topics",
                code=Code.MISSING_TOPIC,
            )
        asked = Asked(kafka, name, observed.topic_id, keep_for, at, actor, reason)
        seen = platform.kafka.cluster(kafka).take()
        planned = holds.plan_hold(
            asked,
            own=observed.config,
            in_force=_in_force(observed),
            loads=_loads(platform, kafka, observed, seen, at),
            replication=observed.replication,
            known=_open(platform, kafka, observed),
            broker=BrokerSettings(seen.check_every) if seen.check_every is not None else None,
        )
        budget = _within_budget(planned, budget_bytes, _free_bytes(seen, name))
        made = platform.control.holds.begin(planned.hold)
        platform.control.alarms.close(AlarmKind.TOPIC_HOLD, f"{kafka}/{name}")
        try:
            _set(platform, made, observed, made.after)
        except RefusedError as error:  # what was never raised is not held
            if made.began_at == at:
                _note_end(platform, made, actor, reason, at, after={}, outcome=f"refused: {error.what}")
            raise
        platform.control.log.append(
            actor=actor,
            action="topic.hold",
            subject=name,
            reason=reason,
            before=dict(made.found),
            after={**made.after, "until": made.until.isoformat()},
        )
    return Held(made, planned.need_bytes, budget)


def end(platform: Platform, name: str, *, actor: str, reason: str, now: datetime | None = None) -> Hold:
    """End a hold before its time, or one that waits; the hold as it was.

    Raises:
        UsageError: the topic is not held.
        RefusedError: a declared reader would lose what it has not read yet; or somebody is at it.
        UnreachableError: the cluster or the control database does not answer; run it again then.
    """
    at = now or datetime.now(UTC)
    kafka = _held(platform, name).kafka
    with _working(platform, kafka, name):
        found = _held(platform, name)
        ending = _end(platform, found, _declaration(platform, found), actor=actor, reason=reason, now=at)
    if ending.refused is not None:
        raise ending.refused
    return found


def list_holds(platform: Platform) -> tuple[Hold, ...]:
    """The open holds of all clusters.

    Raises:
        UnreachableError: the control database does not answer.
    """
    return platform.control.holds.list()


def end_due(
    platform: Platform, kafka: str, declared: Sequence[Topic], *, actor: str, now: datetime | None = None
) -> list[str]:
    """End the holds whose time is over, of these topics and of those that nobody declares any more.

    One by which a declared reader would lose unread records waits, with an open alarm that names the reader.

    Args:
        platform: the adapters.
        kafka: the Connection of the topics' cluster.
        declared: the topics of a pipeline.
        actor: who ends them, for the action log.
        now: the present.

    Returns:
        What it did, and what waits, a line each.

    Raises:
        UnreachableError: the control database does not answer.
    """
    at = now or datetime.now(UTC)
    due = [each for each in platform.control.holds.list(kafka) if each.until <= at]
    if not due:
        return []
    own = {topic.name: topic for topic in declared}
    project = load(platform.settings.root)
    others = {topic.name for pipeline in project.pipelines for topic in pipeline.topics} - own.keys()
    lines = []
    for each in due:
        if each.topic in others or (each.topic not in own and project.findings):
            continue  # its own pipeline ends it, or may be one whose declaration is wrong now
        try:
            lines.append(_end_or_wait(platform, each, own.get(each.topic), actor, at))
        except MillraceError as error:
            lines.append(f"{each.topic}: its hold has expired but did not end: {error.what}")
    return lines


def overdue(platform: Platform, kafka: str, declared: Sequence[Topic], *, now: datetime | None = None) -> list[str]:
    """Those of these topics that are held although the time of that is over.

    Raises:
        UnreachableError: the control database does not answer.
    """
    at = now or datetime.now(UTC)
    names = {topic.name for topic in declared}
    return [each.topic for each in platform.control.holds.list(kafka) if each.until <= at and each.topic in names]


def open_holds(platform: Platform, kafka: str) -> tuple[Hold, ...] | MillraceError:
    """The open holds of a cluster, or why nobody knows them."""
    try:
        return platform.control.holds.list(kafka)
    except UnreachableError as error:
        return error


def refuse_held(platform: Platform, plan: Plan, standings: Sequence[Standing]) -> None:
    """Refuse a plan that makes a topic keep less than a hold says that was begun after the plan was made.

    Raises:
        RefusedError: a hold is in the way.
        UnreachableError: the control database does not answer.
    """
    unsafe = [
        change
        for change, standing in zip(plan.changes, standings, strict=True)
        if standing is Standing.PENDING and change.unsafe and change.action == topics.SET_CONFIG
    ]
    held = {each.topic: each for each in platform.control.holds.list(plan.connection)} if unsafe else {}
    for change in unsafe:
        found = held.get(change.subject)
        if found is None or ("topic_id", found.topic_id) not in change.before:
            continue
        if holds.below(found, topics.settings_of(change.before), topics.settings_of(change.after)):
            raise RefusedError(
                f"topic {found.topic} is held until {found.until:%Y-%m-%d %H:%M} UTC by {found.actor}: {found.reason}",
                where=plan.id,
                next_step=f"wait, or end the hold with `millrace topics hold {found.topic} --end --reason ...`",
                code=Code.HELD_TOPIC,
            )


def _end_or_wait(platform: Platform, hold: Hold, declared: Topic | None, actor: str, now: datetime) -> str:
    subject = f"{hold.kafka}/{hold.topic}"
    with platform.control.holds.working(hold.kafka, hold.topic) as mine:
        current = next((each for each in platform.control.holds.list(hold.kafka) if each.topic == hold.topic), None)
        if not mine or current is None or current.until > now:
            return f"{hold.topic}: another command changes its hold"
        ending = _end(platform, current, declared, actor=actor, reason="its time is over", now=now)
    if ending.refused is None:
        return ending.line
    waits = f"its hold has expired and waits: {ending.refused.what}"
    platform.control.alarms.open(AlarmKind.TOPIC_HOLD, subject, f"{hold.topic}: {waits}", Extent(ending.records))
    return f"{hold.topic}: {waits}"


def _end(platform: Platform, hold: Hold, declared: Topic | None, *, actor: str, reason: str, now: datetime) -> _Ending:
    """End a hold unless a declared reader would lose by that. Done twice it is done once."""
    observed = platform.kafka.topics(hold.kafka).observe([hold.topic]).get(hold.topic)
    if observed is None or observed.topic_id != hold.topic_id:
        outcome = "the topic is gone" if observed is None else holds.MADE_AGAIN
        _note_end(platform, hold, actor, reason, now, after={}, outcome=outcome)
        return _Ending(f"{hold.topic}: its hold has ended: {outcome}")
    full = declared is not None and declared.manage is Manage.FULL
    after = holds.settled(hold, topics.wanted_config(declared) if declared is not None and full else {})
    after = {key: value for key, value in after.items() if key not in holds.left_alone(hold, _in_force(observed))}
    in_force = {**_in_force(observed), **holds.in_force_after(hold, after)}
    step = (log_settings(_in_force(observed)), log_settings(in_force))
    found = cuts.measure_settings(platform, hold.kafka, {hold.topic: step}, now=now)
    again = f"`millrace topics hold {hold.topic} --end`"
    if (refused := cuts.refusal(found, where=hold.topic, again=again)) is not None:
        return _Ending("", refused, sum(loss.records for loss in found.losses))
    _set(platform, hold, observed, after)
    shown = {key: in_force[key] for key in holds.LIMITS}
    _note_end(platform, hold, actor, reason, now, after=shown, outcome="done")
    return _Ending(f"{hold.topic}: its hold has ended, it keeps {', '.join(f'{k} {v}' for k, v in shown.items())}")


def _note_end(
    platform: Platform, hold: Hold, actor: str, reason: str, now: datetime, *, after: Mapping[str, str], outcome: str
) -> None:
    control = platform.control
    control.alarms.close(AlarmKind.TOPIC_HOLD, f"{hold.kafka}/{hold.topic}")
    control.holds.end(hold, at=now, actor=actor, reason=reason, after=after, outcome=outcome)


def _set(platform: Platform, hold: Hold, observed: ObservedTopic, wanted: Mapping[str, str | None]) -> None:
    """Set the limits that are not so yet."""
    own = {key: observed.config.get(key) for key in wanted}
    inherited = {key: observed.defaults.get(key) for key in wanted}
    values = {key: value for key, value in wanted.items() if value not in (own[key], own[key] or inherited[key])}
    if not values:
        return
    error = platform.kafka.topics(hold.kafka).set_config({hold.topic: values})[hold.topic]
    if error is not None:
        raise RefusedError(
            f"the cluster refuses {', '.join(f'{key}={value}' for key, value in values.items())}: {error}",
            where=hold.topic,
            next_step="correct the cause that the cluster names; the user needs AlterConfigs on the topic",
            code=Code.KAFKA_REFUSED,
        )


def _within_budget(planned: HoldPlan, budget_bytes: int | None, free_bytes: int | None) -> int | None:
    if not planned.need_bytes:
        return None
    name, budget = planned.hold.topic, holds.budget_of(budget_bytes, free_bytes)
    need = roughly_bytes(planned.need_bytes)
    if budget is None:
        raise RefusedError(
            f"the hold may need {need}, and no broker reports the free space of its disks",
            where=name,
            next_step=f"check the disks, then give --budget: at least {need} on all brokers together",
            code=Code.OVER_BUDGET,
        )
    if planned.need_bytes > budget:
        of = "" if budget_bytes is not None else f", half of the free {roughly_bytes(free_bytes or 0)}"
        raise RefusedError(
            f"the hold may need {need} at the rate of the last hour, more than its budget of "
            f"{roughly_bytes(budget)}{of}",
            where=name,
            next_step="hold it for a shorter time, or give a larger --budget",
            code=Code.OVER_BUDGET,
        )
    return budget


def _free_bytes(seen: Snapshot, topic: str) -> int | None:
    """What is free on the fullest disk with a replica of a topic; None where a broker does not say it."""
    free = [disk.usable_bytes for disk in seen.disks if topic in disk.topics]
    return None if not free or None in free else min(each for each in free if each is not None)


def _loads(platform: Platform, kafka: str, topic: ObservedTopic, snapshot: Snapshot, now: datetime) -> dict[int, Load]:
    """What each partition holds and how fast it grew in the last hour.

    By the times of its records, and by where its log ended at the snapshots: records may be dated in the past.
    """
    log = platform.kafka.logs(kafka)
    partitions = [p for p, led in log.leaders([topic.name]).items() if led]
    since = int((now - RATE_OVER).timestamp() * 1000)
    times = log.times(partitions, since)
    flows = Measured(platform, kafka, snapshot).flows({topic.name}, RATE_OVER)
    found = {}
    for partition, each in times.items():
        seen = snapshot.log((partition.topic, partition.partition))
        if seen is not None and seen.size_bytes is not None:
            held = each.bounds.end - each.bounds.start
            new = each.bounds.end - max(each.at.offset, each.bounds.start) if each.at else 0
            flow = flows.get((partition.topic, partition.partition))
            offsets = max(new / RATE_OVER.total_seconds(), flow.mean if flow else 0.0)
            found[partition.partition] = Load(seen.size_bytes, seen.size_bytes / held * offsets if held > 0 else 0.0)
    if len(found) < topic.partitions:
        raise UnreachableError(
            f"size and growth are known for only {len(found)} of its {topic.partitions} partitions",
            where=topic.name,
            next_step="check with `millrace doctor` that every broker runs, and that the user of this connection has "
            "Describe on the cluster",
            code=Code.KAFKA_UNREACHABLE,
        )
    return found


def _held(platform: Platform, name: str) -> Hold:
    for each in platform.control.holds.list():
        if each.topic == name:
            return each
    raise UsageError(
        "the topic is not held",
        where=name,
        next_step="list the holds with `millrace topics hold`",
        code=Code.NOTHING_TO_DO,
    )


def _declaration(platform: Platform, hold: Hold) -> Topic | None:
    return declared_topics(platform.settings.root, hold.kafka).get(hold.topic)


def _open(platform: Platform, kafka: str, observed: ObservedTopic) -> Hold | None:
    found = (each for each in platform.control.holds.list(kafka) if each.topic == observed.name)
    return next((each for each in found if each.topic_id == observed.topic_id), None)


@contextmanager
def _working(platform: Platform, kafka: str, name: str) -> Iterator[None]:
    with platform.control.holds.working(kafka, name) as mine:
        if not mine:
            raise RefusedError(
                "another command changes its hold", where=name, next_step="try again", code=Code.CONCURRENT_CHANGE
            )
        yield


def _in_force(topic: ObservedTopic) -> dict[str, str]:
    return {**topic.defaults, **topic.config}
