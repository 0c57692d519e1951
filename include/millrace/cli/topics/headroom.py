"""`millrace topics headroom`: for each reader, how long what it has not read stays in its topics."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text as RichText

from millrace.cli.terminal.bars import share_bar
from millrace.cli.terminal.output import Text, emit, moment
from millrace.domain.formats.durations import roughly
from millrace.domain.retention.headroom import Danger
from millrace.domain.retention.readers import Room
from millrace.errors import Code, UsageError
from millrace.ports.platform import Platform
from millrace.settings import KAFKA, open_settings
from millrace.usecases.declaration.environment import environment_of
from millrace.usecases.declaration.lookup import declared_groups
from millrace.usecases.retention.readers import Reader, Readers, look
from millrace.wiring import open_platform

_SHOWN = 40
_STYLES = {Danger.ALARM: "red", Danger.WARNING: "yellow", Danger.NONE: "green"}


def register(app: typer.Typer) -> None:
    """Add the command to its noun."""
    app.command()(headroom)


def headroom(
    reader: Annotated[
        str | None,
        typer.Argument(
            metavar="READER",
            help="Name a reader: PIPELINE.STREAM, PIPELINE.backup or a group's id; default: all.",
        ),
    ] = None,
    kafka: Annotated[str, typer.Option("--kafka", metavar="NAME", help="Use this Connection of the cluster.")] = KAFKA,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Show when the oldest unread record of each reader may be deleted, by time and by size, and lost records.

    Exit 1 if a reader is about to lose records.
    """
    settings = open_settings()
    platform = open_platform(settings)
    group = None if reader is None else _group(platform, kafka, reader)
    found = look(platform, kafka, environment_of(settings.root), group=group)
    if group is not None and not found.readers:
        raise UsageError(
            f"group `{group}` does not exist",
            where=f"cluster of {kafka}",
            next_step="see `millrace groups list`",
            code=Code.UNKNOWN_NAME,
        )
    emit(_document(found), as_json=as_json, text=lambda console: _print(console, found, each=group is not None))
    if any(one.danger is Danger.ALARM for one in found.readers):
        raise typer.Exit(1)


def _group(platform: Platform, kafka: str, reader: str) -> str:
    apps = declared_groups(platform.settings.root, kafka)
    return next((group for group, app in apps.items() if app.qualified_name == reader), reader)


def _document(found: Readers) -> dict[str, object]:
    return {
        "schema": "millrace.topics.headroom/1",
        "kafka": found.kafka,
        "cluster_id": found.snapshot.cluster_id,
        "at": found.snapshot.at,
        "not_known": list(found.not_known),
        "readers": [
            {
                "group": one.group,
                "what": one.what,
                "declared": one.declared,
                "danger": one.danger,
                "unread": one.unread,
                "lost": one.lost,
                "left_seconds": one.left,
                "partitions": [_room(room) for room in one.rooms],
            }
            for one in found.readers
        ],
    }


def _room(room: Room) -> dict[str, object]:
    return {
        "topic": room.position.partition.topic,
        "partition": room.position.partition.partition,
        "position": room.position.offset,
        "unread": room.unread,
        "lost": room.position.lost,
        "left_seconds": room.left,
        "window_seconds": room.window,
        "rule": room.rule,
        "danger": room.danger,
        "why": room.why,
    }


def _print(console: Console, found: Readers, *, each: bool) -> None:
    console.print(Text(f"cluster of {found.kafka} at {moment(found.snapshot.at)}"), soft_wrap=True)
    for line in found.not_known:
        console.print(Text(f"not known: {line}"), soft_wrap=True)
    if not found.readers:
        console.print(Text("no readers"))
        return
    console.print(headroom_table(found))
    if each:
        for one in found.readers:
            console.print(_partitions(one))


def headroom_table(found: Readers) -> Table:
    """A line a reader; the bar is the part of its topic's time that is left."""
    table = Table()
    for heading in ("reader", "unread", "lost", "goes in", "", "by", "danger", "what it is"):
        right = heading in ("unread", "lost", "goes in")
        table.add_column(heading, overflow="fold", justify="right" if right else "left")
    for one in found.readers:
        first = one.rooms[0] if one.rooms else None
        cells = _left(first) if first else (Text(""), Text(""), Text(""), Text(""))
        lost = f"{one.lost:,}" if one.lost else ""
        table.add_row(Text(one.group), Text(f"{one.unread:,}"), Text(lost), *cells, Text(one.what))
    return table


def _partitions(reader: Reader) -> Table:
    table = Table(title=reader.group, title_justify="left")
    for heading in ("partition", "goes on at", "unread", "lost", "goes in", "", "by", "danger"):
        right = heading in ("goes on at", "unread", "lost", "goes in")
        table.add_column(heading, overflow="fold", justify="right" if right else "left")
    for room in reader.rooms[:_SHOWN]:
        lost = f"{room.position.lost:,}" if room.position.lost else ""
        table.add_row(
            Text(str(room.position.partition)),
            Text(f"{room.position.offset:,}"),
            Text(f"{room.unread:,}"),
            Text(lost),
            *_left(room),
        )
    if (more := len(reader.rooms) - _SHOWN) > 0:
        table.add_row(Text(f"{more:,} more: --json"))
    return table


def _left(room: Room) -> tuple[Text, RichText, Text, Text]:
    if room.left is None:
        return Text("?" if room.why else "never" if room.unread else "all read"), Text(""), Text(room.why), Text("")
    share = room.left / room.window if room.window else None
    style = _STYLES[room.danger]
    when = roughly(room.left) if room.left else "any moment"
    danger = "" if room.danger is Danger.NONE else room.danger.value
    return Text(when), share_bar(share, style=style), Text(room.rule.value if room.rule else ""), Text(danger, style)
