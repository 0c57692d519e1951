"""A rewind as a plan: what it moves, whether it is still true, and whether what came of it is what it said."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from millrace.domain.groups.commits import CommitMetadata, Committed, PlannedMove
from millrace.domain.plans.plan import Change, Plan, facts
from millrace.domain.rewind.time_travel import Move, Policy, Quality
from millrace.domain.streams.position import LogBounds, WorkRecord
from millrace.domain.topics.offsets import OffsetRange, TopicPartition

MOVE, KEEP = "stream.rewind", "stream.keep"
LEAST_GROWTH = 100_000
_TOLD = 20


@dataclass(frozen=True, slots=True)
class Rewind:
    """What a plan of this kind says: the stream, the timeline it was made on, and every partition on record.

    Attributes:
        may_grow_by: how many records more the stream itself may have read when the plan is run.
    """

    stream: str
    group: str
    timeline: int
    policy: Policy
    may_grow_by: int
    partitions: int  # of its topics, also those that nothing is on record of yet
    moves: tuple[Move, ...]

    @property
    def moved(self) -> tuple[Move, ...]:
        """The moves that change something."""
        return tuple(move for move in self.moves if move.target != move.now)

    def commits(self, plan_id: str, bounds: Mapping[TopicPartition, LogBounds]) -> dict[TopicPartition, PlannedMove]:
        """What to commit to the group; where the policy allows it, no offset lies before the log start of now."""
        return {
            move.partition: PlannedMove(
                self.stream, move.partition.topic_id, plan_id, self.timeline, self._target(move, bounds)
            )
            for move in self.moved
        }

    def _target(self, move: Move, bounds: Mapping[TopicPartition, LogBounds]) -> int:
        return max(move.target, bounds[move.partition].start) if self.policy is Policy.EARLIEST else move.target

    def ranges(self, ends: Mapping[TopicPartition, int]) -> tuple[OffsetRange, ...]:
        """What is read again, up to where the work on record ended."""
        return tuple(OffsetRange(move.partition, move.target, ends[move.partition]) for move in self.moved)


def changes_of(moves: Sequence[Move]) -> tuple[Change, ...]:
    """The moves as a plan's changes."""
    return tuple(
        Change(
            MOVE if move.target != move.now else KEEP,
            str(move.partition),
            facts({"offset": move.now, "topic_id": move.partition.topic_id}),
            facts(
                {"offset": move.target, "quality": move.quality.value}
                | ({"late_ms": move.late // _MILLISECOND} if move.late else {})
            ),
        )
        for move in moves
    )


_MILLISECOND = timedelta(milliseconds=1)


def rewind_of(plan: Plan) -> Rewind:
    """The rewind that a plan of this kind says.

    Raises:
        ValueError: it is a plan of another kind, or of a later Millrace.
    """
    about = dict(plan.about)
    try:
        return Rewind(
            plan.target,
            about["group"],
            int(about["timeline"]),
            Policy(about["policy"]),
            int(about["may_grow_by"]),
            int(about["partitions"]),
            tuple(_move(change) for change in plan.changes),
        )
    except KeyError as error:
        raise ValueError(f"not a rewind: it does not say {error}") from error


def _move(change: Change) -> Move:
    topic, _, number = change.subject.rpartition("/")
    before, after = dict(change.before), dict(change.after)
    return Move(
        TopicPartition(topic, before["topic_id"], int(number)),
        int(before["offset"]),
        int(after["offset"]),
        Quality(after["quality"]),
        int(after.get("late_ms", "0")) * _MILLISECOND,
    )


def foreign_commits(
    stream: str, record: WorkRecord, group: Mapping[tuple[str, int], Committed], *, plan_id: str = ""
) -> list[str]:
    """Commits that the next start would take for a move: by somebody, or by another plan than this one."""
    found = []
    for partition, done in sorted(record.next_offsets.items()):
        committed = group.get((partition.topic, partition.partition))
        if committed is None or committed.offset == done:
            continue
        own, move = CommitMetadata.decode(committed.metadata), PlannedMove.decode(committed.metadata)
        if own is not None and (own.stream, own.offset) == (stream, committed.offset):
            continue
        if move is not None and (move.stream, move.offset) == (stream, committed.offset):
            if move.timeline < record.timeline or move.plan == plan_id:
                continue
            found.append(f"{partition} was moved to {committed.offset} by plan {move.plan}")
            continue
        found.append(f"{partition} was moved to {committed.offset} by someone else")
    return found


def stale(
    rewind: Rewind,
    plan_id: str,
    record: WorkRecord,
    group: Mapping[tuple[str, int], Committed],
    bounds: Mapping[TopicPartition, LogBounds],
) -> str:
    """Why a rewind may no longer be run; empty where it may.

    Args:
        rewind: what was planned.
        plan_id: its plan; moves that this very plan has made already are no hindrance.
        record: the sink's record of work.
        group: the group's commits.
        bounds: every partition that the stream's topics have now.
    """
    if record.timeline != rewind.timeline:
        return f"it was made on timeline {rewind.timeline}, but the stream is on timeline {record.timeline}"
    if len(bounds) != rewind.partitions:
        return f"its topics had {rewind.partitions} partitions and now have {len(bounds)}"
    planned = {move.partition for move in rewind.moves}
    topics = {partition.topic for partition in planned}
    if changed := planned ^ {partition for partition in record.next_offsets if partition.topic in topics}:
        return f"the record of work has other partitions: {_some(map(str, sorted(changed)))}"
    if moved := foreign_commits(rewind.stream, record, group, plan_id=plan_id):
        return _some(moved)
    return _some(_gone(rewind, record, bounds)) or _grown(rewind, record)


def _gone(rewind: Rewind, record: WorkRecord, bounds: Mapping[TopicPartition, LogBounds]) -> Iterator[str]:
    topics = {partition.topic: partition.topic_id for partition in bounds}
    for move in rewind.moves:
        held = bounds.get(move.partition)
        if held is None:
            gone = topics.get(move.partition.topic) == move.partition.topic_id
            yield f"{move.partition} {'is gone' if gone else 'belongs to a topic that was deleted and created again'}"
        elif move.target != move.now and held.start > move.target and rewind.policy is Policy.FAIL:
            yield f"{move.partition}: the log now begins at {held.start}, past the target {move.target}"
        if record.next_offsets[move.partition] < move.now:
            yield f"{move.partition}: the record of work went back from {move.now}"


def _grown(rewind: Rewind, record: WorkRecord) -> str:
    grown = sum(record.next_offsets[move.partition] - move.now for move in rewind.moves)
    if grown <= rewind.may_grow_by:
        return ""
    return f"the stream has read {grown:,} records since the plan; the plan allows {rewind.may_grow_by:,}"


def wrong_positions(rewind: Rewind, record: WorkRecord, ends: Mapping[TopicPartition, int]) -> str:
    """In what the timeline that was opened differs from the plan; empty where it does not.

    Args:
        rewind: what was planned.
        record: the record of work now.
        ends: where the work on record ended before.
    """
    if record.timeline != rewind.timeline + 1:
        return f"the stream is on timeline {record.timeline}, but the plan opens timeline {rewind.timeline + 1}"
    wrong = []
    for move in rewind.moves:
        wanted = move.target if move.target != move.now else ends[move.partition]
        first = record.first_offsets.get(move.partition)
        later = first is not None and rewind.policy is Policy.EARLIEST and move.target != move.now and first >= wanted
        if first != wanted and not later:
            wrong.append(f"{move.partition} begins at {first}, but the plan says {wanted}")
    return _some(wrong)


def _some(texts: Iterator[str] | Sequence[str] | map[str]) -> str:
    told = list(texts)
    more = f" and {len(told) - _TOLD} more" if len(told) > _TOLD else ""
    return ", ".join(told[:_TOLD]) + more
