"""`millrace streams`: look at streams and backups, start and stop them; rewind streams."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from millrace.cli.plans.text import plan_document, print_plan
from millrace.cli.streams import files as stream_files
from millrace.cli.streams.text import print_stream
from millrace.cli.terminal.actor import actor
from millrace.cli.terminal.output import Text, emit, error_document, paragraph
from millrace.cli.terminal.reason import Reason
from millrace.domain.formats.printable import printable
from millrace.domain.plans.plan import Plan
from millrace.domain.rewind.time_travel import Policy
from millrace.domain.streams.supervision import StreamState
from millrace.errors import Code, MillraceError, PartFailedError, UsageError
from millrace.ports.platform import Platform
from millrace.settings import open_settings
from millrace.usecases.declaration.lookup import declared_app
from millrace.usecases.rewind import plan as rewind_plan
from millrace.usecases.streams import adoption, supervise
from millrace.usecases.streams import listing as stream_list
from millrace.usecases.streams.listing import StreamList, StreamRow
from millrace.usecases.streams.look import Supervised
from millrace.wiring import open_platform

app = typer.Typer(help="List, show, start and stop streams and backups; rewind streams.", no_args_is_help=True)
stream_files.register(app)

START_WITHIN = timedelta(minutes=3)
STOP_WITHIN = timedelta(minutes=2)
SLOW_AFTER = timedelta(seconds=10)
GROUP_FREE_WITHIN = timedelta(seconds=20)
DOOMED = frozenset(
    {
        StreamState.GIVEN_UP,
        StreamState.RECREATED,
        StreamState.BACKING_OFF,
        StreamState.UNDECLARED,
        StreamState.STUCK,
        StreamState.HOST_LOST,
    }
)
LOG_LINES = 200

_HELP = "Name the stream as PIPELINE.STREAM, or a backup as PIPELINE.backup."
Name = Annotated[str, typer.Argument(metavar="PIPELINE.STREAM", help=_HELP)]
OnlyStream = Annotated[str, typer.Argument(metavar="PIPELINE.STREAM", help="Name the stream, as PIPELINE.STREAM.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Hard = Annotated[
    bool, typer.Option("--now", help="End its processes at once: loses no row, the next start reads the batch again.")
]
Waiting = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for the desired state.")]


@app.command("list")
def list_command(
    pipeline: Annotated[str | None, typer.Option(metavar="NAME", help="Select streams of this pipeline.")] = None,
    as_json: Json = False,
) -> None:
    """List every stream and every backup: desired state, state, progress."""
    found = stream_list.list_streams(open_platform(open_settings()), pipeline=pipeline)
    document = {
        "schema": "millrace.streams.list/1",
        "streams": [_document(row) for row in found.streams],
        "problems": list(found.problems) + [str(finding) for finding in found.findings],
    }
    emit(document, as_json=as_json, text=lambda console: _print_list(console, found, pipeline))
    if found.findings:
        raise typer.Exit(1)


@app.command()
def show(stream: Name, as_json: Json = False) -> None:
    """Show one stream or backup with its last attempts and its progress."""
    row = stream_list.show_stream(open_platform(open_settings()), stream)
    document = {"schema": "millrace.streams.show/1", **_document(row), "attempts": list(row.attempts)}
    emit(document, as_json=as_json, text=lambda console: print_stream(console, row))


@app.command()
def logs(
    stream: Name,
    epoch: Annotated[int | None, typer.Option(help="Show the log of this epoch; default: the last.")] = None,
    lines: Annotated[int, typer.Option(min=1, help="Print this number of lines from the end.")] = LOG_LINES,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the log until interrupted.")] = False,
) -> None:
    """Print the driver's log of a stream or a backup; control characters other than tabs are escaped."""
    file = _log_file(open_settings().state_folder / "streams" / stream, stream, epoch)
    typer.echo(f"# {file}", err=True)
    for text in _read(file, lines, follow):
        typer.echo("\t".join(map(printable, text.rstrip("\r\n").split("\t"))), nl=text.endswith("\n"))


@app.command()
def start(stream: Name, reason: Reason, wait: Waiting = True, as_json: Json = False) -> None:
    """Set the desired state of a stream or a backup to running, reset its failures, and wait until it runs."""
    with _answering("start", stream, as_json=as_json) as answer:
        platform = open_platform(open_settings())
        answer.report = supervise.start(platform, stream, actor(), reason)
        if wait:
            answer.report = _until(
                platform, answer.report, lambda now: now.state is StreamState.RUNNING or now.state in DOOMED
            )
            if answer.report.state is not StreamState.RUNNING:
                raise _not_so(answer.report, "is not running")


