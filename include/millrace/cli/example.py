"""How `millrace up` runs the example and prints what came of it."""

from __future__ import annotations

from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from millrace.adapters.airflow_api import embedded_address
from millrace.cli.sources import load_bar
from millrace.settings import Settings
from millrace.usecases.example import FINDINGS_SHOWN, ExampleProgress, ExampleReport, run_example
from millrace.wiring import open_example

_TRY_NEXT = (
    ("./millrace streams list", "the stream, what is wanted of it and what it does"),
    ("./millrace streams logs shop.purchases", "what its driver says"),
    ("DAG shop.operate in Airflow", "stop it and start it again, with a reason"),
    ("./millrace spec new NAME", "begin a pipeline of your own: docs/guide/first-pipeline.md"),
    ("./millrace down", "stop everything; the data stays"),
)


def run_with_bar(settings: Settings, airflow_url: str, console: Console) -> ExampleReport:
    """Run the example with a bar that shows each step.

    Args:
        settings: the project's.
        airflow_url: where the embedded Airflow answers.
        console: where the bar is shown; a line a step where that is not a terminal.
    """
    parts = open_example(settings, airflow_url)
    if not console.is_terminal:
        said: list[str] = []

        def say(progress: ExampleProgress) -> None:
            step = progress.step.partition(": ")[0]
            if not said or said[-1] != step:
                said.append(step)
                console.print(f"example: {progress.step}", markup=False, highlight=False)

        return run_example(parts, say)
    with load_bar(console) as bar:
        task = bar.add_task("the example", total=None)

        def show(progress: ExampleProgress) -> None:
            bar.update(task, description=progress.step, completed=progress.done, total=progress.total)

        return run_example(parts, show)


def document(settings: Settings, airflow_url: str, report: ExampleReport) -> dict[str, object]:
    """The report as one JSON document."""
    address = embedded_address(settings.state_folder, airflow_url)
    return {
        "schema": "millrace.example/1",
        **asdict(report),
        "airflow": {"url": address.url, "user": address.user, "password_file": str(address.password_file)},
    }


def print_report(console: Console, settings: Settings, airflow_url: str, report: ExampleReport) -> None:
    """Print what came of the example: counts, quarantine, DAGs, what is wrong, and what to try next."""
    again = " (it was done before; nothing was started)" if report.already_done else ""
    console.print(f"\nExample: pipeline shop{again}", style="bold", highlight=False)
    facts = Table.grid(padding=(0, 2))
    facts.add_row("  topic", f"{report.topic}, {report.partitions} partitions")
    facts.add_row("  records in", f"{report.records_in:,}")
    facts.add_row("  rows out", f"{report.rows_out:,} in table {report.table}")
    facts.add_row("  quarantined", f"{len(report.quarantined):,}")
    facts.add_row("  lag", f"{report.lag:,}")
    console.print(facts, highlight=False)
    _print_quarantine(console, report)
    _print_dags(console, report)
    _print_findings(console, report)
    address = embedded_address(settings.state_folder, airflow_url)
    password_file = address.password_file
    if password_file.is_relative_to(settings.root):
        password_file = password_file.relative_to(settings.root)
    console.print(f"\nAirflow: {address.url}  user {address.user}, password in {password_file}", highlight=False)
    console.print("\nTry next:", style="bold")
    steps = Table.grid(padding=(0, 2))
    for command, why in _TRY_NEXT:
        steps.add_row(f"  {command}", why)
    console.print(steps, highlight=False)


def _print_quarantine(console: Console, report: ExampleReport) -> None:
    if not report.quarantined:
        return
    table = Table(title="quarantine", title_justify="left", box=None, padding=(0, 2))
    for heading in ("source", "rule", "shows"):
        table.add_column(heading)
    for entry in report.quarantined:
        table.add_row(str(entry.source), entry.rule, entry.shows)
    console.print(table, highlight=False)


def _print_dags(console: Console, report: ExampleReport) -> None:
    table = Table(title="latest run of each DAG", title_justify="left", box=None, padding=(0, 2))
    for heading in ("DAG", "state"):
        table.add_column(heading)
    for dag_id, state in report.dags:
        table.add_row(dag_id, state)
    console.print(table, highlight=False)


def _print_findings(console: Console, report: ExampleReport) -> None:
    if not report.findings:
        console.print(
            "\nEvery record is once in the table or once in quarantine, and every row is right.", style="green"
        )
        return
    console.print(f"\n{len(report.findings):,} records are not where they should be:", style="red")
    for finding in report.findings[:FINDINGS_SHOWN]:
        console.print(f"  {finding}", markup=False, highlight=False, soft_wrap=True)
    if (more := len(report.findings) - FINDINGS_SHOWN) > 0:
        console.print(f"  and {more:,} more")
