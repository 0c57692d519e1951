"""`up`, `down`, `status`, `doctor`, `compose`, `run`, `test`: the embedded stack and the project's environment."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.cli.stack.compose import compose
from millrace.cli.terminal.output import Text, emit, paragraph
from millrace.errors import Code, UsageError
from millrace.settings import project_root

if TYPE_CHECKING:
    from rich.console import Console

    from millrace.embedded.stack import PartStatus, Stack, StackReport

LAUNCH_VARIABLE = "MILLRACE_LAUNCH"
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]
_PASSED_ON = {"ignore_unknown_options": True, "allow_interspersed_args": False}


def register(app: typer.Typer) -> None:
    """Add these commands to the application."""
    app.command()(up)
    app.command()(down)
    app.command()(status)
    app.command()(doctor)
    app.command()(compose)
    app.command(context_settings=_PASSED_ON)(run)
    app.command("test", context_settings=_PASSED_ON, add_help_option=False)(check)


def up(
    no_example: Annotated[bool, typer.Option("--no-example", help="Only start the stack; run no example.")] = False,
    as_json: AsJson = False,
) -> None:
    """Start the embedded stack and run the example. You can repeat it at any time."""
    from rich.console import Console

    from millrace.embedded.progress import Progress

    began, launcher_seconds = _launch()
    stack = _stack()
    report = stack.start(Progress())
    url = _airflow_address(stack)["url"]
    came_of = None
    if not no_example:
        from millrace.cli.example import run as example

        came_of = example.run_with_bar(stack.settings(), url, Console(stderr=True))
    download_seconds = launcher_seconds + report.download_seconds
    own_seconds = time.time() - began - download_seconds
    document = {
        "schema": "millrace.up/1",
        "parts": [asdict(part) for part in report.parts],
        "download_seconds": round(download_seconds, 1),
        "own_seconds": round(own_seconds, 1),
        "control_revision": report.control_revision,
        "airflow": _airflow_address(stack),
        "example": asdict(came_of) if came_of else None,
    }

    def show(console: Console) -> None:
        _show_up(console, stack, report, download_seconds, own_seconds)
        if came_of:
            example.print_report(console, came_of)

    emit(document, as_json=as_json, text=show)
    if came_of and came_of.exit_code:
        raise typer.Exit(came_of.exit_code)


def down(
    wipe: Annotated[bool, typer.Option("--wipe", help="Also remove all data, passwords and logs.")] = False,
    as_json: AsJson = False,
) -> None:
    """Stop all servers and streams; keep the data unless you give `--wipe`."""
    from millrace.embedded.progress import Progress

    apps = _stack().stop(Progress(), wipe=wipe)
    document = {"schema": "millrace.down/1", "stream_processes_ended": apps, "wiped": wipe}
    line = "everything is stopped" + (f", including {apps} processes of streaming apps" if apps else "")
    line += "; all data is removed" if wipe else "; the data is kept in .millrace (remove it with `down --wipe`)"
    emit(document, as_json=as_json, text=lambda console: console.print(paragraph(line), soft_wrap=True))


def status(as_json: AsJson = False) -> None:
    """Ask each part by a real call; exit 1 when one is down."""
    parts = _stack().status()
    document = {"schema": "millrace.status/1", "parts": [asdict(part) for part in parts]}
    emit(document, as_json=as_json, text=lambda console: _show_parts(console, parts))
    if not all(part.healthy for part in parts):
        raise typer.Exit(1)


def doctor(as_json: AsJson = False) -> None:
    """Check connections, Java, disk, memory, versions and who can read the secrets; exit 1 when something is wrong."""
    from millrace.embedded.doctor import examine

    checks = examine(project_root())
    document = {"schema": "millrace.doctor/1", "checks": [asdict(check) for check in checks]}

    def show(console: Console) -> None:
        from rich.table import Table

        table = Table("", "what", "from", "found", "took", box=None, pad_edge=False)
        for check in checks:
            mark = "[green]ok[/]" if check.fine else "[red]wrong[/]"
            took = "" if check.seconds is None else f"{check.seconds * 1000:.0f} ms"
            table.add_row(mark, *(Text(cell) for cell in (check.name, check.origin, check.found)), took)
        console.print(table)

    emit(document, as_json=as_json, text=show)
    if not all(check.fine for check in checks):
        raise typer.Exit(1)


def run(command: Annotated[list[str], typer.Argument(help="Give the command and its arguments, after `--`.")]) -> None:
    """Run a command inside the project's environment: its Python, Java, Kafka tools, Airflow and connections."""
    from millrace.embedded import environment

    variables = environment.of_command(_stack().layout, os.environ)
    variables.pop(LAUNCH_VARIABLE, None)
    try:
        os.execvpe(command[0], command, variables)
    except OSError as error:
        raise UsageError(
            f"the command cannot run: {error.strerror}",
            where=command[0],
            next_step="name a program of the PATH; run `./millrace up` to install Kafka's own tools",
            code=Code.MISSING_PROGRAM,
        ) from error


