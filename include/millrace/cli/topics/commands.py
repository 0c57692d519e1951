"""`millrace topics`: plan what would make topics as declared."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from millrace.cli.plans.text import plan_document, print_plan
from millrace.cli.terminal.actor import actor
from millrace.cli.terminal.declared import sound_pipelines
from millrace.cli.terminal.output import Text, emit, show_error
from millrace.cli.topics import drift, headroom, sizing, skew
from millrace.cli.topics.hold import hold
from millrace.domain.declaration.pipeline import Pipeline
from millrace.domain.plans.plan import Plan
from millrace.errors import MillraceError, UnreachableError
from millrace.ports.platform import Platform
from millrace.settings import open_settings
from millrace.usecases.topics import plan as topics
from millrace.wiring import open_platform

app = typer.Typer(no_args_is_help=True, help="Plan topic changes, hold records, and show sizes and headroom.")
sizing.register(app)
headroom.register(app)
drift.register(app)
skew.register(app)


@app.callback()
def _noun() -> None:
    """Plan topic changes, hold records, and show sizes and headroom."""


app.command()(hold)


@app.command()
def plan(
    pipeline: Annotated[str | None, typer.Argument(help="Name one pipeline; default: all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    environment: Annotated[
        str | None, typer.Option("--environment", "-e", help="Name the environment; default: MILLRACE_ENVIRONMENT.")
    ] = None,
) -> None:
    """Store a plan that brings topics to their declaration, and print it with its id. Changes nothing.

    Exit 1 if something is refused or a declaration is wrong, 3 if a cluster or the control database does not answer.
    A plan that could not be stored is printed too.
    """
    settings = open_settings()
    platform = open_platform(settings)
    wanted, problems = sound_pipelines(settings.root, pipeline, environment)
    plans = [made for each in wanted if (made := _plan(platform, each, problems)) is not None]
    document = {
        "schema": "millrace.topics.plan/1",
        "plans": [plan_document(made, stored=stored) for made, stored in plans],
        "problems": [{"what": p.what, "where": p.where, "next_step": p.next_step} for p in problems],
    }
    emit(document, as_json=as_json, text=lambda console: _print(console, plans))
    for problem in problems:
        show_error(problem)
    if any(isinstance(problem, UnreachableError) for problem in problems):
        raise typer.Exit(3)
    if problems or any(made.refusals for made, _ in plans):
        raise typer.Exit(1)


def _plan(platform: Platform, pipeline: Pipeline, problems: list[MillraceError]) -> tuple[Plan, bool] | None:
    """A pipeline's plan and whether it is stored; one cluster that does not answer must not hide the others."""
    try:
        proposed = topics.propose(platform, pipeline, by=actor())
    except MillraceError as error:
        problems.append(error)
        return None
    try:
        return topics.store(platform, proposed), bool(proposed.changes)
    except UnreachableError as error:
        problems.append(error)
        return proposed, False


def _print(console: Console, plans: list[tuple[Plan, bool]]) -> None:
    for made, stored in plans:
        print_plan(console, made)
        if stored:
            line = f"plan {made.id}, good until {made.expires:%Y-%m-%d %H:%M} UTC: run it with "
            line += f"`./millrace plans run {made.id}`"
            console.print(Text(line), soft_wrap=True)
        elif made.changes:
            console.print(Text("this plan was not stored, so it cannot run"), soft_wrap=True)
