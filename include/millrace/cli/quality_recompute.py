"""`millrace quality recompute`: rows made again from their records, and how they differ from the stored ones."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from millrace.cli.declared import pipelines_of
from millrace.cli.output import emit, moment
from millrace.domain.quality.recompute import MOST_SAMPLED, Apart, Difference, Likeness, Recomputed
from millrace.settings import open_settings
from millrace.usecases import quality_books, quality_recompute
from millrace.wiring import open_platform

_SEEDS = 1 << 32
_STYLES = {Likeness.ALIKE: "green", Likeness.DIFFERENT: "bold red", Likeness.NOTHING: "yellow"}
_SAID = {
    Difference.UNMADE: "stored, and the app makes no row of the record",
    Difference.UNSTORED: "made by the app, and nothing of the record is stored",
    Difference.BAD: "the record is bad, and is not in quarantine",
    Difference.GOOD: "in quarantine, and the record is not bad",
    Difference.OTHER_RULE: "in quarantine under another rule than the record breaks",
}


def recompute(
    name: Annotated[str, typer.Argument(help="PIPELINE.STREAM.", show_default=False)],
    sample: Annotated[int, typer.Option("--sample", help=f"How many offsets, at most {MOST_SAMPLED:,}.")] = 1000,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Which ones: the same as a run before.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Make rows again from a sample of the records, with the app as it is now, and compare column by column.

    Says which columns differ, and of records from when to when. Changes nothing. Ends with 1 where something differs,
    or where there was nothing to compare.
    """
    platform = open_platform(open_settings())
    [(pipeline, stream)] = quality_books.declared(pipelines_of(platform, name), name)
    chosen = secrets.randbelow(_SEEDS) if seed is None else seed
    with _working(name) as progress:
        found = quality_recompute.recompute(platform, pipeline, stream, sample=sample, seed=chosen, progress=progress)
    emit(
        {"schema": "millrace.quality.recompute/1", "stream": name, "seed": chosen, **_document(found)},
        as_json=as_json,
        text=lambda console: _print(console, name, chosen, found),
    )
    if found.likeness is not Likeness.ALIKE:
        raise typer.Exit(1)


def _document(found: Recomputed) -> dict[str, object]:
    return {
        "likeness": found.likeness.value,
        "offsets": found.offsets,
        "records": found.records,
        "unread": found.unread,
        "unjudged": found.unjudged,
        "compared": found.compared,
        "alike": found.alike,
        "differences": [
            {
                "difference": one.difference.value,
                "column": one.column or None,
                "rows": one.rows,
                "first": [str(source) for source in one.named],
                "since": one.since,
                "until": one.until,
                "others_before": one.before,
                "others_between": one.between,
                "others_after": one.after,
            }
            for one in found.apart
        ],
        "columns_lacking": list(found.lacking),
        "columns_retyped": list(found.retyped),
        "columns_idle": list(found.idle),
    }


def _print(console: Console, name: str, seed: int, found: Recomputed) -> None:
    head = Text(f"{name}: ", style="bold")
    head.append(_head(found), style=_STYLES[found.likeness])
    head.append(f" (seed {seed})")
    lines = [head]
    lines += [Text(f"  of another type, and not compared: {column}", style="red") for column in found.retyped]
    if found.lacking:
        lines.append(Text(f"  not in the table: {', '.join(found.lacking)}", style="red"))
    lines += [Text(f"  {_line(one)}", style="red") for one in found.apart]
    if found.idle:
        lines.append(Text(f"  not made by the app, and not compared: {', '.join(found.idle)}"))
    if found.unjudged:
        lines.append(Text(f"  {found.unjudged:,} stored of offsets that hold no record (any more), and not judged"))
    if found.unread:
        lines.append(Text(f"  {found.unread:,} offsets expired before they were read"))
    for line in lines:
        console.print(line, soft_wrap=True)


def _head(found: Recomputed) -> str:
    if found.likeness is Likeness.NOTHING:
        return "nothing to compare: the topics hold no record that it has worked on"
    return (
        f"{found.records:,} records of {found.offsets:,} offsets read again: {found.alike:,} of {found.compared:,} "
        "rows and records in quarantine are as the app makes them"
    )


def _line(one: Apart) -> str:
    what = f"column {one.column}: differs" if one.difference is Difference.CHANGED else _SAID[one.difference]
    text = f"{what}: {one.rows:,}"
    if one.since is not None and one.until is not None:
        span = (
            f"from {moment(one.since)} to {moment(one.until)}" if one.since < one.until else f"of {moment(one.since)}"
        )
        text += f", of records {span}"
        text += f"; of the others {one.before:,} before, {one.between:,} between and {one.after:,} after"
    more = f" and {one.rows - len(one.named):,} more" if one.rows > len(one.named) else ""
    return f"{text}: {', '.join(map(str, one.named))}{more}"


@contextmanager
def _working(name: str) -> Iterator[quality_recompute.Progress]:
    """How far it is, for a person who waits."""
    with Console(stderr=True).status(f"{name}: starting Spark") as status:
        yield lambda done, total: status.update(f"{name}: {done:,} of {total:,} offsets made again")
