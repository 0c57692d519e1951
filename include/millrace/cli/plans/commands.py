"""`millrace plans`: look at stored plans, run them, take them back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from millrace.cli.plans.text import print_stored, stored_document
from millrace.cli.terminal.actor import actor
from millrace.cli.terminal.output import Text, emit, paragraph
from millrace.cli.terminal.reason import Reason
from millrace.domain.plans.plan import PlanStatus, StoredPlan
from millrace.settings import open_settings
from millrace.usecases.plans import listing, running
from millrace.wiring import open_platform

app = typer.Typer(no_args_is_help=True, help="List, show, run and abort stored plans.")

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@app.command("list")
def list_(
    status: Annotated[PlanStatus | None, typer.Option(help="Select plans of this status.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Print at most this number.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List the latest plans, newest first."""
    found = listing.list_plans(open_platform(open_settings()), status=status, limit=limit)
    document = {"schema": "millrace.plans.list/1", "plans": [stored_document(stored) for stored in found]}
    emit(document, as_json=as_json, text=lambda console: _print_list(console, found))


@app.command()
def show(plan_id: Annotated[str, typer.Argument(metavar="ID")], as_json: AsJson = False) -> None:
    """Show one plan and its outcome."""
    stored = listing.show(open_platform(open_settings()), plan_id)
    document = {"schema": "millrace.plans.show/1", **stored_document(stored)}
    emit(document, as_json=as_json, text=lambda console: print_stored(console, stored))


@app.command()
def run(
    plan_id: Annotated[str, typer.Argument(metavar="ID")],
    reason: Annotated[str, typer.Option(help="Give the reason, for the action log.")] = "",
    as_json: AsJson = False,
) -> None:
    """Run a plan, once, if its basis has not changed.

    Exit 1 if a change failed, 4 if the plan is stale or was run before.
    """
    stored = running.run(open_platform(open_settings()), plan_id, actor=actor(), reason=reason, tell=telling())
    document = {"schema": "millrace.plans.run/1", **stored_document(stored)}
    emit(document, as_json=as_json, text=lambda console: print_stored(console, stored))
    if stored.status is not PlanStatus.DONE:
        raise typer.Exit(1)


@app.command()
def abort(plan_id: Annotated[str, typer.Argument(metavar="ID")], reason: Reason, as_json: AsJson = False) -> None:
    """Abort a plan that never ran, or a rewind that has read nothing yet.

    Exit 4, with the reason, if it is too late.
    """
    stored = running.abort(open_platform(open_settings()), plan_id, actor=actor(), reason=reason, tell=telling())
    document = {"schema": "millrace.plans.abort/1", **stored_document(stored)}
    emit(document, as_json=as_json, text=lambda console: print_stored(console, stored))


def telling() -> Callable[[str], None]:
    """Says on standard error what is going on, each thing once."""
    console, said = Console(stderr=True), [""]

    def tell(text: str) -> None:
        if text != said[0]:
            said[0] = text
            console.print(paragraph(text), soft_wrap=True)

    return tell


def _print_list(console: Console, found: tuple[StoredPlan, ...]) -> None:
    if not found:
        console.print(Text("no plans"))
        return
    table = Table()
    for heading in ("id", "target", "changes", "status", "made by", "made (UTC)", "good until (UTC)"):
        table.add_column(heading, overflow="fold", no_wrap=heading == "id")
    for stored in found:
        plan = stored.plan
        times = (f"{time:%Y-%m-%d %H:%M}" for time in (plan.created, plan.expires))
        cells = (plan.id, plan.target, str(len(plan.changes)), stored.status.value, plan.by, *times)
        table.add_row(*(Text(cell) for cell in cells))
    console.print(table)
