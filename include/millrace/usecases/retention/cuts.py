"""Before a topic keeps less: what that would take, from whom, and whether it may be done now."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from millrace.declarations import load
from millrace.domain.declaration.pipeline import App, Start, Stream
from millrace.domain.groups.snapshots import LogSeen, Snapshot
from millrace.domain.plans.plan import Change, Facts, Plan, Standing
from millrace.domain.retention import cuts
from millrace.domain.retention.cuts import Cut, LogNow, Loss, Reader
from millrace.domain.retention.headroom import Limits
from millrace.domain.retention.settings import BrokerSettings, LogSettings, log_settings
from millrace.domain.rewind.time_travel import PartitionTimes
from millrace.domain.topics import changes as topics
from millrace.domain.topics.changes import ObservedTopic
from millrace.domain.topics.offsets import TopicPartition
from millrace.domain.topics.sources import TopicRecord
from millrace.errors import Code, DataLossError, MillraceError, RefusedError, UnreachableError

if TYPE_CHECKING:
    from millrace.ports.platform import Platform

MOST_SAMPLED = 16  # partitions of which records are weighed, the largest first; of the others all weigh the same
SAMPLES = 6  # places of a partition
_RECORDS_EACH = 20
_RECORD_BYTES = 32  # that a record takes in a log beside key, value and headers, about

Read = Callable[[str, int, int, int], Iterator[TopicRecord]]
"""Reads the records of a topic's partition from an offset up to another."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What changes of topics take, and from which declared readers.

    Attributes:
        at: when it was looked at.
        cuts: one for each topic that is to keep less.
        losses: by reader.
        unsound: files of declarations with errors: nobody knows what their streams read.
    """

    at: datetime
    cuts: Sequence[Cut] = ()
    losses: Sequence[Loss] = ()
    unsound: Sequence[str] = ()

    @property
    def about(self) -> Facts:
        """The same for who looks at the plan, in the order it is read."""
        if not self.cuts:
            return ()
        at = f"{self.at:%Y-%m-%d %H:%M:%S} UTC; measured again before the plan is run"
        lines = [("cuts_measured", at)]
        lines += [(f"cut_{number}", str(cut)) for number, cut in enumerate(self.cuts, 1)]
        lines += [
            (f"unread_{number}", f"{loss}; the plan does not run before it has")
            for number, loss in enumerate(self.losses, 1)
        ]
        if self.unsound:
            lines.append(("unread_not_known", f"by streams of {', '.join(self.unsound)}: the declaration has errors"))
        return tuple(sorted(lines))


def measure(
    platform: Platform,
    kafka: str,
    changes: Iterable[Change],
    *,
    observed: Mapping[str, ObservedTopic] | None = None,
    now: datetime | None = None,
) -> Measured:
    """What these changes take of topics that would keep less, and from which declared readers.

    Args:
        platform: the adapters.
        kafka: the Connection of their cluster.
        changes: of topics; those that cut nothing cost nothing.
        observed: these topics as they are; asked for where it is not given.
        now: the present.

    Raises:
        UnreachableError: the cluster does not say all that has to be known.
    """
    wanted: dict[str, dict[str, str]] = {}
    for change in changes:
        settings = topics.settings_of(change.after) if change.action == topics.SET_CONFIG else {}
        if settings.keys() & cuts.KEYS:
            wanted.setdefault(change.subject, {}).update(settings)
    at = now or datetime.now(UTC)
    if not wanted:
        return Measured(at)
    there = observed if observed is not None else platform.kafka.topics(kafka).observe(sorted(wanted))
    steps = {}
    for name, settings in wanted.items():
        if name in there:
            in_force = {**there[name].defaults, **there[name].config}
            steps[name] = (log_settings(in_force), log_settings({**in_force, **settings}))
    return measure_settings(platform, kafka, steps, now=at)


def measure_settings(
    platform: Platform,
    kafka: str,
    steps: Mapping[str, tuple[LogSettings, LogSettings]],
    *,
    broker: BrokerSettings | None = None,
    now: datetime | None = None,
) -> Measured:
    """The same for topics whose settings go from the first to the second.

    Raises:
        UnreachableError: the cluster does not say all that has to be known.
    """
    at = now or datetime.now(UTC)
    found = {name: cuts.narrowed(*step) for name, step in sorted(steps.items())}
    limits = {name: each for name, each in found.items() if each is not None}
    if not limits:
        return Measured(at)
    logs = _logs(platform, kafka, limits, broker, at)
    made = [
        cuts.cut_of(name, each, (log for log in logs if log.partition.topic == name)) for name, each in limits.items()
    ]
    hit = {cut.topic for cut in made if cut.records}
    project = load(platform.settings.root)
    readers_of = ((each.kafka, app) for each in project.pipelines for app in each.apps if hit & set(app.reads))
    apps = [app for connection, app in readers_of if connection == kafka or _same_cluster(platform, connection, kafka)]
    readers = _readers(platform, kafka, apps)
    unsound = tuple(sorted({finding.file for finding in project.findings}))
    return Measured(at, tuple(made), cuts.losses(made, readers), unsound)


def about(platform: Platform, kafka: str, changes: Sequence[Change], observed: Mapping[str, ObservedTopic]) -> Facts:
    """What is to be known of the cuts among these changes; where that cannot be looked at, why."""
    try:
        return measure(platform, kafka, changes, observed=observed).about
    except MillraceError as error:
        return (("cuts_not_known", f"deleted records and their readers: {error.where}: {error.what}"),)


def refuse_losses(platform: Platform, plan: Plan, standings: Sequence[Standing]) -> None:
    """Refuse a plan that would take from a declared reader what it has not read yet.

    To be called right before its changes are made.

    Does not guarantee: anything about readers that no sound declaration has; nor about what a reader is made to read
    again after this, as by a rewind; nor about records that get too old later, as they would with any retention.

    Raises:
        RefusedError: a declared reader would lose unread records; it names all of them.
        UnreachableError: it could not be told.
    """
    pending = [change for change, standing in zip(plan.changes, standings, strict=True) if standing is Standing.PENDING]
    found = measure(platform, plan.connection, pending)
    if (refused := refusal(found, where=plan.id, again=f"`millrace plans run {plan.id}`")) is not None:
        raise refused


def _same_cluster(platform: Platform, one: str, other: str) -> bool:
    """Whether two Connections lead to one cluster, as where one was given another name."""
    return platform.kafka.topics(one).cluster_id() == platform.kafka.topics(other).cluster_id()


def refusal(found: Measured, *, where: str, again: str) -> RefusedError | None:
    """Why it may not be done now; None: it may.

    Args:
        found: what it would take, and from whom.
        where: the plan or topic.
        again: what to do once the readers have read it.
    """
    if found.unsound and any(cut.records for cut in found.cuts):
        return RefusedError(
            f"unread records of the streams of {', '.join(found.unsound)} are unknown: the declaration has errors",
            where=where,
            next_step=f"repair it (run `millrace spec check`), then {again} again",
            code=Code.INVALID_DECLARATION,
        )
    lost = found.losses
    if not lost:
        return None
    apps = [loss.reader.app.qualified_name for loss in lost]
    starts = " and ".join(f"`millrace streams start {name}`" for name in apps)
    return RefusedError(
        "a declared reader would lose unread records: " + "; ".join(str(loss) for loss in lost),
        where=where,
        next_step=f"start {'it' if len(apps) == 1 else 'them'} ({starts}), wait until "
        f"{'it has' if len(apps) == 1 else 'they have'} read these offsets, then {again} again",
        code=Code.RECORDS_AT_RISK,
    )


def _readers(platform: Platform, kafka: str, apps: Sequence[App]) -> list[Reader]:
    """Where these apps stand, by one request a group for all its topics."""
    log = platform.kafka.logs(kafka)
    partitions = log.partitions({topic for app in apps for topic in app.reads}) if apps else []
    found = []
    for app in apps:
        own = [partition for partition in partitions if partition.topic in app.reads]
        commits = log.committed(app.group, own)
        has_run = not commits and isinstance(app, Stream) and app.start is Start.LATEST and _has_run(platform, app)
        found.append(cuts.reader_of(app, own, commits, has_run=has_run))
    return found


def _has_run(platform: Platform, app: App) -> bool:
    """Whether an app of which there is no commit has run before: commits expire, and its sink still knows."""
    return platform.control.streams.progress(app.qualified_name) is not None


def _logs(
    platform: Platform, kafka: str, limits: Mapping[str, Limits], broker: BrokerSettings | None, now: datetime
) -> list[LogNow]:
    leaders = platform.kafka.logs(kafka).leaders(sorted(limits))
    silent = [str(partition) for partition, led in leaders.items() if not led]
    missing = sorted(limits.keys() - {partition.topic for partition in leaders})
    if silent or missing:
        raise UnreachableError(
            "its leaders do not answer, so its records are unknown",
            where=", ".join([*missing, *silent]),
            next_step="check with `millrace doctor` that every broker runs",
            code=Code.KAFKA_UNREACHABLE,
        )
    snapshot = _snapshot(platform, kafka, needed=any(each.size_bytes is not None for each in limits.values()))
    every = None if snapshot is None else snapshot.check_every
    said = broker or (BrokerSettings() if every is None else BrokerSettings(every))
    times = _times(platform, kafka, limits, sorted(leaders), said, now)
    seen = {partition: None if snapshot is None else _seen(snapshot, partition) for partition in leaders}
    unweighed = [str(p) for p, log in seen.items() if limits[p.topic].size_bytes is not None and _size(log) is None]
    if unweighed:
        raise UnreachableError(
            "no broker reports its size, so the effect of a size limit is unknown",
            where=", ".join(sorted(unweighed)),
            next_step="grant Describe on the cluster to the user of this connection",
            code=Code.MISSING_RIGHT,
        )
    logs = [
        LogNow(
            partition=partition,
            start=each.bounds.start,
            end=max(each.bounds.end, log.end if log else 0),
            young=young,
            size_bytes=_size(log),
            oldest_ms=log.first_ms if log else None,
        )
        for partition, (each, young) in times.items()
        for log in [seen[partition]]
    ]
    return _weighed(platform, kafka, limits, logs, {p: each.bounds.end for p, (each, _) in times.items()})


def _weighed(
    platform: Platform,
    kafka: str,
    limits: Mapping[str, Limits],
    logs: Sequence[LogNow],
    stable: Mapping[TopicPartition, int],
) -> list[LogNow]:
    """The same logs; those that a limit of size cuts with what some of their records weigh."""

    def excess(log: LogNow) -> int:
        limit = limits[log.partition.topic].size_bytes
        return 0 if limit is None else (log.size_bytes or 0) - limit

    largest = sorted((log for log in logs if excess(log) > 0), key=excess, reverse=True)[:MOST_SAMPLED]
    if not largest:
        return list(logs)
    read = platform.kafka.records(kafka).between
    samples = {log.partition: _samples(read, log, stable[log.partition]) for log in largest}
    worst = max((_ratio(own) for own in samples.values()), default=1.0)
    return [replace(log, samples=samples.get(log.partition) or _guessed(log, worst)) for log in logs]


def _ratio(samples: Sequence[tuple[int, float]]) -> float:
    weights = [weight for _, weight in samples if weight > 0]
    return max(weights) / min(weights) if weights else 1.0


def _guessed(log: LogNow, ratio: float) -> tuple[tuple[int, float], ...]:
    """Weights of a log that was not sampled: as uneven as the worst that was, and the heaviest at its end."""
    return ((log.start, 1.0), (log.end - 1, ratio)) if log.end - log.start > 1 else ()


def _samples(read: Read, log: LogNow, stable: int) -> tuple[tuple[int, float], ...]:
    """Offsets all over a log, and the bytes that an offset takes there; none where it is deleted meanwhile."""
    topic, number = log.partition.topic, log.partition.partition
    found = []
    for first in range(log.start, stable, max(_RECORDS_EACH, (stable - log.start) // SAMPLES)):
        with suppress(DataLossError):
            records = list(read(topic, number, first, min(first + _RECORDS_EACH, stable)))
            if records:
                weight = sum(_weight(record) for record in records)
                found.append((first, weight / (records[-1].offset + 1 - records[0].offset)))
    return tuple(found)


def _weight(record: TopicRecord) -> int:
    headers = sum(len(name) + len(value or b"") for name, value in record.headers)
    return _RECORD_BYTES + len(record.key or b"") + len(record.value or b"") + headers


def _times(
    platform: Platform,
    kafka: str,
    limits: Mapping[str, Limits],
    partitions: Collection[TopicPartition],
    broker: BrokerSettings,
    now: datetime,
) -> dict[TopicPartition, tuple[PartitionTimes, int]]:
    """Bounds of each partition, and its first record that is young enough."""
    log = platform.kafka.logs(kafka)
    found: dict[TopicPartition, tuple[PartitionTimes, int]] = {}
    for limit in {limits[partition.topic].time for partition in partitions}:
        own = [partition for partition in partitions if limits[partition.topic].time == limit]
        if limit is None:
            found |= {p: (PartitionTimes(bounds, None), bounds.start) for p, bounds in log.bounds(own).items()}
            continue
        at_ms = cuts.young_from_ms(limit, now, broker)
        found |= {p: (times, cuts.first_young(times, at_ms)) for p, times in log.times(own, at_ms).items()}
    return found


def _snapshot(platform: Platform, kafka: str, *, needed: bool) -> Snapshot | None:
    """The cluster as it is; where only people want to know sizes, they may stay unknown."""
    try:
        return platform.kafka.cluster(kafka).take()
    except MillraceError:
        if needed:
            raise
        return None


def _seen(snapshot: Snapshot, partition: TopicPartition) -> LogSeen | None:
    seen = snapshot.topics.get(partition.topic)
    same = seen is not None and seen.topic_id == partition.topic_id
    return snapshot.log((partition.topic, partition.partition)) if same else None


def _size(log: LogSeen | None) -> int | None:
    return log.size_bytes if log else None
