"""Plan to rewind a stream: where a time lies on each partition, what would be read again, what would be replaced."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from millrace.declarations import load
from millrace.domain.formats.shortened import shortened, shortened_lines
from millrace.domain.plans.plan import LIFETIME, Plan, PlanKind, facts
from millrace.domain.rewind.plan import LEAST_GROWTH, changes_of, foreign_commits
from millrace.domain.rewind.time_travel import (
    EARLIEST,
    Move,
    Policy,
    Quality,
    Resolved,
    WrongTimeError,
    disorder,
    expected_duration,
    moves_of,
    parse_offsets,
    parse_time,
    resolve,
    resolve_offset,
)
from millrace.domain.sinks.capabilities import Capability
from millrace.domain.topics.offsets import OffsetRange, TopicPartition
from millrace.errors import Code, MillraceError, RefusedError, UnreachableError, UsageError
from millrace.usecases.declaration.environment import environment_of
from millrace.usecases.declaration.lookup import DeclaredStream, declared_stream
from millrace.usecases.sinks.required import require

if TYPE_CHECKING:
    from millrace.domain.streams.position import WorkRecord
    from millrace.ports.platform import Platform

STARTS_IN = timedelta(seconds=30)  # drain, the member's session, Spark's start
_SAMPLED_PARTITIONS = 4
_SAMPLED_RECORDS = 500
_TOLD = 20
_MILLISECOND = timedelta(milliseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Target = datetime | str | Mapping[tuple[str, int], int]
"""A moment, `earliest`, or offsets by topic and partition."""


def target_of(text: str, now: datetime, read_file: Callable[[str], str | None]) -> Target:
    """What the text of `--to` or of the form names.

    Args:
        text: `earliest`, a time with its zone, or a file of lines `topic,partition,offset`.
        now: the present.
        read_file: the text of a file of this name; None where there is none.

    Raises:
        UsageError: it is none of them.
    """
    if text.strip() == EARLIEST:
        return EARLIEST
    offsets = read_file(text)
    try:
        return parse_time(text, now) if offsets is None else parse_offsets(offsets)
    except WrongTimeError as error:
        raise UsageError(
            str(error),
            where="the target",
            next_step="give a time with its zone, `earliest`, or a file of offsets",
            code=Code.WRONG_TIME,
        ) from error


def rewindable(platform: Platform, stream: str) -> DeclaredStream:
    """Return the declaration of a stream that can be rewound.

    Raises:
        UsageError: no declaration names it, or it is a backup.
        RefusedError: its sink lacks the capability.
        InvalidDeclarationError: its declaration is wrong.
    """
    found = declared_stream(
        platform.settings.root,
        stream,
        backup="is a backup and cannot be rewound: it reads every record once",
        step="choose a stream from `millrace streams list`",
    )
    require(found.stream, Capability.REWIND)
    return found


def make_plan(
    platform: Platform,
    stream: str,
    target: Target,
    *,
    policy: Policy,
    by: str,
    reason: str,
    asked_in: str = "",
    now: datetime | None = None,
) -> Plan:
    """Store a plan that rewinds a stream. Changes nothing else.

    Args:
        platform: the adapters.
        stream: PIPELINE.STREAM.
        target: where it shall begin again.
        policy: what to do with a partition whose log begins later.
        by: who asks.
        reason: why.
        asked_in: the run of a DAG, as DAG/RUN@TIME, that the plan shall be bound to; none by default.
        now: the present; default the clock.

    Raises:
        UsageError: there is no such stream.
        RefusedError: its sink lacks the capability; the rewind may not be made, or would read nothing again; each
            reason is named.
        UnreachableError: the cluster, the sink or the control database does not answer.
    """
    given, at = rewindable(platform, stream), now or datetime.now(UTC)
    record = platform.sinks.tables(given.stream.sink.connection).record_of_work(stream)
    if not record.timeline:
        raise RefusedError(
            "the stream has never run: its sink has no record of work",
            where=stream,
            next_step="start the stream: it has nothing to rewind",
            code=Code.NEVER_STARTED,
        )
    log = platform.kafka.logs(given.pipeline.kafka)
    resolved = _resolved(platform, given, record, target)
    found = moves_of(record, resolved, policy)
    group = log.committed(given.stream.group, list(resolved))
    foreign = [
        f"{text}: start the stream first, so that it follows this commit"
        for text in foreign_commits(stream, record, group)
    ]
    if refusals := [*found.refusals, *foreign]:
        what = " | ".join(shortened_lines(refusals, _TOLD))
        raise RefusedError(what, where=stream, next_step="choose another target or another policy")
    moved = [move for move in found.moves if move.target != move.now]
    if not moved:
        kept = ", ".join(f"{move.partition} ({move.quality.value})" for move in found.moves[:_TOLD])
        raise RefusedError(
            f"nothing would be read again: {kept} keep their positions",
            where=stream,
            next_step="choose another target",
            code=Code.NOTHING_TO_DO,
        )
    _must_be_small(platform, given, moved, target, at)
    plan = Plan(
        kind=PlanKind.REWIND,
        target=stream,
        cluster_id=platform.kafka.topics(given.pipeline.kafka).cluster_id(),
        connection=given.pipeline.kafka,
        changes=changes_of(found.moves),
        refusals=(),
        created=at,
        expires=at + LIFETIME,
        by=by,
        reason=reason,
        about=facts({"partitions": len(resolved), **_about(platform, given, record, found.moves, target, policy)}),
    )
    return platform.control.plans.add(plan, asked_in=asked_in)


def _resolved(
    platform: Platform, given: DeclaredStream, record: WorkRecord, target: Target
) -> dict[TopicPartition, Resolved]:
    """What the target means on every partition that the stream's topics have now."""
    log = platform.kafka.logs(given.pipeline.kafka)
    leaders = log.leaders(given.stream.reads)
    if missing := set(given.stream.reads) - {partition.topic for partition in leaders}:
        raise RefusedError(
            f"missing topics: {', '.join(sorted(missing))}",
            where=given.name,
            next_step=f"run `millrace topics plan {given.pipeline.name}`, then the plan that it prints",
            code=Code.MISSING_TOPIC,
        )
    led = [partition for partition, has_leader in leaders.items() if has_leader]
    found = dict.fromkeys(leaders, Resolved(Quality.NO_LEADER))
    if isinstance(target, datetime):
        time_ms = (target - _EPOCH) // _MILLISECOND
        return found | {p: resolve(time_ms, seen) for p, seen in log.times(led, time_ms).items()}
    bounds = log.bounds(led)
    if isinstance(target, str):
        empty = Resolved(Quality.EMPTY)
        return found | {p: Resolved(Quality.EXACT, b.start) if b.start < b.end else empty for p, b in bounds.items()}
    known = {(partition.topic, partition.partition) for partition in leaders}
    if unknown := sorted(set(target) - known):
        named = ", ".join(f"{topic}/{number}" for topic, number in unknown[:_TOLD])
        raise UsageError(
            f"{given.name} reads no partition {named}",
            next_step="choose from its topics: " + ", ".join(given.stream.reads),
            code=Code.UNKNOWN_NAME,
        )
    for partition, held in bounds.items():
        offset = target.get((partition.topic, partition.partition), record.next_offsets.get(partition, held.start))
        found[partition] = resolve_offset(offset, held)
    return found


