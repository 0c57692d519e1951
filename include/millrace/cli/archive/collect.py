"""`millrace backup collect`: let go what need not be kept, and delete it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from millrace.cli.archive.audit import Json, Topic, each_archive, open_backed, told_and_ended
from millrace.cli.terminal.actor import actor
from millrace.cli.terminal.output import Text, emit
from millrace.cli.terminal.reason import Reason
from millrace.cli.terminal.sizes import duration_option
from millrace.errors import MillraceError
from millrace.usecases.archive.collect import Collected, Request
from millrace.usecases.archive.collect import collect as collect_one


def register(app: typer.Typer) -> None:
    """Add the command to the noun it belongs to."""
    app.command()(collect)


def collect(
    reason: Reason,
    topic: Topic = None,
    grace: Annotated[
        str,
        typer.Option(help="Keep objects that were written or expired within this time, as 3d or 24h."),
    ] = "3d",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count: ask for nothing, delete nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Release objects that `keep` no longer protects, delete released objects, and delete orphaned objects.

    Asks the backup's app to expire the offsets that are due; a later run deletes their objects. You can repeat it.
    Exit 1 if an archive has a fault: the command deletes nothing of that archive.
    """
    request = Request(actor(), reason, duration_option("--grace", grace), dry_run)
    platform, found = open_backed(topic)
    done: list[Collected] = []
    failed: list[MillraceError] = []
    for backed, here in each_archive(platform, found, failed):
        try:
            done.append(collect_one(platform, backed, here, request))
        except MillraceError as error:  # the next one is collected all the same
            failed.append(error)
    document = {
        "schema": "millrace.backup.collect/1",
        "dry_run": dry_run,
        "archives": [asdict(one) for one in done],
        "failures": [str(error) for error in failed],
    }
    emit(document, as_json=as_json, text=lambda console: _print(console, done, dry_run=dry_run))
    told_and_ended(failed, [MillraceError.exit_code] if any(one.wrong for one in done) else [])


def _print(console: Console, done: list[Collected], *, dry_run: bool) -> None:
    verb = "to delete" if dry_run else "deleted"
    for one in done:
        lines = [f"{one.topic} ({one.topic_id}):"]
        if one.wrong:
            lines += ["  faults:", *(f"    {text}" for text in one.wrong)]
        if one.due:
            how = "requested" if one.asked else "requested before, waits for the app" if one.waits else "due"
            lines.append(f"  {one.due:,} offsets: {how}")
        lines.append(f"  {one.expired:,} expired objects {verb}, {one.expired_bytes:,} bytes")
        lines.append(f"  {one.orphans:,} orphaned objects {verb}, {one.orphan_bytes:,} bytes")
        if one.too_young:
            lines.append(f"  {one.too_young:,} are younger than the grace period")
        if one.more_orphans:
            lines.append(f"  {one.more_orphans:,} more that no manifest names: run it again")
        for line in lines:
            console.print(Text(line), soft_wrap=True)
