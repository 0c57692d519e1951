"""`millrace groups active`: who read what, when, as whom."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from millrace.cli.terminal.output import Text, emit, moment
from millrace.cli.terminal.sizes import duration_option
from millrace.domain.activity.readings import Reading
from millrace.domain.formats.shortened import shortened
from millrace.settings import open_settings
from millrace.usecases.activity import active as activity
from millrace.usecases.activity.active import Activity
from millrace.wiring import open_platform

_SHOWN_PARTITIONS = 8


def register(app: typer.Typer) -> None:
    """Add the command `active` to the commands of `groups`."""
    app.command("active")(active)


def active(
    since: Annotated[str, typer.Option(metavar="DURATION", help="Look back this long, as 2d or 12h.")] = "2d",
    group: Annotated[str | None, typer.Option(help="Select this consumer group.")] = None,
    topic: Annotated[str | None, typer.Option(help="Select this topic.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Print at most this number of lines.")] = 200,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """List who committed offsets: group, topic, client id, host and time. The stream activity.groups records it."""
    found = activity.active(open_platform(open_settings()), duration_option("--since", since), group, topic, limit)
    document = {
        "schema": "millrace.groups.active/1",
        "readings": [_document(reading) for reading in found.readings],
        "is_cut": found.is_cut,
        "unreadable": [
            {"version": each.version, "error": each.error, "records": each.records} for each in found.unreadable
        ],
    }
    emit(document, as_json=as_json, text=lambda console: _print(console, found, since))


def _document(reading: Reading) -> dict[str, object]:
    return {
        "group": reading.group,
        "topic": reading.topic,
        "partitions": sorted(reading.offsets),
        "offsets": {str(number): offset for number, offset in sorted(reading.offsets.items())},
        "client_id": reading.client_id,
        "host": reading.host,
        "instance": reading.instance,
        "first_commit": reading.first_commit,
        "last_commit": reading.last_commit,
        "commits": reading.commits,
    }


def _print(console: Console, found: Activity, since: str) -> None:
    if found.readings:
        table = Table()
        for heading in ("group", "topic", "client id", "host", "first seen", "last commit (UTC)", "offsets", "commits"):
            table.add_column(heading, overflow="fold", justify="right" if heading == "commits" else "left")
        for reading in found.readings:
            table.add_row(*(Text(cell) for cell in _cells(reading)))
        console.print(table)
    else:
        console.print(Text(f"no offset was committed within {since}"))
    if found.is_cut:
        console.print(Text(f"truncated: only the latest {len(found.readings)}; see --limit, --group and --topic"))
    for each in found.unreadable:
        console.print(Text(f"{each.records:,} records of the coordinator's log were not read: {each.error}"))


def _cells(reading: Reading) -> tuple[str, ...]:
    offsets = [f"{number}:{offset}" for number, offset in sorted(reading.offsets.items())]
    shown = shortened(offsets, _SHOWN_PARTITIONS, between=" ")
    first, last = (moment(at).removesuffix(" UTC") for at in (reading.first_commit, reading.last_commit))
    client = reading.client_id if reading.client_id is not None else "(no member)"
    return reading.group, reading.topic, client, reading.host or "", first, last, shown, f"{reading.commits:,}"
