"""Checks of what reached a stream's table: which rows, by which rules, what that proves, and whom it alarms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from millrace.domain.declaration.pipeline import Pipeline, Stream
from millrace.domain.quality.evidence import documents_of
from millrace.domain.quality.holding import Asked, Found
from millrace.domain.quality.ranges import Mark, Work, bounded, covers_any, gained, proven, reached, within
from millrace.domain.quality.results import (
    Freshness,
    Gain,
    Outcome,
    QualityCheck,
    RuleResult,
    Verdict,
)
from millrace.domain.quality.rules import StreamQuality, Volume
from millrace.domain.quality.volume import SETTLED, SINCE, usual
from millrace.domain.sinks.capabilities import Capability
from millrace.domain.topics.offsets import OffsetRange
from millrace.errors import Code, MillraceError, RefusedError, UnreachableError, UsageError
from millrace.usecases.declaration.lookup import all_pipelines, declared_stream
from millrace.usecases.quality import alarms as quality_alarms
from millrace.usecases.quality.evidence import upload_waiting
from millrace.usecases.quality.freshness import known_ages, look_at_freshness, with_events
from millrace.usecases.quality.windows import ranges_between
from millrace.usecases.sinks.required import require, table_of

if TYPE_CHECKING:
    from millrace.ports.platform import Platform

Window = tuple[datetime, datetime]
MOST_OFFSETS = 10_000_000
"""A check looks at so many offsets at most; the next one at those that follow."""
LONGEST_RUN = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class Checked:
    """A check, and what was made of it.

    Attributes:
        check: what was found; it is stored.
        new: lines of alarms that were opened now.
        known: lines of those that were open before.
        warned: lines of broken rules of severity warn.
        evidence_problem: why the bucket has no evidence of it yet; empty where it has.
    """

    check: QualityCheck
    new: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    warned: tuple[str, ...] = ()
    evidence_problem: str = ""


@dataclass(frozen=True, slots=True)
class _Looked:
    """What is known before the rows are looked at."""

    work: tuple[Work, ...]
    mark: Mark
    last: QualityCheck | None
    ranges: tuple[OffsetRange, ...]
    upto: Mark
    came: tuple[OffsetRange, ...] | None
    freshness: Freshness
    usual: Mapping[str, tuple[int, int] | str]


def checked_streams(root: Path, name: str | None = None) -> list[tuple[Pipeline, Stream, StreamQuality]]:
    """Return the streams whose quality is checked, or the one of this name, PIPELINE.STREAM.

    Raises:
        InvalidDeclarationError: a declaration that is asked for has errors.
        UsageError: there is no stream of this name, or it declares no quality.
        RefusedError: its sink lacks the capability.
    """
    if name is not None:
        found = declared_stream(root, name)
        return [(found.pipeline, found.stream, must_be_checked(found.stream))]
    return [
        (pipeline, stream, stream.quality)
        for pipeline in all_pipelines(root)
        for stream in pipeline.able(Capability.QUALITY)
        if stream.quality is not None
    ]


def must_be_checked(stream: Stream) -> StreamQuality:
    """Return what a stream declares of its quality.

    Raises:
        UsageError: it declares none.
        RefusedError: its sink lacks the capability.
    """
    require(stream, Capability.QUALITY)
    if stream.quality is None:
        raise UsageError(
            f"{stream.qualified_name} declares no quality",
            next_step="add `quality: {rules: NAME}` to it; `millrace quality list` shows the streams that have it",
        )
    return stream.quality


def check(
    platform: Platform,
    pipeline: Pipeline,
    stream: Stream,
    *,
    actor: str,
    window: Window | None = None,
    now: datetime | None = None,
) -> Checked:
    """Hold a stream's rules against what its table gained since what is proven, or what a window of time brought.

    What is found is stored with its evidence; a rule of severity fail that is broken, or that could not be tried,
    opens an alarm. What a check of a window finds moves no mark and touches no alarm.

    Args:
        platform: the adapters.
        pipeline: whose stream it is.
        stream: whose table is checked; it declares quality.
        actor: who has it done.
        window: from when to when, by the records' timestamps in Kafka.
        now: the present.

    Raises:
        UnreachableError: sink or control database do not answer, or for a window no broker.
        RefusedError: its sink lacks the capability; or of the window's records it cannot be told any more where
            they lie.
    """
    quality = must_be_checked(stream)
    began = now or datetime.now(UTC)
    looked = _look(platform, pipeline, stream, quality, window, began)
    found, problem = _hold(platform, stream, quality, looked, began)
    made = _made(stream, quality, looked, found, problem, began, window, actor)
    made = replace(made, ended=max(began, datetime.now(UTC)))
    kept = _keep(platform, made, looked, "" if found is None else found.page, window)
    warned = tuple(map(str, kept.warned))
    if window is not None:
        return Checked(kept, warned=warned, evidence_problem=upload_waiting(platform, stream, quality.keep, began))
    newest = platform.control.quality.latest(stream.qualified_name)
    if newest is not None and newest.identity != kept.identity:  # a later look is done already, and knows better
        return Checked(kept, known=tuple(map(str, kept.red)), warned=warned)
    new, known = quality_alarms.hold(platform, kept)
    platform.control.quality.tidy(began)
    return Checked(kept, new, known, warned, upload_waiting(platform, stream, quality.keep, began))


def check_on(
    platform: Platform, pipeline: Pipeline, stream: Stream, *, actor: str, window: Window | None = None
) -> tuple[Checked, ...]:
    """Check what a stream's table gained, in as many checks as that takes; one that is red, or ten minutes, end it.

    A window of time is one check.

    Raises:
        UnreachableError, UsageError, RefusedError: as `check`.
    """
    began = datetime.now(UTC)
    done = [check(platform, pipeline, stream, actor=actor, window=window)]
    while window is None and done[-1].check.left and not done[-1].check.red and datetime.now(UTC) - began < LONGEST_RUN:
        done.append(check(platform, pipeline, stream, actor=actor))
    return tuple(done)


def verdict_on(done: Sequence[Checked]) -> Verdict:
    """What came of checks that followed one another: the last one's, but where it alone had no rows the others'."""
    verdicts = [one.check.verdict for one in done]
    return Verdict.PASSED if verdicts[-1] is Verdict.EMPTY and Verdict.PASSED in verdicts else verdicts[-1]


def accept(platform: Platform, stream: Stream, *, actor: str, reason: str) -> QualityCheck:
    """Say that the rows of a stream's last check stay as they are: they are not looked at again.

    Raises:
        RefusedError: nobody has checked the stream, its last check found nothing, or a newer one came meanwhile.
        UnreachableError: the control database does not answer.
    """
    store = platform.control.quality
    last = store.latest(stream.qualified_name)
    if last is None or last.verdict not in (Verdict.FAILED, Verdict.ERROR):
        what = "it was never checked" if last is None else f"its last check is {last.verdict}"
        raise RefusedError(
            f"nothing to accept: {what}",
            where=stream.qualified_name,
            next_step="see `millrace quality show`",
            code=Code.NOTHING_TO_DO,
        )
    if not store.accept(last, actor=actor, reason=reason):
        raise RefusedError(
            "a newer check has ended meanwhile",
            where=stream.qualified_name,
            next_step="look at the newer one, and accept that",
            code=Code.CONCURRENT_CHANGE,
        )
    quality_alarms.close_all(platform, stream.qualified_name, opened_before=datetime.now(UTC))
    return last


def _look(
    platform: Platform,
    pipeline: Pipeline,
    stream: Stream,
    quality: StreamQuality,
    window: Window | None,
    began: datetime,
) -> _Looked:
    store = platform.control.quality
    name = stream.qualified_name
    mark, last = store.mark(name), store.latest(name)
    work, visible_at = platform.sinks.tables(quality.connection or stream.sink.connection).work(name)
    unproven = gained(mark, work)
    ranges = bounded(unproven, MOST_OFFSETS)
    upto = proven(reached(work), unproven, ranges)
    if window is not None:
        ranges = within(ranges_between(platform, pipeline, stream, *window), work)
    freshness = look_at_freshness(platform, pipeline, stream, work, visible_at, last, began)
    came, why = _came(last, work, window)
    volume = {
        rule.name: why or _usual(platform, rule.check, last, name, began)
        for rule in quality.rules
        if isinstance(rule.check, Volume)
    }
    return _Looked(work, mark, last, ranges, upto, came, freshness, volume)


def _hold(
    platform: Platform, stream: Stream, quality: StreamQuality, looked: _Looked, began: datetime
) -> tuple[Found | None, str]:
    """What was found, or what kept anything from being found; nobody is asked where nothing was ever written."""
    if not looked.work:
        seen = looked.mark.offsets or (looked.last is not None and looked.last.reached.offsets)
        return None, "its record of work is missing; an earlier check has seen it" if seen else ""
    sink = table_of(stream)
    checker = platform.sinks.checker(quality.connection or sink.connection)
    try:
        found = checker.hold(
            Asked(
                sink.table,
                quality.rules,
                looked.ranges,
                looked.came or (),
                began,
                known_ages(quality.rules, looked.freshness),
                looked.usual,
            )
        )
    except UnreachableError:
        raise
    except MillraceError as error:
        return None, error.what
    if not found.columns and not covers_any(looked.work):
        return None, ""  # the stream starts, and creates its table in a moment
    if not found.columns:
        return None, f"{sink.named} is missing, and its stream has written to it"
    return found, ""


def _made(
    stream: Stream,
    quality: StreamQuality,
    looked: _Looked,
    found: Found | None,
    problem: str,
    began: datetime,
    window: Window | None,
    actor: str,
) -> QualityCheck:
    results = {} if found is None else found.results
    why = problem or "nothing was ever written"
    outcome = Outcome.ERROR if problem else Outcome.SKIPPED
    ages = {} if found is None else found.ages
    return QualityCheck(
        stream=stream.qualified_name,
        began=began,
        ended=began,
        reached=reached(looked.work),
        upto=looked.upto,
        ranges=looked.ranges,
        rows=0 if found is None and not problem else None if found is None else found.rows,
        results=tuple(
            results.get(rule.name) or RuleResult(rule.name, rule.kind, rule.severity, outcome, detail=why)
            for rule in quality.rules
        ),
        gain=_gain(looked, found, began),
        window=window,
        freshness=with_events(quality.rules, looked.freshness, ages, began),
        problem=problem,
        actor=actor,
    )


def _keep(platform: Platform, made: QualityCheck, looked: _Looked, page: str, window: Window | None) -> QualityCheck:
    """Store a check; what it proves moves the mark.

    Where a rewind opened a timeline meanwhile, the mark is of the former one: the next check goes back to its first.
    """
    nothing_there = made.verdict is Verdict.EMPTY and made.ranges and not made.problem  # as of records in quarantine
    moved = made.upto if window is None and (made.verdict is Verdict.PASSED or nothing_there) else None
    documents = documents_of(made, page)
    return platform.control.quality.store(made, seen=looked.mark, mark=moved, documents=documents)


def _came(
    last: QualityCheck | None, work: Sequence[Work], window: Window | None
) -> tuple[tuple[OffsetRange, ...] | None, str]:
    """What came since the last look; None where that cannot be told, and why."""
    if window is not None:
        return None, "a time window is not compared with earlier checks"
    if last is None:
        return None, "no earlier check"
    if last.reached.timeline != reached(work).timeline:
        return None, "the stream was rewound since the last check"
    return gained(last.reached, work), ""


def _usual(
    platform: Platform, volume: Volume, last: QualityCheck | None, stream: str, began: datetime
) -> tuple[int, int] | str:
    """How many rows are usual to have come since the last look, least and most; or why nobody knows."""
    if last is None:
        return "no earlier check"
    span = began - last.began
    found = usual(platform.control.quality.gains(stream, began - SINCE, began - SETTLED), began, span)
    return found if isinstance(found, str) else found.band(span, volume.within)


def _gain(looked: _Looked, found: Found | None, began: datetime) -> Gain | None:
    if looked.last is None or looked.came is None or found is None or not found.columns:
        return None
    return Gain(found.gained_rows, began - looked.last.began)
