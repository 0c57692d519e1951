"""How large topics get and how old their oldest records, held against what is there; and the disks they are on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING

from millrace.declarations import load
from millrace.domain.groups.snapshots import DiskSeen, LogSample, LogSeen, Partition, Snapshot, TopicSeen
from millrace.domain.retention.advice import IN_FORCE, Advice, advise
from millrace.domain.retention.bounds import Bound, Breach, bound, breaches, clean_bytes
from millrace.domain.retention.flow import Flow, flow, steady
from millrace.domain.retention.settings import BrokerSettings, LogSettings, log_settings
from millrace.usecases.declaration.lookup import declared_topics
from millrace.usecases.retention.measured import Measured

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from millrace.domain.declaration.pipeline import Topic
    from millrace.ports.platform import Platform

LATELY = timedelta(minutes=15)
MOST_READ = 32  # partitions
READ_WITHIN = timedelta(seconds=10)
_FACTOR = 1.5  # by which what is measured may be more or less than what was expected
INTERNAL = "__"


@dataclass(frozen=True, slots=True)
class PartitionSizing:
    """One partition.

    Attributes:
        number: its number.
        log: as it is now; None where nobody answered for it.
        flow: bytes a second that come in; None where nobody knows.
        bound: what it takes at most.
        age: of its oldest record, by its timestamp; None where it holds none with one.
        breaches: what of that does not hold.
    """

    number: int
    log: LogSeen | None
    flow: Flow | None
    bound: Bound
    age: timedelta | None
    breaches: Sequence[Breach] = ()


@dataclass(frozen=True, slots=True)
class TopicSizing:
    """One topic.

    Attributes:
        name: its name.
        seen: as it is now.
        settings: those in force; None where nobody said them.
        declared: its declaration; None where no sound one has it.
        partitions: by number.
        assumed: whether the rate is the declared one, for nothing was measured yet.
        advice: what of its settings is probably not meant.
        broker: what its brokers are set to.
    """

    name: str
    seen: TopicSeen
    settings: LogSettings | None
    declared: Topic | None
    partitions: Sequence[PartitionSizing]
    assumed: bool = False
    advice: Sequence[Advice] = ()
    broker: BrokerSettings = field(default_factory=BrokerSettings)

    @property
    def size_bytes(self) -> int | None:
        """What the leaders' replicas take together; None where one is not known."""
        sizes = [one.log.size_bytes if one.log else None for one in self.partitions]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    @property
    def bound_bytes(self) -> float | None:
        """What they take at most; None where one has no bound."""
        return _sum([one.bound.log_bytes for one in self.partitions])

    @property
    def disk_bytes(self) -> float | None:
        """What all replicas take on the disks at most, with what waits for its deletion."""
        total = _sum([one.bound.disk_bytes for one in self.partitions])
        return None if total is None else total * max(1, self.seen.replication)

    @property
    def age(self) -> timedelta | None:
        """Of the oldest record of all."""
        return max((one.age for one in self.partitions if one.age is not None), default=None)

    @property
    def age_bound(self) -> timedelta | None:
        """How old that gets; None where one partition has no bound."""
        ages = [one.bound.age for one in self.partitions]
        return None if not ages or None in ages else max(age for age in ages if age is not None)

    @property
    def bytes_per_second(self) -> float | None:
        """What comes in, on average."""
        return _sum([one.flow.mean if one.flow else None for one in self.partitions])

    @property
    def offset_bytes(self) -> float | None:
        """What an offset takes in the log, on average; None where it holds none."""
        logs = [one.log for one in self.partitions if one.log is not None and one.log.size_bytes is not None]
        count = sum(log.end - log.start for log in logs)
        return sum(log.size_bytes or 0 for log in logs) / count if count else None

    @property
    def differs(self) -> Sequence[str]:
        """What of its expectations is not so by more than half, a line each; nothing where nothing was measured."""
        expect = self.declared.expect if self.declared else None
        if expect is None or self.assumed:
            return ()
        found = []
        measured, weighs = self.bytes_per_second, self.offset_bytes
        if expect.rate_per_second is not None and measured is not None and weighs:
            rate = measured / weighs
            if not expect.rate_per_second / _FACTOR <= rate <= expect.rate_per_second * _FACTOR:
                found.append(f"{rate:,.1f} offsets a second come in, and {expect.rate_per_second:,.1f} were expected")
        size = expect.record_bytes
        if size is not None and weighs and not size / _FACTOR <= weighs <= size * _FACTOR:
            found.append(f"an offset takes {weighs:,.0f} bytes, and {size:,} were expected")
        return found

    @property
    def breaches(self) -> Sequence[Breach]:
        """Of all partitions."""
        return [breach for one in self.partitions for breach in one.breaches]


@dataclass(frozen=True, slots=True)
class Sizing:
    """The topics of one cluster, by name.

    Attributes:
        kafka: the Connection that leads to it.
        snapshot: what all of this was read from.
        topics: them.
        disks: the brokers' folders.
        not_known: what could not be looked up, a line each.
    """

    kafka: str
    snapshot: Snapshot
    topics: Sequence[TopicSizing]
    disks: Sequence[DiskSeen]
    not_known: Sequence[str] = ()


