"""`millrace backup`: read the archive."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import closing
from typing import Annotated

import typer

from millrace.cli.archive import audit as audits
from millrace.cli.archive import collect, restore
from millrace.cli.archive.options import From, Key, KeyBase64, Partition, Store, To, TopicId, teller
from millrace.settings import open_settings
from millrace.usecases.archive.cat import Cat
from millrace.usecases.archive.selection import selection_of
from millrace.wiring import open_platform

app = typer.Typer(help="Audit, show and read back the archive.", no_args_is_help=True)


audits.register(app)
collect.register(app)
restore.register(app)


@app.callback()
def _noun() -> None:
    """Audit, show and read back the archive."""


@app.command()
def cat(
    topic: Annotated[str, typer.Argument(help="Name the topic.")],
    from_: From = None,
    to: To = None,
    partition: Partition = None,
    key: Key = None,
    key_base64: KeyBase64 = None,
    topic_id: TopicId = None,
    connection: Store = "millrace_s3",
    limit: Annotated[int | None, typer.Option(min=1, help="Print at most this number of records.")] = None,
) -> None:
    """Print archived records of a topic, one line of JSON each.

    Needs only the bucket, neither Kafka nor the control database. Exit 1 if an object that it read is wrong, after
    printing the rest, or if the archive does not exist.
    """
    selection = selection_of(from_, to, partition=partition, key=key, key_base64=key_base64)
    reading = Cat(open_platform(open_settings()), topic, selection, teller(), topic_id, connection, limit)
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
