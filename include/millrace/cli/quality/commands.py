"""`millrace quality`: hold what streams wrote against their rules, show what was found, accept what stays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from millrace.cli.quality.recompute import recompute
from millrace.cli.quality.reconcile import books_document, reconcile
from millrace.cli.quality.text import check_document, print_check, print_listed, print_shown
from millrace.cli.terminal.actor import actor
from millrace.cli.terminal.output import Text, emit
from millrace.cli.terminal.reason import Reason
from millrace.domain.declaration.pipeline import Stream
from millrace.domain.quality.marks import marks
from millrace.domain.quality.results import QualityCheck, Verdict
from millrace.domain.quality.rules import StreamQuality
from millrace.domain.rewind.time_travel import WrongTimeError, parse_window
from millrace.errors import Code, UsageError
from millrace.settings import open_settings
from millrace.usecases.declaration.lookup import declared_stream
from millrace.usecases.quality import books as quality_books
from millrace.usecases.quality import check as quality
from millrace.usecases.quality.evidence import page_of
from millrace.usecases.sinks.required import table_of
from millrace.wiring import open_platform

app = typer.Typer(no_args_is_help=True, help="Check rules and books, and recompute rows.")
app.command()(reconcile)
app.command()(recompute)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Name = Annotated[str, typer.Argument(help="PIPELINE.STREAM.", show_default=False)]
TIME = "Give a time with its zone, as 2026-05-01T00:00Z."


@app.command()
def check(
    name: Annotated[
        str | None, typer.Argument(help="Name one stream as PIPELINE.STREAM; default: every stream.")
    ] = None,
    since: Annotated[str | None, typer.Option("--from", help=TIME, show_default=False)] = None,
    until: Annotated[str | None, typer.Option("--to", help=TIME, show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Check the rules on the rows that tables gained since the last proven ones, or on the rows of a time window.

    Exit 1 if a rule of severity fail is broken or could not be tested, and if there were no rows: nothing is proven
    then.
    """
    window = _window(since, until)
    if window is not None and name is None:
        raise UsageError(
            "a time window needs one stream", next_step="write `millrace quality check PIPELINE.STREAM --from ...`"
        )
    platform = open_platform(open_settings())
    streams = quality.checked_streams(platform.settings.root, name)
    found: list[quality.Checked] = []
    for pipeline, stream, _ in streams:
        with _working(stream.qualified_name):
            found += quality.check_on(platform, pipeline, stream, actor=actor(), window=window)
    document = {
        "schema": "millrace.quality.check/1",
        "checks": [{**check_document(one.check), "evidence_problem": one.evidence_problem} for one in found],
    }
    emit(document, as_json=as_json, text=lambda console: _print_checked(console, found))
    names = {one.check.stream for one in found}
    each = [[one for one in found if one.check.stream == name] for name in names]
    if any(quality.verdict_on(done) is not Verdict.PASSED for done in each):
        raise typer.Exit(1)


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """List the streams with rules, and the result of the last check of each."""
    platform = open_platform(open_settings())
    streams = quality.checked_streams(platform.settings.root)
    rows = [
        (stream, declared, platform.control.quality.latest(stream.qualified_name)) for _, stream, declared in streams
    ]
    document = {"schema": "millrace.quality.list/1", "streams": [_listed(*row) for row in rows]}
    emit(document, as_json=as_json, text=lambda console: print_listed(console, rows))


@app.command()
def show(
    name: Name,
    identity: Annotated[
        int | None,
        typer.Option("--check", help="Give the number of a check; default: the last one.", show_default=False),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option("--page", help="Write its page of Great Expectations to this file.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a check rule by rule, and the last 20 results of each rule as a line of marks."""
    platform = open_platform(open_settings())
    quality.checked_streams(platform.settings.root, name)
    store = platform.control.quality
    found = store.latest(name) if identity is None else store.get(identity)
    if found is None or found.stream != name:
        what = "it was never checked" if identity is None else f"check {identity} belongs to another stream"
        raise UsageError(what, where=name, next_step=f"run `millrace quality check {name}`", code=Code.UNKNOWN_NAME)
    if page is not None:
        page.write_bytes(page_of(platform, found))
    lines = marks(store.history(name))
    document = {"schema": "millrace.quality.show/1", "check": check_document(found), "marks": dict(lines)}
    emit(document, as_json=as_json, text=lambda console: print_shown(console, found, lines))


@app.command()
def accept(
    name: Name,
    reason: Reason,
    books: Annotated[
        bool,
        typer.Option("--books", help="Accept the findings of the last `quality reconcile`, not of the last check."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Accept the rows of the last check as they are: later checks skip them, and its alarms end.

    Exit 4 if the last check, or the last comparison of its books, had no findings, or if a newer run has
    ended meanwhile.
    """
    platform = open_platform(open_settings())
    if books:
        stream = declared_stream(platform.settings.root, name).stream
        run = quality_books.accept(platform, stream, actor=actor(), reason=reason)
        text = f"{name}: what run {run.identity} found stays as it is; the next run begins after it"
        document: dict[str, object] = {"schema": "millrace.quality.accept/1", "books": books_document(run)}
        emit(document, as_json=as_json, text=lambda console: console.print(Text(text)))
        return
    [(_, stream, _)] = quality.checked_streams(platform.settings.root, name)
    done = quality.accept(platform, stream, actor=actor(), reason=reason)
    document = {"schema": "millrace.quality.accept/1", "check": check_document(done)}
    text = f"{name}: the rows of check {done.identity} stay as they are; the next check begins after them"
    emit(document, as_json=as_json, text=lambda console: console.print(Text(text)))


def _window(since: str | None, until: str | None) -> tuple[datetime, datetime] | None:
    try:
        return parse_window(since, until, datetime.now(UTC))
    except WrongTimeError as error:
        raise UsageError(
            str(error), next_step="write `--from 2026-05-01T00:00Z --to 2026-05-02T00:00Z`", code=Code.WRONG_TIME
        ) from None


@contextmanager
def _working(name: str) -> Iterator[None]:
    """That something goes on, for a person: the library alone takes five seconds to load."""
    with Console(stderr=True).status(f"checking {name}"):
        yield


def _listed(stream: Stream, declared: StreamQuality, last: QualityCheck | None) -> dict[str, object]:
    return {
        "stream": stream.qualified_name,
        "table": table_of(stream).table,
        "rules": declared.name,
        "rule_count": len(declared.rules),
        "every_seconds": declared.every.total_seconds(),
        "last": None if last is None else check_document(last),
    }


def _print_checked(console: Console, found: Sequence[quality.Checked]) -> None:
    if not found:
        console.print(Text("no stream declares quality"))
    for one in found:
        print_check(console, one.check)
        if one.evidence_problem:
            console.print(Text(f"  evidence: {one.evidence_problem}", style="yellow"), soft_wrap=True)
