"""`millrace quality reconcile`: the books of streams, and what does not balance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from millrace.cli.quality.recompute import any_seed, print_recomputed, recompute_document, working
from millrace.cli.terminal.actor import actor
from millrace.cli.terminal.output import Text, emit, error_document, paragraph, show_error
from millrace.domain.declaration.pipeline import Stream
from millrace.domain.quality.books import OPEN, Balance, Finding, Reconciliation
from millrace.domain.quality.ranges import Mark
from millrace.domain.quality.recompute import MOST_SAMPLED, Likeness, Recomputed
from millrace.domain.sinks.capabilities import Capability
from millrace.errors import MillraceError, RefusedError
from millrace.settings import open_settings
from millrace.usecases.declaration.lookup import declared_stream
from millrace.usecases.quality import books as quality_books
from millrace.usecases.quality.recompute import recompute
from millrace.wiring import open_platform

_STYLES = {
    Balance.BALANCED: "green",
    Balance.OPEN: "yellow",
    Balance.BROKEN: "bold red",
    Balance.EMPTY: "yellow",
}
_MOST_LINES = 50


def reconcile(
    name: Annotated[
        str | None, typer.Argument(help="Name one stream as PIPELINE.STREAM; default: every stream.")
    ] = None,
    deep: Annotated[bool, typer.Option("--deep", help="Begin at the first offset, not after the proven ones.")] = False,
    sample: Annotated[
        int,
        typer.Option(
            "--sample",
            min=0,
            max=MOST_SAMPLED,
            help="Also recompute the rows of this number of offsets: for transforms that shuffle.",
        ),
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Prove that every offset is a row, in quarantine, dropped, or held no record; name the others.

    Exit 1 if something does not balance, differs or is unknown, and if the named stream has never written anything.
    Exit 3 if a server does not answer, after the other streams. A sample skips streams that upsert, with a notice; if
    you name such a stream, exit 4 once its books balance.
    """
    platform = open_platform(open_settings())
    runs, problems = list[Reconciliation](), list[MillraceError]()
    again: list[tuple[str, int, Recomputed]] = []
    left_out = list[Stream]()
    root = platform.settings.root
    for found in quality_books.kept_books(root) if name is None else [declared_stream(root, name)]:
        pipeline, stream = found.pipeline, found.stream
        try:
            with _working(stream.qualified_name) as progress:
                runs += quality_books.reconcile_on(
                    platform, pipeline, stream, actor=actor(), deep=deep, progress=progress
                )
            if sample and name is None and not stream.able(Capability.RECOMPUTE):
                left_out.append(stream)
            elif sample:
                with working(stream.qualified_name) as counting:
                    seed = any_seed()
                    made = recompute(platform, pipeline, stream, sample=sample, seed=seed, progress=counting)
                again.append((stream.qualified_name, seed, made))
        except MillraceError as error:
            if name is not None and not runs:
                raise
            problems.append(error)
    document = {
        "schema": "millrace.quality.reconcile/1",
        "runs": [books_document(run) for run in runs],
        "recomputed": [recompute_document(*one) for one in again],
        "not_recomputed": [stream.qualified_name for stream in left_out],
        "problems": [error_document(problem) for problem in problems],
    }
    emit(document, as_json=as_json, text=lambda console: _print(console, runs, again))
    for one in left_out:
        _show_left_out(one)
    for problem in problems:
        show_error(problem)
    if code := _exit_code(runs, again, problems, named=name is not None):
        raise typer.Exit(code)


def _exit_code(
    runs: Sequence[Reconciliation],
    again: Sequence[tuple[str, int, Recomputed]],
    problems: Sequence[MillraceError],
    *,
    named: bool,
) -> int:
    """What could not be looked at, then what is wrong, then what was refused: that is known, and hides nothing else."""
    refused = [problem for problem in problems if isinstance(problem, RefusedError)]
    if failed := [problem for problem in problems if problem not in refused]:
        return failed[0].exit_code
    fine = {Balance.BALANCED} if named else {Balance.BALANCED, Balance.EMPTY}
    if red := [run for run in runs if run.balance not in fine]:
        return 3 if all(run.only_waits for run in red) else 1
    alike = {Likeness.ALIKE} if named else {Likeness.ALIKE, Likeness.NOTHING}
    if any(found.likeness not in alike for _, _, found in again):
        return 1
    return refused[0].exit_code if refused else 0


def _show_left_out(stream: Stream) -> None:
    """Say on standard error that a sample has nothing of a stream, and why."""
    lack = stream.lack(Capability.RECOMPUTE)
    text = f"{stream.qualified_name}: no row is recomputed: {lack.reason if lack else ''}"
    Console(stderr=True).print(paragraph(text), soft_wrap=True)


def _print(console: Console, runs: Sequence[Reconciliation], again: Sequence[tuple[str, int, Recomputed]]) -> None:
    print_books(console, runs)
    for one in again:
        print_recomputed(console, *one)


def books_document(run: Reconciliation) -> dict[str, object]:
    """A run over books as JSON: counts and offsets, never a value."""
    return {
        "stream": run.stream,
        "run": run.identity,
        "began": run.began.isoformat(),
        "ended": run.ended.isoformat(),
        "actor": run.actor,
        "deep": run.deep,
        "balance": run.balance.value,
        **asdict(run.sums),
        "left": run.left,
        "reached": _mark_document(run.reached),
        "proven": _mark_document(run.upto),
        "problem": run.problem,
        "findings": [_finding_document(finding) for finding in run.findings],
    }


def print_books(console: Console, runs: Sequence[Reconciliation]) -> None:
    """Runs over books, each with a line for what does not balance in a partition."""
    if not runs:
        console.print(Text("no stream that writes to a table is declared"))
    for run in runs:
        head = Text(f"{run.stream}: ", style="bold")
        head.append(str(run), style=_STYLES[run.balance])
        console.print(head, soft_wrap=True)
        for finding in run.findings[:_MOST_LINES]:
            console.print(Text(f"  {finding}", style="yellow" if finding.fault in OPEN else "red"), soft_wrap=True)
        if len(run.findings) > _MOST_LINES:
            console.print(Text(f"  and {len(run.findings) - _MOST_LINES} more; `--json` has all of them"))


def _finding_document(finding: Finding) -> dict[str, object]:
    where = finding.partition
    return {
        "fault": finding.fault.value,
        "topic": None if where is None else where.topic,
        "topic_id": None if where is None else where.topic_id,
        "partition": None if where is None else where.partition,
        "ranges": [list(span) for span in finding.spans],
        "range_count": finding.ranges,
        "offset_count": finding.offsets,
        "detail": finding.detail,
    }


def _mark_document(mark: Mark) -> list[dict[str, object]]:
    return [
        {"topic": where.topic, "topic_id": where.topic_id, "partition": where.partition, "next_offset": at}
        for where, at in sorted(mark.offsets.items())
    ]


@contextmanager
def _working(name: str) -> Iterator[quality_books.Progress]:
    """What is looked at, for a person who waits."""
    with Console(stderr=True).status(f"{name}: reading the record of work") as status:
        yield lambda text: status.update(f"{name}: {text}")
