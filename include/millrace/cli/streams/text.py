"""One stream or backup for people: what is wanted, how it is, how far it is, and what was tried."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table

from millrace.cli.terminal.output import Text, moment, paragraph
from millrace.domain.declaration.pipeline import is_backup
from millrace.domain.streams.control import Attempt, StreamProgress
from millrace.usecases.streams.listing import StreamRow

Facts = Iterator[tuple[str, str]]


def print_stream(console: Console, row: StreamRow) -> None:
    """The stream in sections; what there is nothing to say of is left out."""
    console.print(Text(row.stream, style="bold"))
    _section(console, "", _state(row))
    _section(console, "consumer group", _group(row))
    if row.progress:
        if is_backup(row.stream):
            _section(console, "last round", _round(row.progress))
            _section(console, "archived up to", _positions(row.progress))
        else:
            _section(console, "last batch", _batch(row.progress))
            _section(console, "next offsets", _positions(row.progress))
    if row.last_error:
        _section(console, "last error", iter([("", row.last_error)]))
    if row.former_error:
        _section(console, "error of a former epoch", iter([("", row.former_error)]))
    if row.attempts:
        console.print()
        console.print(_attempts(row.attempts))


def _section(console: Console, title: str, facts: Facts) -> None:
    told = [(name, text) for name, text in facts if text]
    if not told:
        return
    if title:
        console.print()
        console.print(Text(title, style="bold"))
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text in told:
        grid.add_row(Text(f"  {name}" if name else " "), paragraph(text))
    console.print(grid)


def _state(row: StreamRow) -> Facts:
    report = row.report
    yield "wanted", row.wanted
    if row.changed_by:
        since = f" since {moment(row.changed_at)}" if row.changed_at else ""
        yield "asked for", f"by {row.changed_by}{since}"
    yield "reason", row.reason
    epoch = f", epoch {report.epoch}" if report.epoch else ""
    since = f", since {moment(report.since)}" if report.since else ""
    yield "is", f"{report.state.value}{epoch}{since}"
    yield "why", report.why
    yield "host", report.host
    yield "until", moment(report.until) if report.until else ""
    yield "declared", "" if row.declared else "no: no valid declaration has it"


def _group(row: StreamRow) -> Facts:
    yield "group", row.group
    if row.group:
        unknown = "unknown: its topics do not exist yet, or Kafka does not answer"
        yield "lag", unknown if row.lag is None else f"{row.lag:,} records"
    if row.headroom:
        unread, left = row.headroom.unread, row.headroom.left.total_seconds()
        where = f"{unread.partition} from offset {unread.first:,}, by {row.headroom.rule.value}"
        yield "unarchived, may be deleted", f"in {left:,.0f} s: {where}" if left else f"at any moment: {where}"


def _batch(progress: StreamProgress) -> Facts:
    run = f"{progress.batch_id} of epoch {progress.epoch}, timeline {progress.timeline}"
    yield "batch", run
    yield "ended", moment(progress.at)
    yield "took", f"{progress.batch_seconds:.3f} s"
    yield "rows in", f"{progress.rows_in:,}"
    yield "rows out", f"{progress.rows_out:,}"
    yield "quarantined", f"{progress.quarantined:,}"
    if progress.truncated:
        yield "truncated", f"{progress.truncated:,} with a timestamp finer than a microsecond"
    yield from _undeclared(progress)


def _undeclared(progress: StreamProgress) -> Facts:
    found = progress.undeclared
    if found.records:
        names = "" if found.names else " too many different names to show any"
        yield "undeclared", f"{found.records:,} with fields outside the schema:{names}"
    for name in found.names:
        of_topic = f" in {name.topic}" if progress.has_several_topics else ""
        hint = f": is the column `{name.column}` meant?" if name.column else ""
        yield "", f"`{name.name}` {name.records:,}{of_topic}{hint}"


def _round(progress: StreamProgress) -> Facts:
    yield "round", f"{progress.batch_id} of epoch {progress.epoch}"
    yield "ended", moment(progress.at)
    yield "took", f"{progress.batch_seconds:.3f} s"
    yield "records archived", f"{progress.rows_out:,}"


def _positions(progress: StreamProgress) -> Facts:
    for partition, offset in sorted(progress.positions.items(), key=lambda item: _in_order(item[0])):
        yield partition, f"{offset:,}"


def _in_order(partition: str) -> tuple[str, int]:
    topic, _, number = partition.rpartition("/")
    return topic, int(number) if number.isdigit() else 0


def _attempts(attempts: Sequence[Attempt]) -> Table:
    table = Table(title="last attempts", title_justify="left")
    for heading in ("epoch", "submitted (UTC)", "ended (UTC)", "outcome", "detail"):
        table.add_column(heading, overflow="fold")
    for attempt in attempts:
        ended = moment(attempt.ended_at).removesuffix(" UTC") if attempt.ended_at else ""
        submitted = moment(attempt.submitted_at).removesuffix(" UTC")
        cells = (str(attempt.epoch), submitted, ended, attempt.outcome or "")
        table.add_row(*(Text(cell) for cell in cells), paragraph(attempt.detail or ""))
    return table