@app.command()
def stop(stream: Name, reason: Reason, wait: Waiting = True, now: Hard = False, as_json: Json = False) -> None:
    """Set the desired state to stopped; wait until the process has ended and the consumer group is free."""
    with _answering("stop", stream, as_json=as_json) as answer:
        answer.more["group_is_free"] = None
        platform = open_platform(open_settings())
        answer.report = supervise.stop(platform, stream, actor(), reason, hard=now)
        if wait:
            answer.report = _until(
                platform,
                answer.report,
                lambda now: now.state in (StreamState.STOPPED, StreamState.HOST_LOST),
                slow=_slow_stop,
            )
            if answer.report.state is not StreamState.STOPPED:
                raise _not_so(answer.report, "has not stopped")
            answer.more["group_is_free"] = _wait_for_free_group(platform, stream)


@app.command()
def rewind(
    stream: OnlyStream,
    to: Annotated[str, typer.Option("--to", metavar="TIME|earliest|FILE", help="Read again from here.")],
    reason: Reason,
    policy: Annotated[
        Policy, typer.Option(help="Choose what happens to partitions with a later log start.")
    ] = Policy.FAIL,
    as_json: Json = False,
) -> None:
    """Store a plan to read again from a time, and print it with its id. Changes nothing.

    TIME has a zone: 2026-03-29T12:00+02:00, or 2026-03-29T12:00 Europe/Berlin. FILE has lines TOPIC,PARTITION,OFFSET.
    Exit 4, with the reason, if the rewind is refused.
    """
    target = rewind_plan.target_of(to, datetime.now(UTC), _text_of)
    platform = open_platform(open_settings())
    plan = rewind_plan.make_plan(platform, stream, target, policy=policy, by=actor(), reason=reason)
    document = {"schema": "millrace.streams.rewind/1", **plan_document(plan, stored=True)}
    emit(document, as_json=as_json, text=lambda console: _print_rewind(console, plan))


def _text_of(name: str) -> str | None:
    """The text of a file, where there is one of this name."""
    try:
        path = Path(name)
        return path.read_text(encoding="utf-8") if path.is_file() else None
    except (OSError, ValueError) as error:
        raise UsageError(f"the file cannot be read: {error}", where=name) from error


def _print_rewind(console: Console, plan: Plan) -> None:
    print_plan(console, plan)
    line = f"plan {plan.id}, good until {plan.expires:%Y-%m-%d %H:%M} UTC: run it with `./millrace plans run {plan.id}`"
    console.print(Text(line), soft_wrap=True)


@app.command()
def accept(stream: OnlyStream, reason: Reason, as_json: Json = False) -> None:
    """Allow the next start to read a topic that was deleted and created again."""
    with _answering("accept", stream, as_json=as_json) as answer:
        answer.report = supervise.accept(open_platform(open_settings()), stream, actor(), reason)


@app.command()
def adopt(stream: Name, reason: Reason, as_json: Json = False) -> None:
    """Move a stream or a backup to this host, if its host is lost or it is stopped there."""
    with _answering("adopt", stream, as_json=as_json) as answer:
        answer.report = adoption.adopt(open_platform(open_settings()), stream, actor(), reason)


@dataclass
class _Answer:
    """What a command came to; no report where it failed before there was one."""

    report: Supervised | None = None
    more: dict[str, object] = field(default_factory=dict)


@contextmanager
def _answering(verb: str, stream: str, *, as_json: bool) -> Iterator[_Answer]:
    """Print one answer when the command is over, however it ends: a program always gets its one document."""
    answer = _Answer()
    error: MillraceError | None = None
    try:
        yield answer
    except MillraceError as raised:
        error = raised
    report = answer.report
    document = {
        "schema": f"millrace.streams.{verb}/1",
        "stream": stream,
        "state": report.state if report else None,
        "epoch": report.epoch if report else None,
        "why": report.why if report else "",
        "until": report.until if report else None,
        "host": (report.host or None) if report else None,
        **answer.more,
        "error": error_document(error) if error else None,
    }
    if report is not None or as_json:
        emit(document, as_json=as_json, text=lambda console: console.print(Text(_in_short(report))))
    if error is not None:
        raise error


