"""Where a stream begins to read: one pure decision over everything that claims to know.

The sink's record of work says what is done. The consumer group says what is wanted next, and somebody may have
moved it. The log says what is still there. `open_at` weighs them; its table of cases stands in
`tests/unit/domain/streams/test_position.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from millrace.domain.declaration.pipeline import OnRewind, Start
from millrace.domain.groups.commits import CommitMetadata, Committed, PlannedMove
from millrace.domain.topics.offsets import TopicPartition


@dataclass(frozen=True, slots=True)
class WorkRecord:
    """The sink's record of work on its newest timeline. Timeline 0 with no partitions: nothing is on record.

    Attributes:
        timeline: the newest.
        next_offsets: where the work on it ends, for now.
        first_offsets: where the timeline began; next and first are equal where it has done nothing yet.
        moved: partitions whose group somebody has moved for certain, where the group's commits are the record of work:
            their next offset is where the work ended at least.
    """

    timeline: int = 0
    next_offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    first_offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    moved: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True)
class LogBounds:
    """What a partition's log holds for a read_committed reader: offsets `start <= offset < end`."""

    start: int
    end: int


class Basis(StrEnum):
    """What a partition's position rests on."""

    RECORD = "record"  # the sink's record of work
    GROUP = "group"  # the consumer group, moved by somebody
    PLAN = "plan"  # the consumer group, moved by a plan
    START = "start"  # the declaration: nothing else is known
    BEGINNING = "beginning"  # a partition that is new since the record was written
    CLAMPED = "clamped"  # the group pointed outside the log


@dataclass(frozen=True, slots=True)
class Position:
    """The offset to read first, and why."""

    offset: int
    basis: Basis
    note: str = ""


class Refusal(StrEnum):
    """Why a stream does not start by itself."""

    RECREATED = "recreated"
    REWIND = "rewind"
    DATA_LOSS = "data_loss"
    RECORD_MISSING = "record_missing"
    FENCED = "fenced"


@dataclass(frozen=True, slots=True)
class Resume:
    """Go on where the record of work ends. `new` partitions have no row in the record yet."""

    timeline: int
    positions: Mapping[TopicPartition, Position]


@dataclass(frozen=True, slots=True)
class OpenTimeline:
    """Begin a new timeline at these positions; write them to the record of work before reading."""

    timeline: int
    positions: Mapping[TopicPartition, Position]


@dataclass(frozen=True, slots=True)
class Refuse:
    """Stay stopped. `what` names the partition and offsets, `next_step` the way out."""

    refusal: Refusal
    what: str
    next_step: str


