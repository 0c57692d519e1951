"""`millrace quality recompute`: rows made again from their records, and how they differ from the stored ones."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console

from millrace.cli.terminal.output import Text, emit
from millrace.domain.quality.recompute import MOST_SAMPLED, Likeness, Recomputed
from millrace.settings import open_settings
from millrace.usecases.declaration.lookup import declared_stream
from millrace.usecases.quality import recompute as quality_recompute
from millrace.wiring import open_platform

_SEEDS = 1 << 32
_STYLES = {Likeness.ALIKE: "green", Likeness.DIFFERENT: "bold red", Likeness.NOTHING: "yellow"}


def recompute(
    name: Annotated[str, typer.Argument(help="PIPELINE.STREAM.", show_default=False)],
    sample: Annotated[
        int, typer.Option("--sample", help=f"Recompute this number of offsets, at most {MOST_SAMPLED:,}.")
    ] = 1000,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Choose the same offsets as a run with this seed.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Make rows again from a sample of the records, with the app as it is now, and compare them column by column.

    Names the columns that differ, and the time range of their records. Changes nothing. Exit 1 if something differs,
    or if there was nothing to compare.
    """
    platform = open_platform(open_settings())
    given = declared_stream(platform.settings.root, name)
    chosen = any_seed() if seed is None else seed
    with working(name) as progress:
        made = quality_recompute.recompute(
            platform, given.pipeline, given.stream, sample=sample, seed=chosen, progress=progress
        )
    emit(
        {"schema": "millrace.quality.recompute/1", **recompute_document(name, chosen, made)},
        as_json=as_json,
        text=lambda console: print_recomputed(console, name, chosen, made),
    )
    if made.likeness is not Likeness.ALIKE:
        raise typer.Exit(1)


def recompute_document(name: str, seed: int, found: Recomputed) -> dict[str, object]:
    """What came of making rows again, as JSON: counts, offsets and times, never a value."""
    return {
        "stream": name,
        "seed": seed,
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


def print_recomputed(console: Console, name: str, seed: int, found: Recomputed) -> None:
    """What came of making rows again, with a line for each way in which some differ."""
    head = Text(f"{name}: ", style="bold")
    head.append(str(found), style=_STYLES[found.likeness])
    head.append(f" (seed {seed})")
    lines = [head]
    lines += [Text(f"  {one}", style="red") for one in found.differences]
    if found.idle:
        lines.append(Text(f"  not compared, because the app does not make them: {', '.join(found.idle)}"))
    if found.unjudged:
        lines.append(Text(f"  {found.unjudged:,} stored rows of offsets without a record (any more), not judged"))
    if found.unread:
        lines.append(Text(f"  {found.unread:,} offsets expired before they were read"))
    for line in lines:
        console.print(line, soft_wrap=True)


def any_seed() -> int:
    """A seed by chance."""
    return secrets.randbelow(_SEEDS)


@contextmanager
def working(name: str) -> Iterator[quality_recompute.Progress]:
    """How far it is, for a person who waits."""
    with Console(stderr=True).status(f"{name}: starting Spark") as status:
        yield lambda done, total: status.update(f"{name}: {done:,} of {total:,} offsets made again")
