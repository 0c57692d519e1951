"""`millrace topics hold`: for a time, nothing that a topic has now is deleted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from millrace.cli.terminal.actor import actor
from millrace.cli.terminal.output import Text, emit, moment
from millrace.cli.terminal.reason import OptionalReason
from millrace.cli.terminal.sizes import duration_option, size_option
from millrace.domain.formats.sizes import roughly_bytes
from millrace.domain.retention.holds import Hold
from millrace.errors import UsageError
from millrace.settings import open_settings
from millrace.usecases.retention import holds
from millrace.wiring import open_platform


def hold(
    topic: Annotated[str | None, typer.Argument(help="Name the topic; without it, list all holds.")] = None,
    keep_for: Annotated[
        str | None, typer.Option("--for", help="Hold for this time, as 24h or 7d.", show_default=False)
    ] = None,
    end: Annotated[bool, typer.Option("--end", help="End the hold instead.")] = False,
    reason: OptionalReason = None,
    budget: Annotated[
        str | None, typer.Option("--budget", help="Allow at most this much disk, as 20GiB.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Keep all records that a topic has now for some time. A second hold keeps the later end.

    Exit 4 if the hold may need more disk than its budget, or if its end would delete unread records of a declared
    reader. Exit 3 if the cluster or the control database does not answer: run it again then.
    """
    platform = open_platform(open_settings())
    if topic is None:
        if keep_for or end or reason or budget:
            raise UsageError("no topic is named", next_step="write `millrace topics hold TOPIC --for 24h --reason ...`")
        found = holds.list_holds(platform)
        listed = {"schema": "millrace.topics.holds/1", "holds": list(found)}
        emit(listed, as_json=as_json, text=lambda console: _print_all(console, found))
        return
    if (keep_for is None) is not end or reason is None or (end and budget):
        raise UsageError(
            "a hold starts with --for and --reason, and ends with --end and --reason",
            where=topic,
            next_step=f"write `millrace topics hold {topic} --for 24h --reason ...` or `--end --reason ...`",
        )
    if keep_for is None:
        ended = holds.end(platform, topic, actor=actor(), reason=reason)
        document = _document(ended, 0, ended=True)
        emit(document, as_json=as_json, text=lambda console: console.print(Text(f"{topic} is not held any more")))
        return
    size = None if budget is None else size_option("--budget", budget)
    lasts = duration_option("--for", keep_for)
    made = holds.hold(platform, topic, lasts, actor=actor(), reason=reason, budget_bytes=size)
    document = _document(made.hold, made.need_bytes, ended=False)
    emit(document, as_json=as_json, text=lambda console: _print(console, made))


def _document(hold: Hold, need_bytes: int, *, ended: bool) -> dict[str, object]:
    return {"schema": "millrace.topics.hold/1", "hold": hold, "ended": ended, "need_bytes": need_bytes}


def _print(console: Console, made: holds.Held) -> None:
    console.print(Text(f"{made.hold.topic} is held until {moment(made.hold.until)}"))
    for key, value in made.hold.after.items():
        console.print(Text(f"  {key}: {made.hold.found[key]} before, {value} now"))
    if made.budget_bytes is not None:
        need, budget = roughly_bytes(made.need_bytes), roughly_bytes(made.budget_bytes)
        console.print(Text(f"  may need {need} of its budget of {budget}, on all brokers together"))


def _print_all(console: Console, found: Sequence[Hold]) -> None:
    if not found:
        console.print(Text("no topic is held"))
        return
    table = Table()
    for heading in ("topic", "connection", "until", "by", "reason"):
        table.add_column(heading, overflow="fold")
    for each in found:
        cells = (each.topic, each.kafka, moment(each.until), each.actor, each.reason)
        table.add_row(*(Text(cell) for cell in cells))
    console.print(table)
