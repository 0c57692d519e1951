"""Whether a topic can take what is restored into it, and keep it: decided before the first record is written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from millrace.domain.archive.manifest import MOST, ObjectEntry
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.restore.records import Placement
from millrace.domain.archive.selection import NO_TIMESTAMP, Selection
from millrace.domain.plans.plan import Refusal
from millrace.domain.topics.changes import ObservedTopic

KEPT_AT_LEAST_MS = 24 * 3_600_000
"""For how long a target's retention has to keep every record that is restored."""

_UNLIMITED = -1
CODEC = "gzip"
"""How records are compressed on their way: the one codec that every client reads without a further library."""


@dataclass(slots=True)
class Survey:
    """What manifests say of the records that are asked for: bounds, as the records themselves are not read.

    Attributes:
        selection: what is asked for.
        partitions: how many the topic had.
        records: how many there are at most.
        least_ms: no timestamp is less; None where there is no record.
        greatest_ms: none is greater.
        ends: behind the last object of each partition, whether it is asked for or not.
    """

    selection: Selection
    partitions: int = 0
    records: int = 0
    least_ms: int | None = None
    greatest_ms: int | None = None
    ends: dict[int, int] = field(default_factory=dict)

    def see(self, entry: ObjectEntry) -> None:
        """Take an object in, where it may hold something of it."""
        self.ends[entry.partition] = max(entry.next, self.ends.get(entry.partition, 0))
        least, greatest = entry.min_timestamp_ms, entry.max_timestamp_ms
        if not self.selection.may_hold(entry) or least is None or greatest is None:
            return
        if self.selection.from_ms is not None:
            least = max(least, self.selection.from_ms)
        if self.selection.to_ms is not None:
            greatest = min(greatest, self.selection.to_ms - 1)
        self.least_ms = least if self.least_ms is None else min(self.least_ms, least)
        self.greatest_ms = greatest if self.greatest_ms is None else max(self.greatest_ms, greatest)
        within = min(entry.next, self.selection.next) - max(entry.first, self.selection.first)
        self.records += min(entry.count, within)


def refusals(
    target: ObservedTopic, source: Incarnation, survey: Survey, placement: Placement, now_ms: int
) -> Iterator[Refusal]:
    """Why a topic is not written to; nothing where it is.

    Args:
        target: the topic as it is.
        source: whose archive is restored.
        survey: what of it.
        placement: how its partitions go into those of the target.
        now_ms: the time, in milliseconds since 1970.
    """
    if target.topic_id == source.topic_id:
        yield Refusal(
            target.name,
            "it is the topic that the records come from",
            "name another topic with --into, or the archive of a former one of its name with --topic-id",
        )
    yield from _of_partitions(target, survey, placement)
    policy = [each.strip() for each in target.setting("cleanup.policy").split(",")]
    if "compact" in policy:
        what = "its cleanup.policy is compact: the cleaner would take records out before anybody can hold them against"
        yield _set(target, f"{what} the archive", "cleanup.policy=delete", "; compact it when all is restored")
    if target.setting("message.timestamp.type") == "LogAppendTime":
        what = "its message.timestamp.type is LogAppendTime: the broker would write its own timestamps over theirs"
        yield _set(target, what, "message.timestamp.type=CreateTime")
    if "delete" in policy:
        yield from _of_retention(target, survey, now_ms)
    yield from _of_timestamps(target, survey, now_ms)


def _of_partitions(target: ObservedTopic, survey: Survey, placement: Placement) -> Iterator[Refusal]:
    if placement is Placement.KEY:
        return
    meant, only = survey.partitions, survey.selection.partition
    if placement is Placement.SAME and target.partitions != meant:
        yield Refusal(
            target.name,
            f"it has {target.partitions} partitions, and the archived topic had {meant}",
            "say where records go: --partitions keep (the same numbers) or --partitions key (by their keys)",
        )
    needed = meant if only is None else only + 1
    if placement is Placement.KEEP and target.partitions < needed:
        yield Refusal(
            target.name,
            f"it has {target.partitions} partitions, and the records lie in those up to {needed - 1}",
            f"give it {needed} partitions, or let keys decide: --partitions key",
        )


def _of_retention(target: ObservedTopic, survey: Survey, now_ms: int) -> Iterator[Refusal]:
    kept_ms, least = _number(target, "retention.ms", _UNLIMITED), survey.least_ms
    if kept_ms != _UNLIMITED and least is not None and least + kept_ms < now_ms + KEPT_AT_LEAST_MS:
        what = (
            f"its retention.ms is {kept_ms}, and timestamps go back to {least}: what is restored could be deleted "
            "within a day"
        )
        yield _set(target, what, "retention.ms=-1")
    if (size := _number(target, "retention.bytes", _UNLIMITED)) != _UNLIMITED:
        what = f"its retention.bytes is {size}, and the final size of its log is unknown"
        yield _set(target, what, "retention.bytes=-1")


def _of_timestamps(target: ObservedTopic, survey: Survey, now_ms: int) -> Iterator[Refusal]:
    least, greatest = survey.least_ms, survey.greatest_ms
    if least is None or greatest is None:
        return
    both = _number(target, "message.timestamp.difference.max.ms", MOST)  # of brokers before 4.0
    before = min(both, _number(target, "message.timestamp.before.max.ms", MOST))
    after = min(both, _number(target, "message.timestamp.after.max.ms", MOST))
    if least < NO_TIMESTAMP and target.setting("compression.type") not in ("", "producer", CODEC):
        what = "its compression.type makes the broker rewrite batches, and it refuses timestamps before 1970"
        yield _set(target, what, "compression.type=producer")
    if before < MOST and least < now_ms - before:
        what = f"it takes no timestamp that lies more than {before} ms back, and they go back to {least}"
        yield _set(target, what, f"message.timestamp.before.max.ms={MOST}")
    if after < MOST and greatest > now_ms + after:
        what = f"it takes no timestamp that lies more than {after} ms ahead, and they go up to {greatest}"
        yield _set(target, what, f"message.timestamp.after.max.ms={MOST}")


def _number(target: ObservedTopic, setting: str, otherwise: int) -> int:
    text = target.setting(setting)
    return int(text) if text.removeprefix("-").isdigit() else otherwise


def _set(target: ObservedTopic, what: str, setting: str, more: str = "") -> Refusal:
    command = f"kafka-configs --bootstrap-server ... --alter --topic {target.name} --add-config {setting}"
    return Refusal(target.name, what, f"`{command}`{more}")
