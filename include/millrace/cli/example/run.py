"""Run the example for `millrace up` and print its report; `python -m millrace.cli.example.run URL` does it alone."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console

from millrace.cli.terminal.output import paragraph, show_error
from millrace.cli.topics.sources import load_bar
from millrace.domain.formats.shortened import shortened_lines
from millrace.errors import MillraceError
from millrace.settings import Settings, open_settings
from millrace.usecases.example.run import FINDINGS_SHOWN, ExampleProgress, ExampleReport, run_example
from millrace.wiring.example import open_example

_TRY_NEXT = (
    ("./millrace streams list", "show the stream with its desired and its present state"),
    ("./millrace streams logs shop.purchases", "show the log of its driver"),
    ("./millrace groups lag", "show each consumer group and its lag; docs/guide/groups.md"),
    ("./millrace topics sizing", "show the size and growth of topics; docs/guide/retention.md"),
    ("./millrace backup coverage", "show how much of the topic is archived; --page FILE writes a page"),
    ("./millrace backup cat shop.purchases", "print the archived records as JSON lines"),
    ("DAG shop.operate in Airflow", "stop the stream and start it again, with a reason"),
    ("./millrace spec new NAME", "create your own pipeline; docs/guide/first-pipeline.md"),
    ("./millrace down", "stop everything; the data is kept"),
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
                console.print(paragraph(f"example: {progress.step}"), soft_wrap=True)

        return run_example(parts, say)
    with load_bar(console) as bar:
        task = bar.add_task("the example", total=None)

        def show(progress: ExampleProgress) -> None:
            bar.update(task, description=progress.step, completed=progress.done, total=progress.total)

        return run_example(parts, show)


def print_report(console: Console, report: ExampleReport, try_next: Sequence[tuple[str, str]] = _TRY_NEXT) -> None:
    """Print what came of the example: counts, quarantine, DAGs, what is wrong, and what to try next."""
    again = " (already done; nothing was started)" if report.already_done else ""
    lines = [
        "",
        f"Example:  pipeline shop{again}",
        f"  topic        {report.topic}, {report.partitions} partitions",
        f"  records in   {report.records_in:,}",
        f"  rows out     {report.rows_out:,} in table {report.table}",
        f"  quarantined  {len(report.quarantined):,}",
        *(f"    {entry.source!s:<24} {entry.rule:<16} {entry.shows}" for entry in report.quarantined),
        f"  lag          {report.lag:,}",
        *([] if report.backup is None else [f"  backup       {report.backup}"]),
        *([f"  kept         {report.kept}"] if report.kept else []),
        *([f"  books        {report.books}"] if report.books else []),
        *([f"  recomputed   {report.made_again}"] if report.made_again else []),
        *([f"  quality      {report.quality}"] if report.quality else []),
        "  latest run of each DAG",
        *(f"    {dag_id:<32} {state}" for dag_id, state in report.dags),
        *_judgement(report),
        *(["", "Try next"] if try_next else []),
        *(f"  {command:<40} {why}" for command, why in try_next),
    ]
    for line in lines:
        console.print(paragraph(line), soft_wrap=True)


def _judgement(report: ExampleReport) -> list[str]:
    if not report.findings:
        lines = [
            "  Every record is once in the table or once in quarantine. Each recomputed row equals the stored row."
        ]
        return lines if report.backup is None else [*lines, "  Every record is proven to be in the archive."]
    lines = [f"  {len(report.findings):,} faults: records are missing, doubled or changed, or rules are broken:"]
    return [*lines, *(f"    {line}" for line in shortened_lines(report.findings, FINDINGS_SHOWN))]


def main(url: str) -> int:
    """Run the example on the Airflow at this address, beside the one of `up`; the exit code."""
    try:
        report = run_with_bar(open_settings(), url, Console(stderr=True))
    except MillraceError as error:
        show_error(error)
        return error.exit_code
    print_report(Console(), report, ())
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