def _must_be_small(
    platform: Platform, given: DeclaredStream, moved: Sequence[Move], target: Target, now: datetime
) -> None:
    """Refuse what is larger than the environment lets one person do."""
    environment = environment_of(platform.settings.root)
    longest, most = environment.longest_rewind, environment.most_rewound
    records = sum(move.records for move in moved)
    problem = ""
    if most is not None and records > most:
        problem = f"{records:,} records would be read again, more than {most:,}"
    elif longest is not None:
        since = target if isinstance(target, datetime) else _oldest(platform, given, moved)
        if since is not None and now - since > longest:
            problem = f"it goes back {now - since}, more than {longest}"
    if problem:
        raise RefusedError(
            f"{problem}: in environment `{environment.name}` this needs the approval of a second person, and Millrace "
            "cannot ask for approval yet",
            where=moved[0].partition.topic,
            next_step="choose a later target",
            code=Code.NEEDS_APPROVAL,
        )


def _oldest(platform: Platform, given: DeclaredStream, moved: Sequence[Move]) -> datetime | None:
    """A time that no record to be read again is older than, as far as timestamps rise: the first record's."""
    firsts = platform.kafka.logs(given.pipeline.kafka).firsts([move.partition for move in moved]).values()
    found = [first.timestamp_ms if first else 0 for first in firsts]  # what cannot be told counts as old
    return _EPOCH + min(found) * _MILLISECOND if found else None