def check(
    arguments: Annotated[list[str] | None, typer.Argument(help="Pass these arguments to pytest alone.")] = None,
) -> None:
    """Run the linter, the type checker and the tests of the first tier.

    `--all` adds the second tier, `--fast` leaves out all that needs a server. `--repeat N PATH...` runs the named tests
    N times beside two busy loops. Other arguments go to pytest alone.
    """
    from millrace.cli.checks.run import run_checks

    sys.exit(run_checks(project_root(), arguments or []))


def _stack() -> Stack:
    from millrace.embedded.stack import Stack

    return Stack(project_root())


def _launch() -> tuple[float, float]:
    """When the launcher began (seconds since the epoch), and how many seconds it downloaded."""
    try:
        launch = json.loads(os.environ.pop(LAUNCH_VARIABLE))
        return float(launch["started"]), float(launch["download_seconds"])
    except (KeyError, ValueError, TypeError):
        return time.time(), 0.0


def _airflow_address(stack: Stack) -> dict[str, str]:
    from millrace.airflow.shared import names
    from millrace.embedded import ports

    url = f"http://127.0.0.1:{ports.read(stack.layout).get('airflow')}"
    return {
        "url": url,
        "streams": f"{url}/plugin/{names.PAGES}",
        "user": "admin",
        "password_file": str(stack.layout.airflow_passwords),
    }


def _show_up(console: Console, stack: Stack, report: StackReport, downloading: float, own: float) -> None:
    _show_parts(console, report.parts)
    airflow = _airflow_address(stack)
    lines = [
        "",
        f"Airflow:  {airflow['url']}  user {airflow['user']}, password in {airflow['password_file']}",
        f"Streams:  {airflow['streams']}",
        f"Time:     {downloading:.0f} s downloading, {own:.0f} s own work",
        "Next:     ./millrace status · ./millrace doctor · ./millrace run -- psql · "
        "./millrace run -- sh -c 'kafka-topics --bootstrap-server $KAFKA_BOOTSTRAP --list' · ./millrace down",
    ]
    for line in lines:
        console.print(paragraph(line), soft_wrap=True)


def _show_parts(console: Console, parts: list[PartStatus]) -> None:
    from rich.table import Table

    table = Table("part", "", "program", "pid", "up", "ports", "found", box=None, pad_edge=False)
    for part in parts:
        mark = "[green]healthy[/]" if part.healthy else "[red]down[/]"
        numbers = ", ".join(str(port) for port in part.ports.values())
        for row, program in enumerate(part.programs or [None]):
            pid = str(program.pid or "-") if program else "-"
            lasted = _duration(program.uptime_seconds) if program and program.pid else "-"
            first = (part.name, mark) if row == 0 else ("", "")
            last = (numbers, Text(part.detail)) if row == 0 else ("", "")
            table.add_row(*first, program.name if program else "-", pid, lasted, *last)
    console.print(table)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
