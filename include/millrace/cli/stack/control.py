"""`millrace control`: the control database."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from millrace.cli.terminal.output import Text, emit
from millrace.domain.streams.control import AppendOnly, MigrationReport
from millrace.settings import open_settings
from millrace.wiring.control import upgrade_control

app = typer.Typer(no_args_is_help=True, help="Migrate the control database.")


@app.callback()
def _noun() -> None:
    """Migrate the control database."""


@app.command()
def upgrade(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False) -> None:
    """Migrate the control database to the version that this Millrace reads. You can repeat it."""
    report = upgrade_control(open_settings())
    document = {"schema": "millrace.control.upgrade/1", **asdict(report)}
    emit(document, as_json=as_json, text=lambda console: _print(console, report))


def _print(console: Console, report: MigrationReport) -> None:
    done = f"applied {', '.join(report.applied)}" if report.applied else "nothing to do"
    console.print(Text(f"{report.address}: version {report.after}, {done}"), soft_wrap=True)
    if report.append_only is AppendOnly.TRIGGER:
        console.print(
            Text(
                "caution: connection millrace_control_owner is not defined, so the working role owns the tables: the "
                "action log is kept append-only by its trigger alone, which that role could remove",
                style="yellow",
            ),
            soft_wrap=True,
        )
    if report.aside:
        caution = f"caution: streams that write to Kafka or S3 cannot run yet: {report.aside}"
        console.print(Text(caution, style="yellow"), soft_wrap=True)
