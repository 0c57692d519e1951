"""Rules against the columns that sinks have now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from millrace.declarations.findings import Finding, in_order
from millrace.declarations.quality import misfits
from millrace.domain.declaration.pipeline import Pipeline, Stream
from millrace.domain.quality.columns import problems
from millrace.domain.quality.rules import Exists
from millrace.domain.sinks.capabilities import Capability
from millrace.errors import MillraceError
from millrace.ports.platform import Platform
from millrace.usecases.sinks.required import table_of

Tables = Mapping[str, Mapping[str, str]]
"""Columns and their types by table; none where the table is not there."""


@dataclass(frozen=True, slots=True)
class ColumnFindings:
    """What the sinks said.

    Attributes:
        findings: rules that cannot be held against their tables.
        silent: why a table could not be asked, in a line each.
        asked: the streams, PIPELINE.STREAM, whose tables are there and were looked at.
    """

    findings: tuple[Finding, ...] = ()
    silent: tuple[str, ...] = ()
    asked: frozenset[str] = frozenset()


def column_findings(platform: Platform, pipelines: Iterable[Pipeline]) -> ColumnFindings:
    """What is wrong with rules by the columns that the tables have; no server is asked where no stream has rules.

    Guarantees:
        A sink that does not answer is asked once, not for each of its tables, and is no error.
    """
    findings: list[Finding] = []
    silent: list[str] = []
    asked: set[str] = set()
    streams = [
        stream
        for pipeline in pipelines
        for stream in pipeline.streams
        if stream.quality is not None and stream.able(Capability.QUALITY)
    ]
    for connection in sorted({stream.sink.connection for stream in streams}):
        of_sink = [stream for stream in streams if stream.sink.connection == connection]
        try:
            tables = _tables(platform, connection, of_sink)
        except MillraceError as error:  # one database that is away must not hide the others
            silent += [f"{stream.sink.named} was not compared: {error.what}" for stream in of_sink]
            continue
        for stream in of_sink:
            if columns := tables[table_of(stream).table]:
                asked.add(stream.qualified_name)
                rules = stream.quality.rules if stream.quality else ()
                findings += misfits(stream, problems(rules, columns, tables).items())
    return ColumnFindings(in_order(findings), tuple(silent), frozenset(asked))


def _tables(platform: Platform, connection: str, streams: Iterable[Stream]) -> Tables:
    """The columns of the tables that streams write, and of those that their rules look into."""
    wanted = {table_of(stream).table for stream in streams}
    for stream in streams:
        rules = stream.quality.rules if stream.quality else ()
        wanted |= {rule.check.table for rule in rules if isinstance(rule.check, Exists)}
    reader = platform.sinks.hasty_tables(connection)
    return {table: reader.columns(table) for table in sorted(wanted)}
