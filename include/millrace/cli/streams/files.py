"""`millrace streams files`: the objects that who reads a stream's dataset has to read."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from millrace.cli.terminal.output import Text, emit
from millrace.domain.formats.sizes import roughly_bytes
from millrace.errors import Code, UsageError
from millrace.settings import open_settings
from millrace.usecases.sinks.dataset import DatasetObjects, Day, dataset_objects
from millrace.wiring import open_platform

_SHOWN_DATES = 50


def register(app: typer.Typer) -> None:
    """Add the command to its noun."""
    app.command()(files)


def files(
    stream: Annotated[str, typer.Argument(metavar="PIPELINE.STREAM", help="Name the stream, as PIPELINE.STREAM.")],
    first: Annotated[str | None, typer.Option("--from", metavar="YYYY-MM-DD", help="Start at this event date.")] = None,
    last: Annotated[str | None, typer.Option("--to", metavar="YYYY-MM-DD", help="End with this event date.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document with each object.")] = False,
) -> None:
    """List the objects for a reader of a stream's dataset in S3: the objects with rows that count.

    --from or --to leave out rows without a date. Needs only the bucket.
    """
    begin, end = _date("--from", first), _date("--to", last)
    found = dataset_objects(open_platform(open_settings()), stream, begin, end)
    emit(_document(found), as_json=as_json, text=lambda console: _print(console, found))


def _date(option: str, text: str | None) -> date | None:
    if text is None:
        return None
    try:
        given = date.fromisoformat(text)
    except ValueError:
        given = None
    if given is None or given.isoformat() != text:  # Python reads 20260301 and 2026-W09-7 as well
        raise UsageError(
            f"`{text}` is not a date", where=option, next_step="write it as 2026-03-01", code=Code.WRONG_TIME
        )
    return given


def _document(found: DatasetObjects) -> dict[str, object]:
    return {
        "schema": "millrace.streams.files/1",
        "stream": found.stream,
        "uri": found.uri,
        "manifest": found.manifest,
        "timeline": found.timeline,
        "files": [
            {
                "uri": one.uri,
                "event_date": one.event_date and one.event_date.isoformat(),
                "rows": one.rows,
                "size_bytes": one.size_bytes,
                "timeline": one.timeline,
                "where": one.where or None,
            }
            for one in found.objects
        ],
    }


def _print(console: Console, found: DatasetObjects) -> None:
    def say(line: str) -> None:
        console.print(Text(line), soft_wrap=True)

    if found.manifest is None:
        say(f"{found.stream}: nothing is written below {found.uri} yet")
        return
    say(f"{found.stream}: {found.uri} as manifest {found.manifest} left it, timeline {found.timeline}")
    days = found.days()
    if not days:
        say("no object holds a row that counts")
        return
    shown = days[-_SHOWN_DATES:]
    if more := len(days) - len(shown):
        say(f"{more:,} earlier dates are not shown: give --from and --to, or --json")
    console.print(_table(shown))
    partly = sum(day.partly for day in days)
    rows, size = sum(day.rows for day in days), roughly_bytes(sum(day.size_bytes for day in days))
    say(f"{len(found.objects):,} objects hold {rows:,} rows in {size}")
    if partly:
        say(f"{partly:,} of them hold rows that a rewind has replaced: `where` of --json leaves those out")


def _table(days: Sequence[Day]) -> Table:
    table = Table()
    for heading in ("date", "objects", "rows in them", "size", "objects with replaced rows"):
        table.add_column(heading, overflow="fold", justify="left" if heading == "date" else "right")
    for day in days:
        table.add_row(
            "no date" if day.event_date is None else day.event_date.isoformat(),
            f"{day.objects:,}",
            f"{day.rows:,}",
            roughly_bytes(day.size_bytes),
            f"{day.partly:,}" if day.partly else "",
        )
    return table
