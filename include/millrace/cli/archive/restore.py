"""`millrace backup restore`: records of an archive back into a topic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from millrace.cli.archive.options import From, Key, KeyBase64, Partition, Store, To, TopicId, teller
from millrace.cli.terminal.actor import actor
from millrace.cli.terminal.output import Text, emit, error_document
from millrace.cli.terminal.reason import Reason
from millrace.domain.archive.restore.records import Placement
from millrace.errors import MillraceError
from millrace.settings import open_settings
from millrace.usecases.archive.restore import Request, Restore, RestoreProgress
from millrace.usecases.archive.restore_run import RestoreReport
from millrace.usecases.archive.selection import selection_of
from millrace.wiring import open_platform

_SCHEMA = "millrace.backup.restore/1"


class _Partitions(StrEnum):
    KEEP = Placement.KEEP.value
    KEY = Placement.KEY.value


def register(app: typer.Typer) -> None:
    """Add the command to the noun it belongs to."""
    app.command()(restore)


def restore(
    topic: Annotated[str, typer.Argument(help="Read the archive of this topic.")],
    into: Annotated[str, typer.Option(help="Write to this existing topic.")],
    reason: Reason,
    from_: From = None,
    to: To = None,
    partition: Partition = None,
    key: Key = None,
    key_base64: KeyBase64 = None,
    partitions: Annotated[
        _Partitions | None,
        typer.Option(help="If the target has another number of partitions: keep the numbers, or choose by key."),
    ] = None,
    append: Annotated[bool, typer.Option("--append", help="Also write if the target holds other records.")] = False,
    topic_id: TopicId = None,
    connection: Store = "millrace_s3",
    kafka: Annotated[str, typer.Option(help="Use this kafka Connection for the target.")] = "millrace_kafka",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Write archived records into another topic, each once. Run it again after a kill to resume.

    Keeps key, value, headers and timestamp; added headers name the source of each record. At the end it reads all
    records back and compares them with the archive. Exit 1 if something differs, or if the archive lacks records.
    """
    request = Request(
        topic,
        into,
        selection_of(from_, to, partition=partition, key=key, key_base64=key_base64),
        actor(),
        reason,
        Placement.SAME if partitions is None else Placement(partitions.value),
        append,
        topic_id,
        connection,
        kafka,
    )
    errors = Console(stderr=True)
    tell = teller(errors)
    try:
        report = _run(request, errors, tell)
    except MillraceError as error:
        failed = {"schema": _SCHEMA, "error": error_document(error)}
        emit(failed, as_json=as_json, text=lambda console: None)
        raise
    document = {"schema": _SCHEMA, **asdict(report), "error": None}
    emit(document, as_json=as_json, text=lambda console: _print(console, report))
    for line in report.differences:
        tell(line)
    if report.differences:
        tell("the restored records differ from the archive; restore into an empty topic")
    if not report.is_whole:
        raise typer.Exit(1)


def _run(request: Request, errors: Console, tell: Callable[[str], object]) -> RestoreReport:
    """Do it, and show how far it is."""
    with _bar(errors) as bar:
        task = bar.add_task("starting", total=None)

        def show(progress: RestoreProgress) -> None:
            bar.update(task, description=progress.phase.value, completed=progress.records, total=progress.total)

        return Restore(open_platform(open_settings()), request, tell, show).run()


def _bar(console: Console) -> Progress:
    """A bar on a terminal, nothing elsewhere; gone when it ends."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def _print(console: Console, report: RestoreReport) -> None:
    lines = [
        f"{report.topic} ({report.topic_id}) -> {report.into}: {report.restored:,} restored, {report.already_there:,} "
        "were there before",
        f"  {report.verified:,} read back, {'as archived' if not report.differences else 'not as archived'}"
        + (f"; {report.problems:,} faults of the archive" if report.problems else ""),
    ]
    if report.others:
        lines.append(f"  beside {report.others:,} other records")
    for line in lines:
        console.print(Text(line), soft_wrap=True)
