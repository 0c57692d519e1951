"""`millrace streams`: look at streams, start and stop them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, timedelta
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from millrace.cli.actor import actor
from millrace.cli.output import emit
from millrace.domain.control import StreamProgress
from millrace.domain.streams import StreamState
from millrace.errors import MillraceError, PartFailedError, UsageError
from millrace.settings import open_settings
from millrace.usecases import stream_list, streams
from millrace.usecases.stream_list import StreamList, StreamRow
from millrace.usecases.stream_look import Supervised
from millrace.wiring import Platform, open_platform

app = typer.Typer(help="List, show, start and stop streams.", no_args_is_help=True)

START_WITHIN = timedelta(minutes=3)
STOP_WITHIN = timedelta(minutes=2)
SLOW_AFTER = timedelta(seconds=10)
GROUP_FREE_WITHIN = timedelta(seconds=20)
DOOMED = frozenset({StreamState.GIVEN_UP, StreamState.RECREATED, StreamState.BACKING_OFF, StreamState.UNDECLARED})
LOG_LINES = 200

Name = Annotated[str, typer.Argument(metavar="PIPELINE.STREAM", help="The stream's full name.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Reason = Annotated[str, typer.Option(help="Why, for the action log.", show_default=False)]
Hard = Annotated[
    bool, typer.Option("--now", help="End its processes at once: loses no row, the next start reads the batch again.")
]
Waiting = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it is so.")]


@app.command("list")
def list_command(as_json: Json = False) -> None:
    """Every stream: what is wanted, how it is, how far it is."""
    found = stream_list.list_streams(open_platform(open_settings()))
    document = {
        "schema": "millrace.streams.list/1",
        "streams": [_document(row) for row in found.streams],
        "problems": list(found.problems) + [str(finding) for finding in found.findings],
    }
    emit(document, as_json=as_json, text=lambda console: _print_list(console, found))
    if found.findings:
        raise typer.Exit(1)


@app.command()
def show(stream: Name, as_json: Json = False) -> None:
    """One stream with its last attempts and progress."""
    row = stream_list.show_stream(open_platform(open_settings()), stream)
    document = {"schema": "millrace.streams.show/1", **_document(row), "attempts": list(row.attempts)}
    emit(document, as_json=as_json, text=lambda console: _print_one(console, row))


@app.command()
def logs(
    stream: Name,
    epoch: Annotated[int | None, typer.Option(help="Which start; default the last.")] = None,
    lines: Annotated[int, typer.Option(min=1, help="How many lines from the end.")] = LOG_LINES,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until interrupted.")] = False,
) -> None:
    """What the stream's driver says."""
    file = _log_file(open_settings().state_folder / "streams" / stream, stream, epoch)
    typer.echo(f"# {file}", err=True)
    for text in _read(file, lines, follow):
        typer.echo(text, nl=False)


@app.command()
def start(stream: Name, reason: Reason = "", wait: Waiting = True, as_json: Json = False) -> None:
    """Want a stream running, forget its past failures, and wait until it runs."""
    platform = open_platform(open_settings())
    report = streams.start(platform, stream, actor(), reason or "asked for at the command line")
    if wait:
        report = _until(platform, report, lambda now: now.state is StreamState.RUNNING or now.state in DOOMED)
    _answer("start", report, as_json=as_json)
    if wait and report.state is not StreamState.RUNNING:
        raise _not_so(report, "is not running")


@app.command()
def stop(stream: Name, reason: Reason = "", wait: Waiting = True, now: Hard = False, as_json: Json = False) -> None:
    """Want a stream stopped; wait until its process is gone and its consumer group is free."""
    platform = open_platform(open_settings())
    report = streams.stop(platform, stream, actor(), reason or "asked for at the command line", hard=now)
    if wait:
        report = _until(platform, report, lambda now: now.state is StreamState.STOPPED, slow=_slow_stop)
    if wait and report.state is not StreamState.STOPPED:
        raise _not_so(report, "has not stopped")
    free = _wait_for_free_group(platform, stream) if wait else None
    _answer("stop", report, as_json=as_json, group_is_free=free)


