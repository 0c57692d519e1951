"""`millrace quarantine`: bad records, counted by rule or shown one by one."""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from millrace.cli.plans.commands import telling
from millrace.cli.plans.text import plan_document, print_plan
from millrace.cli.terminal.actor import actor
from millrace.cli.terminal.output import Text, emit, error_document, moment, show_error
from millrace.cli.terminal.reason import Reason
from millrace.domain.formats.printable import printable
from millrace.domain.plans.plan import Plan
from millrace.domain.quarantine.rules import Excerpt, QuarantinedRecord, Rule, RuleCount
from millrace.domain.topics.offsets import SourceAt
from millrace.errors import UsageError
from millrace.settings import open_settings
from millrace.usecases.quarantine import listing as quarantine
from millrace.usecases.quarantine import redrive as redrives
from millrace.usecases.quarantine.listing import QuarantineList
from millrace.wiring import open_platform

app = typer.Typer(help="List, show and redrive bad records.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@app.command("list")
def list_command(
    stream: Annotated[str | None, typer.Option(metavar="PIPELINE.STREAM", help="Select this stream.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Print at most this number of counts.")] = 200,
    as_json: Json = False,
) -> None:
    """Count the bad records of each stream by rule, with the first and the last of them.

    Exit 1 if a declaration is wrong, so that its streams may be missing; 3 if a database does not answer.
    """
    found = quarantine.list_quarantine(open_platform(open_settings()), stream=stream, limit=limit)
    document = {
        "schema": "millrace.quarantine.list/1",
        "counts": [_count_document(count) for count in found.counts],
        "is_cut": found.is_cut,
        "problems": [error_document(error) for error in found.silent] + [str(finding) for finding in found.findings],
    }
    emit(document, as_json=as_json, text=lambda console: _print_list(console, found))
    for error in found.silent:
        show_error(error)
    if found.silent:
        raise typer.Exit(3)
    if found.findings:
        raise typer.Exit(1)


@app.command()
def show(
    stream: Annotated[str, typer.Argument(metavar="PIPELINE.STREAM", help="Name the stream, as PIPELINE.STREAM.")],
    record: Annotated[
        str, typer.Argument(metavar="TOPIC/PARTITION@OFFSET", help="Name the record as `quarantine list` writes it.")
    ],
    as_json: Json = False,
) -> None:
    """Show one record in quarantine, with its key, value, headers, rule and error."""
    source = _source(record)
    found = quarantine.show(open_platform(open_settings()), stream, source)
    emit(_record_document(found), as_json=as_json, text=lambda console: _print_one(console, found))


@app.command()
def redrive(
    stream: Annotated[str, typer.Argument(metavar="PIPELINE.STREAM", help="Name the stream, as PIPELINE.STREAM.")],
    reason: Reason,
    rule: Annotated[Rule | None, typer.Option(help="Select records with this rule.")] = None,
    since: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="Select records that came to quarantine at this time or later; with its zone."
        ),
    ] = "",
    offsets: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC/PARTITION@OFFSET[-LAST]", help="Select these offsets; repeat it for more."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Plan a redrive of records in quarantine: try each with the app as it is now.

    Prints the plan and stops; `plans run ID` runs it. Records that pass become rows and leave quarantine. Bad records
    stay, with their former and their present reason. Exit 4, with the reason, if no record would leave quarantine.
    """
    now = datetime.now(UTC)
    selection = redrives.selection_of(rule=rule or "", since=since, offsets=offsets or [], now=now)
    platform = open_platform(open_settings())
    plan = redrives.make_plan(platform, stream, selection, by=actor(), reason=reason, tell=telling())
    document = {"schema": "millrace.quarantine.redrive/1", **plan_document(plan, stored=True)}
    emit(document, as_json=as_json, text=lambda console: _print_plan(console, plan))


def _print_plan(console: Console, plan: Plan) -> None:
    print_plan(console, plan)
    console.print(Text(f"plan {plan.id}: run it with `millrace plans run {plan.id}`"))


def _source(text: str) -> SourceAt:
    if not (parts := re.fullmatch(r"(.+)/(\d+)[@/](\d+)", text)):
        raise UsageError(
            f"`{printable(text)}` is not the name of a record",
            next_step="write TOPIC/PARTITION@OFFSET, for instance shop.purchases/0@748",
        )
    return SourceAt(parts[1], int(parts[2]), int(parts[3]))


def _count_document(count: RuleCount) -> dict[str, object]:
    return {
        "stream": count.stream,
        "topic": count.topic,
        "rule": count.rule,
        "records": count.records,
        "first": str(count.first),
        "first_at": count.first_at,
        "last": str(count.last),
        "last_at": count.last_at,
    }


def _record_document(record: QuarantinedRecord) -> dict[str, object]:
    return {
        "schema": "millrace.quarantine.show/1",
        "stream": record.stream,
        "record": str(record.source),
        "topic_id": record.topic_id,
        "rule": record.rule,
        "error": record.error,
        "key": _bytes_document(record.key),
        "value": _bytes_document(record.value),
        "headers": [{"name": header.name, "value": _bytes_document(header.value)} for header in record.headers],
        "timestamp": record.timestamp,
        "timestamp_ms": record.timestamp_ms,
        "quarantined_at": record.quarantined_at,
        "epoch": record.epoch,
        "timeline": record.timeline,
        "former": [
            {"rule": one.rule, "error": one.error, "until": one.until, "plan": one.plan} for one in record.former
        ],
    }


def _bytes_document(excerpt: Excerpt | None) -> dict[str, object] | None:
    """Bytes as JSON: `text` where they are UTF-8, `hex` where they are not."""
    if excerpt is None:
        return None
    text = _text(excerpt)
    shown = {"hex": excerpt.data.hex()} if text is None else {"text": text}
    return {**shown, "size_bytes": excerpt.size_bytes, "truncated": not excerpt.is_whole}


def _text(excerpt: Excerpt) -> str | None:
    """The bytes as UTF-8; None where they are not. What is cut may end inside a character, which is left out."""
    try:
        return getincrementaldecoder("utf-8")().decode(excerpt.data, final=excerpt.is_whole)
    except UnicodeDecodeError:
        return None


def _shown(excerpt: Excerpt | None) -> str:
    """Bytes for people: one printable line, which can do nothing to a terminal."""
    if excerpt is None:
        return "(none)"
    if not excerpt.size_bytes:
        return "(empty)"
    text = _text(excerpt)
    line = f"not UTF-8, in hexadecimal: {excerpt.data.hex(' ')}" if text is None else printable(text)
    if excerpt.is_whole:
        return line
    return f"{line} (truncated: the first {len(excerpt.data):,} of {excerpt.size_bytes:,} bytes)"


def _print_list(console: Console, found: QuarantineList) -> None:
    if found.counts:
        table = Table()
        for heading in ("stream", "rule", "records", "first", "at (UTC)", "last", "at (UTC)"):
            table.add_column(heading, overflow="fold", justify="right" if heading == "records" else "left")
        for count in found.counts:
            first_at, last_at = (moment(at).removesuffix(" UTC") for at in (count.first_at, count.last_at))
            records = f"{count.records:,}"
            cells = (count.stream, count.rule, records, str(count.first), first_at, str(count.last), last_at)
            table.add_row(*(Text(cell) for cell in cells))
        console.print(table)
    elif not found.silent:
        console.print(Text("no record is in quarantine"))
    if found.is_cut:
        console.print(Text(f"truncated: only the first {len(found.counts)} counts; see --limit and --stream"))
    for finding in found.findings:
        console.print(Text(str(finding)), soft_wrap=True)


def _print_one(console: Console, record: QuarantinedRecord) -> None:
    at = moment(record.timestamp) if record.timestamp else ""
    if record.timestamp_ms is not None:
        at = f"{record.timestamp_ms} ms since 1970, which the sink's timestamp cannot hold"
    facts = [
        ("record", str(record.source)),
        ("stream", record.stream),
        ("rule", record.rule),
        ("error", printable(record.error)),
        *((f"until {moment(one.until)}", printable(f"{one.rule}: {one.error}")) for one in record.former),
        ("timestamp", at),
        ("quarantined", f"{moment(record.quarantined_at)}, epoch {record.epoch}, timeline {record.timeline}"),
        ("key", _shown(record.key)),
        ("value", _shown(record.value)),
        *((f"header {printable(header.name)}", _shown(header.value)) for header in record.headers),
    ]
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text in facts:
        if text:
            grid.add_row(Text(name), Text(text))
    console.print(grid)
