"""`millrace alarms`: what went wrong, and who has taken it up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from millrace.cli.terminal.actor import actor
from millrace.cli.terminal.output import Text, emit, moment, paragraph
from millrace.cli.terminal.reason import Reason
from millrace.domain.alarms.alarm import Alarm
from millrace.domain.alarms.extent import Notified
from millrace.domain.alarms.kinds import facts_of, runbook_of
from millrace.domain.alarms.life import growth, in_words
from millrace.settings import open_settings
from millrace.usecases.alarms import listing as alarms
from millrace.usecases.alarms.notify import NotifierGivenUpError
from millrace.wiring import open_platform

app = typer.Typer(help="List, show and acknowledge alarms.", no_args_is_help=True)

Identity = Annotated[int, typer.Argument(metavar="ID", help="The number of the alarm.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@app.command("list")
def list_command(
    also_over: Annotated[bool, typer.Option("--all", help="List closed alarms too.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Print at most this number.")] = 200,
    as_json: Json = False,
) -> None:
    """List alarms that are still open, newest first."""
    found = alarms.list_alarms(open_platform(open_settings()), also_over=also_over, limit=limit)
    document = {"schema": "millrace.alarms.list/1", "alarms": [_document(alarm) for alarm in found]}
    emit(document, as_json=as_json, text=lambda console: _print_list(console, found, also_over=also_over))


@app.command()
def show(identity: Identity, as_json: Json = False) -> None:
    """Show one alarm with all details."""
    alarm = alarms.show(open_platform(open_settings()), identity)
    document = {"schema": "millrace.alarms.show/1", **_document(alarm)}
    emit(document, as_json=as_json, text=lambda console: _print_one(console, alarm))


@app.command()
def acknowledge(identity: Identity, reason: Reason, as_json: Json = False) -> None:
    """Acknowledge an alarm: it stays open; notifiers stay silent unless it grows tenfold or shows a new fault."""
    alarm, first = alarms.acknowledge(open_platform(open_settings()), identity, actor=actor(), reason=reason)
    document = {"schema": "millrace.alarms.acknowledge/1", **_document(alarm), "first": first}
    emit(document, as_json=as_json, text=lambda console: console.print(Text(_acknowledged(alarm, first))))


def _acknowledged(alarm: Alarm, first: bool) -> str:
    if first:
        return f"alarm {alarm.identity}, {alarm.kind} of {alarm.subject}: acknowledged: {_first_line(alarm.detail)}"
    when = f" on {moment(alarm.acknowledged_at)}" if alarm.acknowledged_at else ""
    return (
        f"alarm {alarm.identity} was acknowledged before{when} by {alarm.acknowledged_by}: {alarm.acknowledged_reason}"
    )


def _document(alarm: Alarm) -> dict[str, object]:
    values = asdict(alarm)
    return {"id": values.pop("identity"), "standing": alarm.standing, **values, "runbook": runbook_of(alarm.kind)}


def _print_list(console: Console, found: Sequence[Alarm], *, also_over: bool) -> None:
    if not found:
        console.print(Text("no alarm was ever raised" if also_over else "no alarm is open"))
        return
    table = Table()
    for heading in ("id", "kind", "subject", "is", "opened (UTC)", "detail"):
        table.add_column(heading, overflow="fold", no_wrap=heading == "id")
    for alarm in found:
        opened = moment(alarm.opened_at).removesuffix(" UTC")
        cells = (
            str(alarm.identity),
            alarm.kind,
            alarm.subject,
            alarm.standing.value,
            opened,
            _first_line(alarm.detail),
        )
        table.add_row(*(Text(cell) for cell in cells))
    console.print(table)


def _first_line(detail: str) -> str:
    return next(iter(detail.splitlines()), "")


def _grown(alarm: Alarm) -> str:
    """Return how much worse it is than people were told, where it waits for that to be told."""
    if alarm.raise_at is None:
        return ""
    return f"{growth(alarm.kind, alarm.known, alarm.extent)}; raised again at {moment(alarm.raise_at)}"


def _fared(notified: Notified) -> str:
    """Return in a line how a notifier fared."""
    if notified.told:
        return f"{notified.name}: delivered" + (f" after {notified.failed} failures" if notified.failed else "")
    given_up = "" if notified.is_due else ", given up"
    if not notified.called and notified.error == NotifierGivenUpError.__name__:
        rounds = "1 round" if notified.failed == 1 else f"{notified.failed} rounds"
        return f"{notified.name}: never called, skipped in {rounds} ({notified.error}){given_up}"
    return f"{notified.name}: failed {notified.failed} times ({notified.error}){given_up}"


def _print_one(console: Console, alarm: Alarm) -> None:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    by = f" by {alarm.acknowledged_by}" if alarm.acknowledged_by else ""
    known = facts_of(alarm.kind)
    facts = {
        "alarm": f"{alarm.identity}, {alarm.standing.value}",
        "kind": alarm.kind,
        "means": known.text if known else "",
        "subject": alarm.subject,
        "detail": alarm.detail,
        "measure": in_words(alarm.kind, alarm.extent),
        "opened": moment(alarm.opened_at),
        "raised again": moment(alarm.raised_at) if alarm.raised_at else "",
        "grown": _grown(alarm),
        "told": moment(alarm.told_at) if alarm.told_at else "",
        "notifiers": "\n".join(map(_fared, alarm.notified)),
        "tried again": moment(alarm.retry_at) if alarm.retry_at else "",
        "acknowledged": f"{moment(alarm.acknowledged_at)}{by}" if alarm.acknowledged_at else "",
        "reason": alarm.acknowledged_reason or "",
        "over": moment(alarm.closed_at) if alarm.closed_at else "",
        "runbook": runbook_of(alarm.kind),
    }
    for name, text in facts.items():
        if text:
            grid.add_row(Text(name), paragraph(text))
    console.print(grid)
