"""`millrace backup`: read the archive."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import closing
from typing import Annotated

import typer
from rich.console import Console

from millrace.cli import audits, collect
from millrace.settings import open_settings
from millrace.usecases.backup import Cat, selection_of
from millrace.wiring import open_platform

app = typer.Typer(help="The archive: prove it, show it, read it back.", no_args_is_help=True)


audits.register(app)
collect.register(app)


@app.callback()
def _noun() -> None:
    """The archive: prove it, show it, read it back."""


@app.command()
def cat(
    topic: Annotated[str, typer.Argument(help="The topic's name.")],
    from_: Annotated[
        str | None, typer.Option("--from", help="A time with its zone, or an offset: records from there on.")
    ] = None,
    to: Annotated[str | None, typer.Option("--to", help="A time with its zone, or an offset: records before it.")] = (
        None
    ),
    partition: Annotated[int | None, typer.Option(min=0, help="Only this one; offsets need it.")] = None,
    key: Annotated[str | None, typer.Option(help="Only records whose key is this text in UTF-8.")] = None,
    key_base64: Annotated[str | None, typer.Option(help="Only records whose key is these bytes.")] = None,
    topic_id: Annotated[str | None, typer.Option(help="Of a topic that was made again: which one.")] = None,
    connection: Annotated[str, typer.Option(help="The aws Connection that leads to the bucket.")] = "millrace_s3",
    limit: Annotated[int | None, typer.Option(min=1, help="How many records at most.")] = None,
) -> None:
    """Print archived records of a topic, one line of JSON each.

    Asks the bucket alone: neither Kafka nor the control database. Ends with 1 where something is wrong with what was
    read, after printing the rest, or where there is no such archive.
    """
    errors = Console(stderr=True)

    def tell(text: str) -> None:
        errors.print(f"millrace: {text}", markup=False, highlight=False, soft_wrap=True)

    selection = selection_of(from_, to, partition=partition, key=key, key_base64=key_base64)
    reading = Cat(open_platform(open_settings()), topic, selection, tell, topic_id, connection, limit)
    _print(reading.lines())
    if reading.problems:
        raise typer.Exit(1)


def _print(lines: Generator[str, None, None]) -> None:
    """Write lines in UTF-8, whatever the locale; to a pipe that its reader has closed none any more."""
    out, is_terminal = sys.stdout.buffer, sys.stdout.isatty()
    try:
        with closing(lines):
            for line in lines:
                out.write(line.encode() + b"\n")
                if is_terminal:
                    out.flush()
        out.flush()
    except BrokenPipeError:
        # What Python still holds for the pipe goes nowhere, so that it does not complain at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