def _in_short(report: Supervised | None) -> str:
    if report is None:
        return ""
    return f"{report.stream} is {report.state.value}" + (f" (epoch {report.epoch})" if report.epoch else "")


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
        console.print(paragraph(text), soft_wrap=True)

    def tell(report: Supervised) -> None:
        nonlocal slow
        text = f"{report.stream}: {report.state.value}" + (f" ({report.told})" if report.told else "")
        if said[-1:] != [text]:
            say(text)
        if slow is not None and not done(report) and time.monotonic() >= slow_at:
            say(slow(report))
            slow = None

    if done(first) and not first.busy:
        return first
    return supervise.supervise_until(
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
        f"To end it now without losing a row: millrace streams stop {report.stream} --now --reason ..."
    )


def _wait_for_free_group(platform: Platform, stream: str) -> bool | None:
    """Whether the stopped stream's consumer group is free now; None where that cannot be told."""
    console = Console(stderr=True)
    try:
        pipeline, app = declared_app(platform.settings.root, stream)
    except MillraceError:
        return None
    connection, group = pipeline.kafka, app.group
    deadline = time.monotonic() + GROUP_FREE_WITHIN.total_seconds()
    said = False
    try:
        groups = platform.kafka.groups(connection)
        while groups.members(group):
            if not said:
                console.print(Text(f"{stream}: stopped; its group {group} frees after the session timeout (10 s)"))
                said = True
            if time.monotonic() > deadline:
                return False
            time.sleep(0.5)
    except MillraceError as error:
        console.print(paragraph(f"{stream}: stopped; the state of its group is unknown: {error.what}"), soft_wrap=True)
        return None
    return True


def _not_so(report: Supervised, what: str) -> MillraceError:
    return PartFailedError(
        f"the stream {what}: it is {report.state.value}" + (f", {report.why}" if report.why else ""),
        where=report.stream,
        next_step=f"read `millrace streams logs {report.stream}` and `millrace streams show {report.stream}`",
    )


def _document(row: StreamRow) -> dict[str, object]:
    return {
        "stream": row.stream,
        "wanted": row.wanted,
        "state": row.report.state,
        "why": row.report.why,
        "until": row.report.until,
        "epoch": row.report.epoch,
        "since": row.report.since,
        "host": row.report.host or None,
        "declared": row.declared,
        "group": row.group,
        "lag": row.lag,
        "last_error": row.last_error,
        "former_error": row.former_error,
        "progress": row.progress,
        "changed_by": row.changed_by,
        "changed_at": row.changed_at,
        "reason": row.reason,
        "headroom": row.headroom,
    }


def _print_list(console: Console, found: StreamList, pipeline: str | None) -> None:
    if found.streams:
        table = Table()
        for heading in ("stream", "wanted", "is", "epoch", "since (UTC)", "lag", "rows in last batch", "last error"):
            table.add_column(heading, overflow="fold")
        for row in found.streams:
            table.add_row(*(Text(cell) for cell in _cells(row)))
        console.print(table)
    else:
        console.print(Text(f"{pipeline} has no stream" if pipeline else "no stream is declared"))
    for problem in (*found.problems, *found.findings):
        console.print(Text(str(problem)), soft_wrap=True)


def _cells(row: StreamRow) -> tuple[str, ...]:
    report = row.report
    more = f" until {report.until:%H:%M:%S}" if report.until and report.state is StreamState.BACKING_OFF else ""
    if report.state is StreamState.STUCK or report.host:
        more = f": {report.why}"
    return (
        row.stream,
        row.wanted,
        f"{report.state.value}{more}",
        str(report.epoch or ""),
        f"{report.since:%Y-%m-%d %H:%M:%S}" if report.since else "",
        "" if row.lag is None else f"{row.lag:,}",
        f"{row.progress.rows_in:,}" if row.progress else "",
        row.last_error,
    )


def _log_file(folder: Path, stream: str, epoch: int | None) -> Path:
    epochs = sorted(int(entry.name) for entry in folder.glob("*") if entry.name.isdigit()) if folder.is_dir() else []
    wanted = epoch if epoch is not None else (epochs[-1] if epochs else None)
    if wanted is None or wanted not in epochs:
        raise UsageError(
            f"no log of {stream}" + (f" epoch {epoch}" if epoch is not None else ""),
            where=str(folder),
            next_step=f"choose one of the epochs: {', '.join(map(str, epochs))}"
            if epochs
            else "start the stream first, and read its log on its host",
            code=Code.UNKNOWN_NAME,
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