@app.command()
def accept(stream: Name, reason: Reason = "", as_json: Json = False) -> None:
    """Let the next start take topics that were deleted and made again."""
    platform = open_platform(open_settings())
    report = streams.accept(platform, stream, actor(), reason or "asked for at the command line")
    _answer("accept", report, as_json=as_json)


def _until(
    platform: Platform,
    first: Supervised,
    done: Callable[[Supervised], bool],
    *,
    slow: Callable[[Supervised], str] | None = None,
) -> Supervised:
    """Supervise until it is so, saying on standard error what changes; once it has lasted, also what `slow` says."""
    console = Console(stderr=True)
    said: list[str] = []
    slow_at = time.monotonic() + SLOW_AFTER.total_seconds()

    def say(text: str) -> None:
        said.append(text)
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    def tell(report: Supervised) -> None:
        nonlocal slow
        text = f"{report.stream}: {report.state.value}" + (f" ({report.why})" if report.why else "")
        if said[-1:] != [text]:
            say(text)
        if slow is not None and not done(report) and time.monotonic() >= slow_at:
            say(slow(report))
            said.append(text)
            slow = None

    if done(first) and not first.busy:
        return first
    return streams.supervise_until(
        platform,
        first.stream,
        actor(),
        done=done,
        tell=tell,
        pause=lambda: time.sleep(0.5),
        within=max(START_WITHIN, STOP_WITHIN),
    )


def _slow_stop(report: Supervised) -> str:
    """What to say of a stop that has not come about yet: what it waits for, what will happen, how to force it."""
    ended = f"; it is ended at {report.until:%H:%M:%S} UTC" if report.until else ""
    waited = f"{report.stream}: not stopped after {SLOW_AFTER.total_seconds():.0f} s"
    return (
        f"{waited}: {report.why or report.state.value}{ended}. "
        f"To end it now, which loses no row: millrace streams stop {report.stream} --now --reason ..."
    )


def _wait_for_free_group(platform: Platform, stream: str) -> bool | None:
    """Whether the stopped stream's consumer group is free now; None where that cannot be told."""
    console = Console(stderr=True)
    declared = streams.declared_stream(platform, stream)
    if declared is None:
        return None
    connection, group = declared
    deadline = time.monotonic() + GROUP_FREE_WITHIN.total_seconds()
    said = False
    try:
        groups = platform.groups(connection)
        while groups.members(group):
            if not said:
                console.print(f"{stream}: stopped; its group {group} frees after the session timeout (10 s)")
                said = True
            if time.monotonic() > deadline:
                return False
            time.sleep(0.5)
    except MillraceError as error:
        console.print(
            f"{stream}: stopped; whether its group is free cannot be told: {error.what}", markup=False, soft_wrap=True
        )
        return None
    return True


def _not_so(report: Supervised, what: str) -> MillraceError:
    return PartFailedError(
        f"the stream {what}: it is {report.state.value}" + (f", {report.why}" if report.why else ""),
        where=report.stream,
        next_step=f"read `millrace streams logs {report.stream}` and `millrace streams show {report.stream}`",
    )


def _answer(verb: str, report: Supervised, *, as_json: bool, **more: object) -> None:
    document = {
        "schema": f"millrace.streams.{verb}/1",
        "stream": report.stream,
        "state": report.state,
        "epoch": report.epoch,
        "why": report.why,
        "until": report.until,
        **more,
    }
    line = f"{report.stream} is {report.state.value}" + (f" (epoch {report.epoch})" if report.epoch else "")
    emit(document, as_json=as_json, text=lambda console: console.print(Text(line)))