def size(
    platform: Platform,
    kafka: str,
    topics: Collection[str] | None = None,
    *,
    snapshot: Snapshot | None = None,
    read: bool = False,
) -> Sizing:
    """How large topics are and get. Changes nothing.

    Rates are those of the snapshots that are kept; where the control database is away, or has none yet, they are those
    that are declared as expected.

    Args:
        platform: the adapters.
        kafka: the cluster's Connection.
        topics: only these; default: all but Kafka's own.
        snapshot: of the cluster now; default: it is taken.
        read: read the first record of each partition, of 32 at most. Otherwise the oldest age is that of what the
            broker finds first, which may be a transaction's marker or a record that was aborted.

    Raises:
        UnreachableError: no broker answers.
    """
    seen = snapshot or platform.kafka.cluster(kafka).take()
    names = [name for name in seen.topics if not name.startswith(INTERNAL)] if topics is None else topics
    present = sorted(name for name in names if name in seen.topics)
    not_known: list[str] = []
    if read:
        seen = _with_first_records(platform, kafka, seen, present, not_known)
    declared = declared_topics(platform.settings.root, kafka)
    measured = Measured(platform, kafka, seen)
    samples = measured.samples(present)
    broker = BrokerSettings() if seen.check_every is None else BrokerSettings(seen.check_every)
    fed = fed_topics(platform.settings.root, kafka)
    found = [_topic(seen, name, declared.get(name), samples, broker, fed=name in fed) for name in present]
    return Sizing(kafka, seen, found, seen.disks, [*measured.not_known, *not_known, *seen.faults])


def _with_first_records(
    platform: Platform, kafka: str, seen: Snapshot, names: Sequence[str], not_known: list[str]
) -> Snapshot:
    """The same snapshot, but `first_ms` is of the first record that a reader of committed data gets."""
    held = [((name, n), log) for name in names for n, log in enumerate(seen.topics[name].logs) if log is not None]
    asked = {here: (log.start, log.stable) for here, log in held if log.end > log.start}
    asked = dict(islice(asked.items(), MOST_READ))
    if not asked:
        return seen
    read = platform.kafka.records(kafka).first_records(asked, READ_WITHIN)
    not_known += [
        f"the first record of {name}/{n}: {read.why(name, n)}" for name, n in asked if (name, n) not in read.found
    ]
    topics = dict(seen.topics)
    for name in names:
        logs = [
            log if log is None or (name, n) not in read.found else replace(log, first_ms=read.found[name, n])
            for n, log in enumerate(seen.topics[name].logs)
        ]
        topics[name] = replace(seen.topics[name], logs=tuple(logs))
    return replace(seen, topics=topics)


def fed_topics(root: Path, kafka: str) -> set[str]:
    """The topics of a cluster that declared source programs write to."""
    return {one.writes for pipeline in load(root).pipelines if pipeline.kafka == kafka for one in pipeline.sources}


def _topic(
    snapshot: Snapshot,
    name: str,
    declared: Topic | None,
    samples: Mapping[Partition, Sequence[LogSample]],
    broker: BrokerSettings,
    *,
    fed: bool,
) -> TopicSizing:
    seen = snapshot.topics[name]
    settings = None if seen.settings is None else log_settings(seen.settings)
    expected = _expected(declared, len(seen.logs))
    made = [
        _partition(snapshot, (name, number), settings, samples.get((name, number), ()), broker, expected)
        for number in range(len(seen.logs))
    ]
    assumed = bool(made) and expected is not None and all(one.flow in (None, expected) for one in made)
    advice = advise(
        name,
        settings or LogSettings(),
        replication=seen.replication if len({disk.broker for disk in snapshot.disks}) > 1 else None,
        partitions=len(seen.logs),
        has_key=None if declared is None else declared.key is not None,
        fed_by_source=fed,
        declared=IN_FORCE,
    )
    return TopicSizing(name, seen, settings, declared, made, assumed, advice if settings else (), broker)


def _expected(declared: Topic | None, partitions: int) -> Flow | None:
    """Bytes a second that a partition is expected to get; None where rate and record size are not both declared."""
    expect = declared.expect if declared else None
    if expect is None or expect.rate_per_second is None or expect.record_bytes is None or not partitions:
        return None
    return steady(expect.rate_per_second * expect.record_bytes / partitions)


def _partition(
    snapshot: Snapshot,
    partition: Partition,
    settings: LogSettings | None,
    samples: Sequence[LogSample],
    broker: BrokerSettings,
    expected: Flow | None,
) -> PartitionSizing:
    number, log = partition[1], snapshot.log(partition)
    if log is None or settings is None:
        return PartitionSizing(number, log, None, Bound(why="its state and its settings are not known"), None)
    of_offset = log.size_bytes / (log.end - log.start) if log.size_bytes and log.end > log.start else None
    measured = flow([(sample.at, sample.end) for sample in samples], of_offset) if of_offset else None
    rate = measured or expected
    found = bound(settings, broker, rate, clean_bytes(samples))
    age = _age(snapshot, log.first_ms) if log.end > log.start else None
    wrong = breaches(
        settings,
        found,
        partition=number,
        size_bytes=log.size_bytes,
        age=age,
        youngest=_age(snapshot, log.last_ms, asked=timedelta(seconds=snapshot.seconds)),
        grows=_grows(snapshot, samples),
    )
    return PartitionSizing(number, log, rate, found, age, tuple(wrong))


def _grows(snapshot: Snapshot, samples: Sequence[LogSample]) -> bool | None:
    lately = [sample.end for sample in samples if snapshot.at - sample.at <= LATELY]
    return None if len(lately) < 2 else lately[-1] > lately[0]


def _age(snapshot: Snapshot, stamp_ms: int | None, *, asked: timedelta = timedelta(0)) -> timedelta | None:
    """How old a record is; `asked`: how long after the snapshot was begun its timestamp may have been asked for."""
    if stamp_ms is None:
        return None
    return timedelta(milliseconds=_in_bounds(int((snapshot.at + asked).timestamp() * 1000) - stamp_ms))


def _in_bounds(milliseconds: int) -> int:
    """Records carry any timestamp."""
    longest = timedelta.max // timedelta(milliseconds=1)
    return max(-longest, min(longest, milliseconds))


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None
