"""The entry of the command line: finds the noun, imports its module alone, turns errors into exit codes."""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from typing import Annotated

import typer

from millrace import __version__
from millrace.errors import MillraceError

NOUNS = {
    "spec": "Check, show and create declarations.",
    "topics": "Plan topic changes, and show retention and size.",
    "plans": "List, show, run and abort stored plans.",
    "groups": "List and show consumer groups, their lag and their commits.",
    "streams": "List, show, start, stop and rewind streams.",
    "sources": "Feed topics from declared source programs.",
    "quarantine": "List, show and redrive bad records.",
    "backup": "Audit, show and read back the archive.",
    "backfill": "Process closed windows again.",
    "replay": "Process one customer again.",
    "quality": "Check, show and accept the quality of the rows in sinks.",
    "alarms": "List, show and acknowledge alarms.",
    "control": "Migrate the control database.",
    "log": "Print the action log: who did what, when and why.",
}
"""The words that name a command's noun; one that has no module yet is not offered."""
MODULES = {
    "spec": "declaration.commands",
    "sources": "topics.sources",
    "backup": "archive.commands",
    "control": "stack.control",
    "log": "plans.log",
}
"""Modules below `millrace.cli` of words that are no folder; any other word has its commands in `WORD/commands.py`."""


def build(arguments: list[str]) -> typer.Typer:
    """The application for these arguments.

    Only the noun they name is imported; the others are stand-ins that carry a line of help, so that `--help`
    costs no heavy import.
    """
    from millrace.cli.stack import commands

    app = typer.Typer(
        name="millrace",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    commands.register(app)
    asked = next((word for word in arguments if not word.startswith("-")), "")
    for noun, line in NOUNS.items():
        name = f"millrace.cli.{MODULES.get(noun, f'{noun}.commands')}"
        if not _is_there(name):
            continue
        module = importlib.import_module(name).app if noun == asked else _stand_in()
        app.add_typer(module, name=noun, help=line)
    return app


def _is_there(module: str) -> bool:
    """Tell whether a module is there, without importing it."""
    folder, _, _ = module.rpartition(".")
    return find_spec(folder) is not None and find_spec(module) is not None


def _say_version(asked: bool) -> None:
    if asked:
        typer.echo(f"millrace {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_say_version, help="Print the version.")
    ] = False,
) -> None:
    """Batch and streaming pipelines: declared in YAML, operated by Airflow, run by Spark."""


def main() -> None:
    """Run the command line and end the process with its exit code."""
    from millrace.cli.terminal.output import show_error

    _log_to_stderr()
    try:
        build(sys.argv[1:])(prog_name="millrace")
    except MillraceError as error:
        show_error(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)


def _log_to_stderr() -> None:
    """What a command prints is its answer, often for a program."""
    import structlog

    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))


def _stand_in() -> typer.Typer:
    stand_in = typer.Typer()

    @stand_in.callback(invoke_without_command=True)
    def _nothing() -> None:
        """Never called: the noun that is asked for is imported."""

    return stand_in


if __name__ == "__main__":
    main()
