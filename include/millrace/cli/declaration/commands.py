"""`millrace spec`: check, show and begin declarations."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from millrace import declarations
from millrace.cli.terminal.output import Text, emit
from millrace.declarations.environment import environment_name
from millrace.declarations.findings import Finding, Severity, in_order
from millrace.declarations.project import names
from millrace.declarations.quality import supposed
from millrace.declarations.show import EffectiveDeclaration, OriginKind, effective
from millrace.declarations.starter import starter, write_starter
from millrace.errors import UsageError
from millrace.settings import open_settings, project_root
from millrace.usecases.declaration.kafka_connections import connection_findings
from millrace.usecases.declaration.lookup import declared_topic
from millrace.usecases.quality.columns import column_findings
from millrace.wiring import open_platform

app = typer.Typer(no_args_is_help=True, help="Check, show and create declarations.")

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
InEnvironment = Annotated[
    str | None, typer.Option("--environment", "-e", help="Name the environment; default: MILLRACE_ENVIRONMENT.")
]


@app.command()
def check(as_json: AsJson = False, environment: InEnvironment = None) -> None:
    """Check all declarations. Exit 1 if one is wrong, 0 for warnings alone."""
    root = project_root()
    found, silent = _found(root, environment)
    wrong = [each for each in found if each.severity is Severity.ERROR]
    files = names(root)
    document = {
        "schema": "millrace.spec.check/1",
        "environment": environment_name(environment),
        "pipelines": files,
        "findings": [asdict(each) for each in found],
        "not_asked": list(silent),
    }
    emit(document, as_json=as_json, text=lambda console: _print_findings(console, found, silent, len(files)))
    if wrong:
        raise typer.Exit(1)


def _found(root: Path, environment: str | None) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """All findings, and in a line each the tables that could not be asked and the Connections that are not here.

    What a table says of its columns stands instead of what is supposed without asking it.
    """
    try:
        project = declarations.load(root, environment)
    except declarations.InvalidDeclarationError as error:
        return error.findings, ()
    settings = open_settings(root)
    kafka = connection_findings(settings, project.pipelines)
    asked = column_findings(open_platform(settings), project.pipelines)
    streams = [one for pipeline in project.pipelines for one in pipeline.streams if one.qualified_name in asked.asked]
    told = supposed(project.warnings, streams)
    warnings = [each for each in project.warnings if each not in told]
    warnings += declarations.former_names(root, project.pipelines)
    return in_order([*project.findings, *warnings, *kafka.findings, *asked.findings]), (*kafka.silent, *asked.silent)


def _print_findings(console: Console, found: tuple[Finding, ...], silent: tuple[str, ...], files: int) -> None:
    for each in found:
        warning = each.severity is Severity.WARNING
        head = Text(f"{each.file}:{each.line}: ", style="bold")
        head.append(f"{each.field}: ", style="yellow" if warning else "red")
        head.append(("warning: " if warning else "") + each.what, style="not bold")
        console.print(head, soft_wrap=True)
        console.print(Text(f"  next: {each.next_step}"), soft_wrap=True)
    for line in silent:
        console.print(Text(line), soft_wrap=True)
    wrong = sum(each.severity is Severity.ERROR for each in found)
    pipelines = f"{files} pipeline{'' if files == 1 else 's'}"
    warnings = len(found) - wrong
    console.print(Text(f"{pipelines}: {wrong or 'no'} errors, {warnings or 'no'} warnings"))


@app.command()
def schema(
    of_environment: Annotated[
        bool, typer.Option("--of-environment", help="Print the schema of environment files.")
    ] = False,
    of_rules: Annotated[bool, typer.Option("--of-rules", help="Print the schema of rule files.")] = False,
) -> None:
    """Print the JSON schema of pipeline files, for editors."""
    if of_environment and of_rules:
        raise UsageError("--of-environment and --of-rules exclude each other", next_step="give one of them")
    document = declarations.json_schema(environment=of_environment, rules=of_rules)
    emit(document, as_json=True, text=lambda console: None)


@app.command()
def show(name: str, as_json: AsJson = False, environment: InEnvironment = None) -> None:
    """Show the effective declaration of a pipeline: every value, with its file and line."""
    found = effective(project_root(), name, environment)
    document = {
        "schema": "millrace.spec.show/1",
        "pipeline": found.pipeline,
        "environment": found.environment,
        "values": [asdict(each) for each in found.values],
    }
    emit(document, as_json=as_json, text=lambda console: _print_values(console, found))


def _print_values(console: Console, found: EffectiveDeclaration) -> None:
    console.print(Text(f"# {found.pipeline} in the environment {found.environment}"))
    styles = {OriginKind.DEFAULT: "dim", OriginKind.ENVIRONMENT: "cyan", OriginKind.DECLARATION: ""}
    for each in found.values:
        line = Text(f"{each.field}: {each.value}".ljust(64), style=styles[each.origin])
        line.append(f"  # {each.where}", style="dim")
        console.print(line, soft_wrap=True)


@app.command()
def new(
    name: str,
    reads: Annotated[str | None, typer.Option(help="Read this declared topic instead of a new one.")] = None,
    owner: Annotated[str, typer.Option(help="Name the owner of the pipeline.")] = "my-team",
    as_json: AsJson = False,
) -> None:
    """Write the files of a new pipeline, valid and ready to run: declaration, rules, DAG file, app and test."""
    root = project_root()
    if reads is not None:
        declared_topic(root, reads)
    files = starter(name, owner=owner, reads=reads)
    write_starter(root, files)
    declarations.load_pipeline(root, name)
    document = {"schema": "millrace.spec.new/1", "pipeline": name, "files": list(files)}
    emit(document, as_json=as_json, text=lambda console: _print_new(console, list(files), name))


def _print_new(console: Console, files: list[str], name: str) -> None:
    for path in files:
        console.print(Text(f"wrote {path}"), soft_wrap=True)
    console.print(
        Text(
            f"next: edit them, `./millrace spec check`; make the topic (`./millrace topics plan {name}`, then "
            f"`plans run ID`), load or produce records, `./millrace streams start {name}.events --reason ...`"
        ),
        soft_wrap=True,
    )
