"""Checks of quality as text for people, and as JSON: counts, ages and sources, never a value."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from millrace.cli.terminal.output import Text, moment
from millrace.declarations.spelling import spell_duration
from millrace.domain.declaration.pipeline import Stream
from millrace.domain.formats.durations import roughly
from millrace.domain.quality.evidence import document_of
from millrace.domain.quality.marks import MARKS
from millrace.domain.quality.results import TOLD_SOURCES, Outcome, QualityCheck, RuleResult, Verdict
from millrace.domain.quality.rules import Severity, StreamQuality

_STYLES = {Verdict.PASSED: "green", Verdict.FAILED: "bold red", Verdict.ERROR: "bold red", Verdict.EMPTY: "yellow"}
_OUTCOMES = {Outcome.PASSED: "green", Outcome.FAILED: "red", Outcome.ERROR: "red", Outcome.SKIPPED: "dim"}


def check_document(check: QualityCheck) -> dict[str, object]:
    """A check as its evidence has it, with its number and where the evidence lies."""
    document: dict[str, object] = json.loads(document_of(check))
    document.pop("schema")
    return {**document, "check": check.identity, "evidence": list(check.evidence)}


def print_check(console: Console, check: QualityCheck) -> None:
    """A check, with a line for each rule that did not pass."""
    head = Text(f"{check.stream}: ", style="bold")
    head.append(str(check), style=_STYLES[check.verdict])
    console.print(head, soft_wrap=True)
    for result in check.results:
        if result.outcome in (Outcome.FAILED, Outcome.ERROR):
            style = "red" if result.severity is Severity.FAIL else "yellow"
            console.print(Text(f"  {result.severity.value}: {result}", style=style), soft_wrap=True)


def print_listed(console: Console, rows: Sequence[tuple[Stream, StreamQuality, QualityCheck | None]]) -> None:
    """The streams that are checked."""
    if not rows:
        console.print(Text("no stream declares quality"))
        return
    table = Table()
    for heading in ("stream", "rules", "every", "last check", "rows", "verdict", "red"):
        table.add_column(heading, overflow="fold")
    for stream, declared, last in rows:
        cells = [stream.qualified_name, f"{declared.name} ({len(declared.rules)})", spell_duration(declared.every)]
        if last is None:
            cells += ["never", "", "", ""]
        else:
            rows_seen = "" if last.rows is None else f"{last.rows:,}"
            red = ", ".join(result.rule for result in last.red)
            cells += [moment(last.began), rows_seen, last.verdict.value, red]
        table.add_row(*(Text(cell) for cell in cells))
    console.print(table)


def print_shown(console: Console, check: QualityCheck, lines: Mapping[str, str]) -> None:
    """One check with everything that is known of it."""
    number = "" if check.identity is None else f"check {check.identity}, "
    console.print(
        Text(f"{check.stream}: {number}{moment(check.began)}, by {check.actor}", style="bold"), soft_wrap=True
    )
    console.print(Text(str(check), style=_STYLES[check.verdict]), soft_wrap=True)
    if check.window is not None:
        console.print(Text(f"of the time from {moment(check.window[0])} to {moment(check.window[1])}"))
    table = Table()
    for heading in ("rule", "kind", "severity", "outcome", "rows", "broken", "last 20", "what"):
        table.add_column(heading, overflow="fold")
    for result in check.results:
        table.add_row(*_cells(result, lines.get(result.rule, "")))
    console.print(table)
    legend = ", ".join(f"{mark} {word}" for word, mark in MARKS.items() if mark.strip())
    console.print(Text(f"last 20, oldest left: {legend}", style="dim"), soft_wrap=True)
    if check.freshness is not None:
        parts = ", ".join(f"{name} {roughly(age)}" for name, age in check.freshness.parts)
        console.print(Text(f"freshness: {parts or 'nothing is known'}"), soft_wrap=True)
    for key in check.evidence:
        console.print(Text(f"evidence: {key}"), soft_wrap=True)


def _cells(result: RuleResult, line: str) -> list[Text]:
    named = ", ".join(map(str, result.sources[:TOLD_SOURCES]))
    more = " ..." if len(result.sources) > TOLD_SOURCES else ""
    what = "; ".join(part for part in (result.detail, named and f"from {named}{more}") if part)
    return [
        Text(result.rule),
        Text(result.kind),
        Text(result.severity.value),
        Text(result.outcome.value, style=_OUTCOMES[result.outcome]),
        Text("" if result.rows is None else f"{result.rows:,}"),
        Text("" if result.broken is None else f"{result.broken:,}"),
        Text(line),
        Text(what),
    ]
