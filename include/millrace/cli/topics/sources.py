"""`millrace sources`: feed topics from declared source programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from millrace.cli.terminal.output import Text, emit
from millrace.declarations.project import load_pipeline
from millrace.settings import open_settings
from millrace.usecases.topics.sources import LoadPhase, LoadProgress, LoadReport
from millrace.wiring.sources import load_source

app = typer.Typer(no_args_is_help=True, help="Feed topics from declared source programs.")

_PHASES = {
    LoadPhase.FENCING: "fencing older loaders",
    LoadPhase.SCANNING: "reading the topic",
    LoadPhase.PRODUCING: "writing the missing records",
}


@app.callback()
def sources() -> None:
    """Feed topics from declared source programs."""


@app.command()
def load(
    pipeline: Annotated[str, typer.Argument(help="Name the pipeline that declares the source.")],
    name: Annotated[str, typer.Argument(help="Name the source in that pipeline.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Write the records that the topic lacks. It is safe to repeat it, to kill it, and to run it twice at once."""
    settings = open_settings()
    declared = load_pipeline(settings.root, pipeline)
    with load_bar(Console(stderr=True)) as bar:
        task = bar.add_task("starting", total=None)

        def show(progress: LoadProgress) -> None:
            bar.update(task, description=_PHASES[progress.phase], completed=progress.records)

        report = load_source(settings, declared, name, show)
    document = {"schema": "millrace.sources.load/1", **asdict(report)}
    emit(document, as_json=as_json, text=lambda console: _print(console, report))


def load_bar(console: Console) -> Progress:
    """A bar that shows a step, how far it is and how long it has taken; gone when it ends."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )


def _print(console: Console, report: LoadReport) -> None:
    console.print(
        Text(
            f"{report.source} -> {report.topic}: {report.produced:,} written, {report.already_there:,} were there "
            "before, "
            f"{report.total:,} in all"
        )
    )
