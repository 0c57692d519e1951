"""Records in quarantine, as the declared streams keep them: in their sinks' databases, or in the control database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from millrace.declarations import Finding, load
from millrace.domain.quarantine.rules import QuarantinedRecord, RuleCount
from millrace.domain.topics.offsets import SourceAt
from millrace.errors import Code, MillraceError, UsageError
from millrace.usecases.declaration.lookup import DeclaredStream, declared_stream

if TYPE_CHECKING:
    from millrace.ports.platform import Platform

LONGEST_BYTES = 16_384
"""Of a key or a value no more is read: a record may have megabytes."""


@dataclass(frozen=True, slots=True)
class QuarantineList:
    """Counts by stream, topic and rule, and what kept the list from being complete."""

    counts: Sequence[RuleCount]
    silent: Sequence[MillraceError] = ()
    findings: Sequence[Finding] = ()
    is_cut: bool = False


def list_quarantine(platform: Platform, *, stream: str | None = None, limit: int = 200) -> QuarantineList:
    """How many records are in quarantine by rule: of one stream, or of all in the databases that declarations name.

    Raises:
        UsageError: no declaration names the stream, or it is a backup.
        InvalidDeclarationError: its declaration is wrong.
    """
    root = platform.settings.root
    project = load(root)
    sinks = {each.qualified_name: each.sink.connection for pipeline in project.pipelines for each in pipeline.streams}
    wanted = sinks if stream is None else {stream: stream_with_quarantine(root, stream).stream.sink.connection}
    counts: list[RuleCount] = []
    silent: list[MillraceError] = []
    for connection in dict.fromkeys(wanted.values()):
        try:
            found = platform.sinks.tables(connection).quarantine_counts(stream, limit + 1)
            # a stream that two Connections lead to, because they are of one database, is counted where it is declared
            counts += [count for count in found if sinks.get(count.stream, connection) == connection]
        except MillraceError as error:  # one database that is away or refuses must not hide the others
            silent.append(error)
    counts.sort(key=lambda count: (count.stream, count.topic, count.rule))
    findings = project.findings if stream is None else ()
    return QuarantineList(counts[:limit], silent, findings, is_cut=len(counts) > limit)


def show(platform: Platform, stream: str, source: SourceAt) -> QuarantinedRecord:
    """One record in quarantine.

    Raises:
        UsageError: no declaration names the stream, it is a backup, or it has no such record in quarantine.
        InvalidDeclarationError: its declaration is wrong.
        UnreachableError: the sink database does not answer.
    """
    sink = stream_with_quarantine(platform.settings.root, stream).stream.sink
    found = platform.sinks.tables(sink.connection).quarantined_record(stream, source, LONGEST_BYTES)
    if found is None:
        raise UsageError(
            f"{stream} has no record {source} in quarantine",
            next_step=f"see `millrace quarantine list --stream {stream}` for the first and the last of each rule",
            code=Code.UNKNOWN_NAME,
        )
    return found


def stream_with_quarantine(root: Path, name: str) -> DeclaredStream:
    """Return the stream of this name, PIPELINE.STREAM.

    Raises:
        UsageError: no declaration names it, or it is a backup, which has no quarantine.
        InvalidDeclarationError: its declaration is wrong.
    """
    return declared_stream(
        root,
        name,
        backup="has no quarantine: a backup keeps every record as it is",
        step="name a stream that reads the topic; see `millrace streams list`",
    )