Opening = Resume | OpenTimeline | Refuse


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the declaration and the operator allow."""

    start: Start = Start.EARLIEST
    on_rewind: OnRewind = OnRewind.REPROCESS
    accept_recreated: bool = False


def open_at(
    stream: str,
    epoch: int,
    record: WorkRecord,
    group: Mapping[tuple[str, int], Committed],
    log: Mapping[TopicPartition, LogBounds],
    wishes: Wishes,
) -> Opening:
    """Decide where a stream begins to read.

    Args:
        stream: PIPELINE.STREAM.
        epoch: the epoch that is starting.
        record: the sink's record of work.
        group: the consumer group's commits, by topic and partition.
        log: every partition that exists now, with the ids its topic has now.
        wishes: what declaration and operator allow.
    """
    recreated = _recreated(record, log)
    if recreated and not wishes.accept_recreated:
        return Refuse(
            Refusal.RECREATED,
            f"{', '.join(sorted(recreated))}: the topic was deleted and created again; the record of work is about "
            "the former topic",
            f"check the new topic, then run `millrace streams accept {stream} --reason ...` to read it from its "
            "beginning",
        )
    positions: dict[TopicPartition, Position] = {}
    for partition, bounds in sorted(log.items()):
        committed = group.get((partition.topic, partition.partition))
        decided = _position(stream, epoch, record, partition, committed, bounds, wishes)
        if isinstance(decided, Refuse):
            return decided
        positions[partition] = decided
    moved = {p: position for p, position in positions.items() if position.basis in {Basis.GROUP, Basis.CLAMPED}}
    planned = any(position.basis is Basis.PLAN for position in positions.values())
    if record.timeline == 0 or recreated:
        return OpenTimeline(record.timeline + 1, positions)
    if not moved and not planned:
        return Resume(record.timeline, positions)
    if moved and wishes.on_rewind is OnRewind.REFUSE:
        return Refuse(Refusal.REWIND, _moves(record, moved), _way_back(stream, record, moved))
    return OpenTimeline(record.timeline + 1, positions)


def _recreated(record: WorkRecord, log: Mapping[TopicPartition, LogBounds]) -> set[str]:
    """Topics whose newest work on record was done from another incarnation than the one that exists."""
    now = {partition.topic: partition.topic_id for partition in log}
    on_record: dict[str, set[str]] = {}
    for partition in record.next_offsets:
        on_record.setdefault(partition.topic, set()).add(partition.topic_id)
    return {topic for topic, ids in on_record.items() if topic in now and now[topic] not in ids}


def _position(
    stream: str,
    epoch: int,
    record: WorkRecord,
    partition: TopicPartition,
    committed: Committed | None,
    bounds: LogBounds,
    wishes: Wishes,
) -> Position | Refuse:
    done = record.next_offsets.get(partition)
    metadata, planned = _own_metadata(stream, committed), _planned_move(stream, committed)
    if metadata is not None and metadata.epoch > epoch:
        return Refuse(
            Refusal.FENCED,
            f"{partition}: epoch {metadata.epoch} has committed, and fences this epoch {epoch}",
            f"see the newer instance with `millrace streams show {stream}`",
        )
    ours = metadata or planned
    if ours is not None and ours.topic_id != partition.topic_id:
        committed = ours = metadata = planned = None  # of the topic that had this name before: it says nothing of this
    if done is None:
        return _without_record(stream, record, partition, committed, ours, bounds, wishes)
    if ours is not None and ours.timeline > record.timeline:
        return _older_sink(stream, record, partition, ours)
    if planned is not None and planned.timeline == record.timeline and planned.offset != done:
        return replace(_within(planned.offset, bounds), basis=Basis.PLAN)
    if ours is None and committed is not None and partition in record.moved:
        return _within(committed.offset, bounds)
    foreign = _foreign_move(record, partition, committed, bounds) if ours is None else None
    if foreign is not None and foreign.basis is not Basis.RECORD:
        return foreign
    if not bounds.start <= done <= bounds.end:
        return _lost(stream, partition, done, bounds)
    return foreign or Position(done, Basis.RECORD)


def _foreign_move(
    record: WorkRecord, partition: TopicPartition, committed: Committed | None, bounds: LogBounds
) -> Position | None:
    """Where a commit that is not ours puts a partition with work on record; None where the record ends there."""
    done = record.next_offsets[partition]
    if committed is None or committed.offset == done:
        return None
    if _opened_this_timeline(record, partition, committed, bounds):
        note = f"offset {committed.offset} is beyond the log end {bounds.end}, as when the timeline began"
        return Position(done, Basis.RECORD, note)
    moved = _within(committed.offset, bounds)
    return None if moved.offset == done else moved


def _without_record(
    stream: str,
    record: WorkRecord,
    partition: TopicPartition,
    committed: Committed | None,
    metadata: CommitMetadata | PlannedMove | None,
    bounds: LogBounds,
    wishes: Wishes,
) -> Position | Refuse:
    if metadata is not None:
        return Refuse(
            Refusal.RECORD_MISSING,
            f"{partition}: the group holds our own commit of offset {metadata.offset} (timeline {metadata.timeline}), "
            "but the sink has no record of that work: the database was replaced or reset",
            "point the stream at its sink again, or reset its group to the first offset for this sink "
            f"(`streams show {stream}` names the group)",
        )
    if committed is not None:
        moved = _within(committed.offset, bounds)
        if record.timeline and moved.offset == bounds.start:
            return Position(bounds.start, Basis.BEGINNING)
        return moved
    if record.timeline:
        return Position(bounds.start, Basis.BEGINNING)
    return Position(bounds.start if wishes.start is Start.EARLIEST else bounds.end, Basis.START)


def _opened_this_timeline(
    record: WorkRecord, partition: TopicPartition, committed: Committed, bounds: LogBounds
) -> bool:
    """Whether a commit behind the log end may be the one that this timeline was opened by, at what was the end then.

    Its first life crashed before it committed, and nobody asked to skip what has come since. A second commit behind
    the end, of a partition of which this timeline has done nothing, looks the same and is not obeyed either.
    """
    done = record.next_offsets[partition]
    return done == record.first_offsets.get(partition) and done <= bounds.end < committed.offset


def _older_sink(
    stream: str, record: WorkRecord, partition: TopicPartition, metadata: CommitMetadata | PlannedMove
) -> Refuse:
    return Refuse(
        Refusal.RECORD_MISSING,
        f"{partition}: the group holds our own commit of timeline {metadata.timeline} (offset {metadata.offset}), but "
        f"the sink's record of work ends with timeline {record.timeline} (offset {record.next_offsets[partition]}): "
        "the database is older, for instance restored from a backup",
        f"point the stream at its newer sink again; or reset its group (`streams show {stream}` names it) to the end "
        f"of this sink's record: {_on_record(record, record.next_offsets)}",
    )


def _own_metadata(stream: str, committed: Committed | None) -> CommitMetadata | None:
    """The commit's metadata where this stream wrote it for this very offset."""
    if committed is None:
        return None
    metadata = CommitMetadata.decode(committed.metadata)
    if metadata is None or metadata.stream != stream:
        return None
    return metadata if metadata.offset == committed.offset else None


