"""`millrace topics drift`: in what topics are not as declared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from millrace.cli.terminal.declared import sound_pipelines
from millrace.cli.terminal.output import Text, emit, error_document, show_error
from millrace.domain.declaration.pipeline import Pipeline
from millrace.errors import MillraceError, UnreachableError
from millrace.ports.platform import Platform
from millrace.settings import open_settings
from millrace.usecases.topics.drift import Drift, MendedBy, find_drift
from millrace.wiring import open_platform

_MENDED = {MendedBy.DAILY: "the daily run", MendedBy.PERSON: "a person"}


def register(app: typer.Typer) -> None:
    """Add the command `drift` to the commands of `topics`."""
    app.command("drift")(drift)


def drift(
    pipeline: Annotated[str | None, typer.Argument(help="Name one pipeline; default: all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    environment: Annotated[
        str | None, typer.Option("--environment", "-e", help="Name the environment; default: MILLRACE_ENVIRONMENT.")
    ] = None,
) -> None:
    """List each setting that differs from its declaration, and who repairs it. Stores and changes nothing.

    Needs no control database. Exit 1 if something differs or a declaration is wrong, 3 if a cluster does not answer.
    """
    settings = open_settings()
    platform = open_platform(settings)
    wanted, problems = sound_pipelines(settings.root, pipeline, environment)
    found = [each for one in wanted if (each := _drift(platform, one, problems)) is not None]
    document = {
        "schema": "millrace.topics.drift/1",
        "pipelines": [asdict(each) for each in found],
        "problems": [error_document(problem) for problem in problems],
    }
    emit(document, as_json=as_json, text=lambda console: _print(console, found))
    for problem in problems:
        show_error(problem)
    if any(isinstance(problem, UnreachableError) for problem in problems):
        raise typer.Exit(3)
    if problems or not all(each.is_none for each in found):
        raise typer.Exit(1)


def _drift(platform: Platform, pipeline: Pipeline, problems: list[MillraceError]) -> Drift | None:
    """One cluster that does not answer must not hide the others."""
    try:
        return find_drift(platform, pipeline)
    except MillraceError as error:
        problems.append(error)
        return None


def _print(console: Console, found: Sequence[Drift]) -> None:
    for each in found:
        if each.is_none:
            console.print(Text(f"{each.pipeline}: its topics are as declared"))
            continue
        if each.differences:
            table = Table(title=f"{each.pipeline}: not as declared on cluster {each.cluster_id}", title_justify="left")
            for heading in ("topic", "setting", "declared", "observed", "repaired by"):
                table.add_column(heading, overflow="fold")
            for one in each.differences:
                cells = (one.topic, one.setting, one.declared, one.observed, _MENDED[one.mended_by])
                table.add_row(*(Text(cell) for cell in cells))
            console.print(table)
        _print_rest(console, each)


def _print_rest(console: Console, found: Drift) -> None:
    for one in found.differences:
        if one.why:
            console.print(Text(f"caution: {one.topic}: {one.why}", style="yellow"), soft_wrap=True)
    for name in found.missing:
        line = f"missing: {name}: declared, but does not exist; no scheduled run creates it"
        console.print(Text(line, style="yellow"), soft_wrap=True)
    for refusal in found.refusals:
        console.print(Text(f"refused: {refusal.subject}: {refusal.what}", style="red"), soft_wrap=True)
        console.print(Text(f"  next: {refusal.next_step}"), soft_wrap=True)
    if found.differences or found.missing:
        step = f"  next: `./millrace topics plan {found.pipeline}`, then `./millrace plans run ID`"
        console.print(Text(step), soft_wrap=True)