def _document(row: StreamRow) -> dict[str, object]:
    return {
        "stream": row.stream,
        "wanted": row.wanted,
        "state": row.report.state,
        "why": row.report.why,
        "until": row.report.until,
        "epoch": row.report.epoch,
        "since": row.report.since,
        "declared": row.declared,
        "group": row.group,
        "lag": row.lag,
        "last_error": row.last_error,
        "progress": row.progress,
        "changed_by": row.changed_by,
        "changed_at": row.changed_at,
        "reason": row.reason,
    }


def _print_list(console: Console, found: StreamList) -> None:
    if found.streams:
        table = Table()
        for heading in ("stream", "wanted", "is", "epoch", "since (UTC)", "lag", "rows in last batch", "last error"):
            table.add_column(heading, overflow="fold")
        for row in found.streams:
            table.add_row(*(Text(cell) for cell in _cells(row)))
        console.print(table)
    else:
        console.print(Text("no stream is declared"))
    for problem in (*found.problems, *found.findings):
        console.print(Text(str(problem)), soft_wrap=True)


def _cells(row: StreamRow) -> tuple[str, ...]:
    report = row.report
    until = f" until {report.until:%H:%M:%S}" if report.until and report.state is StreamState.BACKING_OFF else ""
    return (
        row.stream,
        row.wanted,
        f"{report.state.value}{until}",
        str(report.epoch or ""),
        f"{report.since:%Y-%m-%d %H:%M:%S}" if report.since else "",
        "" if row.lag is None else f"{row.lag:,}",
        f"{row.progress.rows_in:,}" if row.progress else "",
        row.last_error,
    )


def _print_one(console: Console, row: StreamRow) -> None:
    facts = Table.grid(padding=(0, 2))
    for name, value in _document(row).items():
        if isinstance(value, StreamProgress):
            for count, text in _last_batch(value):
                facts.add_row(Text(count), Text(text))
        elif value not in (None, "", ()):
            facts.add_row(Text(name), Text(str(value)))
    console.print(facts)
    table = Table(title="last attempts")
    for heading in ("epoch", "submitted (UTC)", "ended (UTC)", "outcome", "detail"):
        table.add_column(heading, overflow="fold")
    for attempt in row.attempts:
        ended = f"{attempt.ended_at:%Y-%m-%d %H:%M:%S}" if attempt.ended_at else ""
        cells = (str(attempt.epoch), f"{attempt.submitted_at:%Y-%m-%d %H:%M:%S}", ended)
        table.add_row(*(Text(cell) for cell in (*cells, attempt.outcome or "", attempt.detail or "")))
    console.print(table)


def _last_batch(progress: StreamProgress) -> Iterator[tuple[str, str]]:
    at = f"{progress.at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    run = f"{progress.batch_id} of epoch {progress.epoch}, timeline {progress.timeline}"
    yield "last batch", f"{run}, at {at}, took {progress.batch_seconds:.3f} s"
    yield "rows in", f"{progress.rows_in:,}"
    yield "rows out", f"{progress.rows_out:,}"
    yield "quarantined", f"{progress.quarantined:,}"
    yield "truncated", f"{progress.truncated:,} with a timestamp finer than a microsecond"
    yield "next offsets", ", ".join(f"{partition}@{offset}" for partition, offset in sorted(progress.positions.items()))


def _log_file(folder: Path, stream: str, epoch: int | None) -> Path:
    epochs = sorted(int(entry.name) for entry in folder.glob("*") if entry.name.isdigit()) if folder.is_dir() else []
    wanted = epoch if epoch is not None else (epochs[-1] if epochs else None)
    if wanted is None or wanted not in epochs:
        raise UsageError(
            f"there is no log of {stream}" + (f" epoch {epoch}" if epoch is not None else ""),
            where=str(folder),
            next_step=f"logs are kept of the epochs: {', '.join(map(str, epochs))}" if epochs else "start it first",
        )
    return folder / str(wanted) / "driver.log"


def _read(file: Path, lines: int, follow: bool) -> Iterator[str]:
    with file.open(encoding="utf-8", errors="replace") as log:
        yield from log.readlines()[-lines:]
        while follow:
            if text := log.readline():
                yield text
            else:
                time.sleep(0.3)
