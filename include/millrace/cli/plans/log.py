"""`millrace log`: the action log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from millrace.cli.terminal.output import Text, emit, lines
from millrace.domain.streams.control import Action
from millrace.settings import open_settings
from millrace.usecases.plans import action_log
from millrace.wiring import open_platform

app = typer.Typer(help="Print the action log: who did what, when and why.")


@app.callback(invoke_without_command=True)
def log(
    subject: Annotated[str | None, typer.Option(help="Select this topic, stream or pipeline, and its parts.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Print at most this number of entries.")] = 50,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Print the action log, newest first: who did what, when and why."""
    found = action_log.list_actions(open_platform(open_settings()), subject=subject, limit=limit)
    emit(
        {"schema": "millrace.log/1", "actions": list(found)},
        as_json=as_json,
        text=lambda console: _print(console, found),
    )


def _print(console: Console, found: tuple[Action, ...]) -> None:
    if not found:
        console.print(Text("no entries"))
        return
    table = Table()
    for heading in ("when (UTC)", "who", "what", "subject", "from → to", "why", "outcome"):
        table.add_column(heading, overflow="fold")
    for entry in found:
        change = _changed(entry.before, entry.after)
        when = f"{entry.at:%Y-%m-%d %H:%M:%S}"
        before = (Text(cell) for cell in (when, entry.actor, entry.action, entry.subject))
        table.add_row(*before, lines(change), Text(entry.reason), Text(entry.outcome))
    console.print(table)


def _changed(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return a line for each fact that differs."""
    found = []
    for key, value in after.items():
        if before.get(key) != value:
            found.append(f"{key}: {before[key]} → {value}" if key in before else f"{key}: {value}")
    return found
