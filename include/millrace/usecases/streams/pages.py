"""What the pages show of streams: out of the control database and the sink's record of work, no broker asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from millrace.declarations.show import EffectiveValue, effective
from millrace.domain.declaration.pipeline import Stream, is_backup
from millrace.domain.declaration.sinks import SinkFacts
from millrace.domain.quarantine.rules import RuleCount
from millrace.domain.sinks.capabilities import Capability
from millrace.domain.streams.control import StreamHistory
from millrace.domain.streams.position import WorkRecord
from millrace.domain.streams.standing import Level, Standing, StreamFacts, standing
from millrace.domain.streams.supervision import StreamState
from millrace.errors import Code, MillraceError, UnreachableError, UsageError
from millrace.usecases.declaration.lookup import declared_app, declared_stream

if TYPE_CHECKING:
    from millrace.ports.platform import Platform

Readable = Callable[[set[str]], set[str]]
"""Those of some streams, PIPELINE.STREAM, that the user may see."""

LINES = 500
BUCKETS = 120
ATTEMPTS = 20
ACTIONS = 10
COUNTS = 50


@dataclass(frozen=True, slots=True)
class StreamLine:
    """One stream as the overview shows it."""

    facts: StreamFacts
    standing: Standing


@dataclass(frozen=True, slots=True)
class Overview:
    """The streams that the user may see, by trouble, and one line about all of them.

    `unshown` counts those that stand in no line, which are the ones that need nobody most.
    """

    at: datetime
    lines: Sequence[StreamLine]
    unshown: int
    level: Level
    headline: str


@dataclass(frozen=True, slots=True)
class StreamPage:
    """One stream with its past.

    Attributes:
        since: from when on the history is.
        bucket: how long each of its buckets is.
        declaration: its values as they count; empty where `problem` says why there are none.
        reads: the topics it reads, by the declaration.
        is_backup: whether it is the backup of a pipeline, whose sink is the archive.
        rewinds: whether a rewind of it can be planned, as far as is known.
    """

    at: datetime
    line: StreamLine
    history: StreamHistory
    since: datetime
    bucket: timedelta
    declaration: Sequence[EffectiveValue] = ()
    problem: str = ""
    reads: Sequence[str] = ()
    is_backup: bool = False
    rewinds: bool = True


@dataclass(frozen=True, slots=True)
class SinkPart:
    """What the sink says of one stream: its record of work, and its quarantine by rule.

    Attributes:
        facts: what is written to, and where the record of work is.
        kept_in: the Connection of the database with the quarantine.
        record: the record of work; nothing where it is not in that database.
        quarantine: the bad records by rule.
        problem: why those are not counted; the rest is known all the same.
    """

    at: datetime
    facts: SinkFacts
    kept_in: str
    record: WorkRecord
    quarantine: Sequence[RuleCount] = ()
    problem: str = ""


def overview(platform: Platform, readable: Readable, now: datetime) -> Overview:
    """All streams that the user may see.

    Guarantees: the number of statements does not depend on the number of streams.

    Raises:
        UnreachableError: the control database does not answer, or not soon enough.
    """
    with platform.control.pages.page() as page:
        facts = page.facts(now)
    seen = readable(set(facts))
    lines = [_line(facts[name], now) for name in sorted(seen)]
    lines.sort(key=lambda line: (line.standing.level, line.facts.stream))
    return Overview(now, lines[:LINES], max(0, len(lines) - LINES), *_headline(lines))


def stream_page(platform: Platform, stream: str, now: datetime, window: timedelta) -> StreamPage:
    """One stream, with what its batches did in this window.

    Raises:
        UsageError: nobody wanted anything of such a stream yet, nor looked at it.
        UnreachableError: the control database does not answer, or not soon enough.
    """
    bucket = window / BUCKETS
    since = now - window
    with platform.control.pages.page() as page:
        facts = page.facts(now, stream).get(stream)
        if facts is None:
            raise UsageError(
                f"stream {stream} does not exist",
                next_step="run its DAG: a new stream appears after the first run",
                code=Code.UNKNOWN_NAME,
            )
        history = page.history(stream, since=since, bucket=bucket, attempts=ATTEMPTS, actions=ACTIONS)
    backup = is_backup(stream)
    found = StreamPage(now, _line(facts, now), history, since, bucket, is_backup=backup, rewinds=not backup)
    return _with_declaration(platform, stream, found)


def sink_part(platform: Platform, stream: str, now: datetime) -> SinkPart:
    """What the sink says of a stream.

    Raises:
        UsageError: no declaration names it, or it is a backup.
        InvalidDeclarationError: its declaration is wrong.
        UnreachableError: the sink does not answer, or not soon enough; where it keeps no record of work, that is the
            `problem`.
    """
    declared = declared_stream(platform.settings.root, stream, backup="is a backup: it writes an archive, not a table")
    sink = declared.stream.sink
    found = SinkPart(now, sink.facts(declared.pipeline.kafka, declared.stream.group), sink.connection, WorkRecord())
    if found.facts.kept_in:
        return found
    reader = platform.sinks.hasty_tables(sink.connection)
    if not found.facts.record:
        found = replace(found, record=reader.record_of_work(stream))
    try:
        return replace(found, quarantine=reader.quarantine_counts(stream, COUNTS))
    except UnreachableError as error:
        return replace(
            found, problem=f"{error.what}: run `millrace quarantine list --stream {stream}`, which waits longer"
        )
    except MillraceError as error:  # it refuses: that says what it misses, and hides nothing else
        return replace(found, problem=f"{error.what}: {error.next_step}")


def _line(facts: StreamFacts, now: datetime) -> StreamLine:
    return StreamLine(facts, standing(facts, now))


def _headline(lines: Sequence[StreamLine]) -> tuple[Level, str]:
    if not lines:
        return Level.OFF, "No stream is known yet: a new one appears after its DAG has run."
    need = [line for line in lines if line.standing.level <= Level.WARNING]
    if not need:
        running = sum(line.facts.state is StreamState.RUNNING for line in lines)
        changing = sum(line.standing.level is Level.CHANGING for line in lines)
        also = f", {changing:,} starting or stopping" if changing else ""
        stopped = len(lines) - running - changing
        return Level.FINE, f"All is well: {running:,} running{also}, {stopped:,} stopped as desired."
    first = need[0]
    number = "A stream needs" if len(need) == 1 else f"{len(need):,} of {len(lines):,} streams need"
    first_of_all = "" if len(need) == 1 else "the first: "
    why = f", {first.standing.why}" if first.standing.why else ""
    text = f"{number} attention; {first_of_all}{first.facts.stream} is {first.facts.state.value}{why}"
    return first.standing.level, text


def _with_declaration(platform: Platform, stream: str, page: StreamPage) -> StreamPage:
    """Return the page with the declaration of the stream, which a backup has not, and of the topics it reads."""
    root = platform.settings.root
    try:
        pipeline, declared = declared_app(root, stream)
        values = effective(root, pipeline.name).values
    except MillraceError as error:
        return replace(page, problem=str(error))
    starts = (f"streams.{declared.name}.", *(f"topics.{topic}." for topic in declared.reads))
    shown = [value for value in values if value.field.startswith(starts) or "." not in value.field]
    rewinds = isinstance(declared, Stream) and declared.able(Capability.REWIND)
    return replace(page, declaration=shown, reads=declared.reads, rewinds=rewinds)