def _about(
    platform: Platform,
    given: DeclaredStream,
    record: WorkRecord,
    moves: Sequence[Move],
    target: Target,
    policy: Policy,
) -> dict[str, object]:
    """All that an operator has to know before he runs it, as text."""
    moved = [move for move in moves if move.target != move.now]
    records = sum(move.records for move in moved)
    desired = platform.control.streams.desired(given.name)
    about: dict[str, object] = {
        "group": given.stream.group,
        "to": _target_text(target),
        "policy": policy.value,
        "timeline": record.timeline,
        "wanted": desired.state.value if desired else "stopped",
        "records": records,
        "may_grow_by": max(LEAST_GROWTH, records),
        "not_repaired": ", ".join(_not_repaired(platform, given)) or "none",
    }
    if kept := [move for move in moves if move.target == move.now]:
        about["kept"] = shortened([f"{move.partition} ({move.quality.value})" for move in kept], _TOLD)
    about |= _replaced(platform, given, moved, record.timeline)
    about |= _duration(platform, given, records)
    if isinstance(target, datetime):
        about |= _order(platform, given, moved)
    return about


def _target_text(target: Target) -> str:
    if isinstance(target, datetime):
        return f"{target.isoformat(timespec='milliseconds')}"
    return target if isinstance(target, str) else f"given offsets of {len(target)} partitions"


def _replaced(platform: Platform, given: DeclaredStream, moved: Sequence[Move], timeline: int) -> dict[str, object]:
    declared, sink = given.stream.sink, platform.sinks.tables(given.stream.sink.connection)
    ranges = [OffsetRange(move.partition, move.target, move.now) for move in moved]
    try:
        found = sink.count_in(given.name, declared.appended, ranges, timeline=timeline)
    except UnreachableError as error:
        return {"rows": f"not counted: {error.what}", "quarantined": "not counted"}
    rows = found.rows if declared.appended else "not counted: the table has the last row of each key"
    return {"rows": rows, "quarantined": found.quarantined}


def _duration(platform: Platform, given: DeclaredStream, records: int) -> dict[str, object]:
    progress = platform.control.streams.progress(given.name)
    rate = progress.rows_in / progress.batch_seconds if progress and progress.batch_seconds > 0 else 0.0
    stream = given.stream
    expected = expected_duration(
        records,
        rows_per_second=rate,
        records_per_batch=stream.resources.max_records_per_batch,
        trigger=stream.trigger,
        start=STARTS_IN,
    )
    if expected is None or progress is None:
        return {"expected": "not known: no batch was measured yet"}
    measured = f"{rate:,.0f} records/s in its last batch of {progress.rows_in:,}"
    return {"expected": f"about {_rounded(expected)}, at {measured}"}


def _rounded(duration: timedelta) -> str:
    return str(timedelta(seconds=max(1, round(duration.total_seconds()))))


def _not_repaired(platform: Platform, given: DeclaredStream) -> list[str]:
    """Other streams that read the same topics or write to the same place: each has positions of its own."""
    project = load(platform.settings.root)
    reads, writes = set(given.stream.reads), given.stream.sink.places(given.pipeline.kafka)
    return sorted(
        other.qualified_name
        for pipeline in project.pipelines
        for other in pipeline.streams
        if other.qualified_name != given.name
        and (reads & set(other.reads) or writes & other.sink.places(pipeline.kafka))
    )


def _order(platform: Platform, given: DeclaredStream, moved: Sequence[Move]) -> dict[str, object]:
    """How far record timestamps near the target are out of order, and what to do about it."""
    sampled = sorted(moved, key=lambda move: -move.records)[:_SAMPLED_PARTITIONS]
    bounds = platform.kafka.logs(given.pipeline.kafka).bounds([move.partition for move in sampled])
    reader = platform.kafka.records(given.pipeline.kafka)
    worst = timedelta()
    try:
        for move in sampled:
            held = bounds[move.partition]
            first = max(held.start, move.target - _SAMPLED_RECORDS)
            near = reader.between(
                move.partition.topic, move.partition.partition, first, min(held.end, move.target + _SAMPLED_RECORDS)
            )
            worst = max(worst, disorder([record.timestamp_ms for record in near if record.timestamp_ms is not None]))
    except MillraceError as error:
        return {"out_of_order": f"unknown: {error.what}"}
    if not worst:
        return {"out_of_order": "none seen near the target"}
    return {
        "out_of_order": f"up to {worst} near the target",
        "advice": f"records that arrived after the time may lie before the target: to read them too, choose a target "
        f"{worst} earlier",
    }