def _planned_move(stream: str, committed: Committed | None) -> PlannedMove | None:
    """The move that a plan made by this commit, where it is this stream's and of this very offset."""
    found = PlannedMove.decode(committed.metadata) if committed is not None else None
    if found is None or committed is None or found.stream != stream or found.offset != committed.offset:
        return None
    return found


def _within(target: int, bounds: LogBounds) -> Position:
    if target < bounds.start:
        note = f"offset {target} is before the log start {bounds.start}: the records between them have expired"
        return Position(bounds.start, Basis.CLAMPED, note)
    if target > bounds.end:
        return Position(bounds.end, Basis.CLAMPED, f"offset {target} is beyond the log end {bounds.end}")
    return Position(target, Basis.GROUP)


def _lost(stream: str, partition: TopicPartition, done: int, bounds: LogBounds) -> Refuse:
    if done < bounds.start:
        what = f"{partition}: offsets {done} to {bounds.start - 1} expired before they were read"
    else:
        what = f"{partition}: the log ends at {bounds.end} and the record of work at {done}: the log was truncated"
    return Refuse(
        Refusal.DATA_LOSS,
        what,
        f"to continue without them, reset the group of {stream} to the next offset, and start the stream again",
    )


def _moves(record: WorkRecord, moved: Mapping[TopicPartition, Position]) -> str:
    def lines() -> Iterator[str]:
        for partition, position in moved.items():
            done = "an unknown offset" if partition in record.moved else record.next_offsets.get(partition)
            yield f"{partition} from {done} to {position.offset}" + (f" ({position.note})" if position.note else "")

    return "the consumer group was moved by someone else: " + ", ".join(lines())


def _way_back(stream: str, record: WorkRecord, moved: Mapping[TopicPartition, Position]) -> str:
    if not record.moved.isdisjoint(moved):
        return f"declare `on_rewind: reprocess` for {stream}: it did not stop cleanly, its former offsets are unknown"
    back = _on_record(record, moved) or "its former offsets"
    return f"reset the group back to {back}, or declare `on_rewind: reprocess` for {stream}"


def _on_record(record: WorkRecord, partitions: Iterable[TopicPartition]) -> str:
    """Where the record of these partitions ends, as the stock tools would be told."""
    return ", ".join(f"{p}:{record.next_offsets[p]}" for p in sorted(partitions) if p in record.next_offsets)
