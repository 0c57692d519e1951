"""The last results of each rule, as a line of marks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from millrace.domain.quality.results import Outcome, QualityCheck, RuleResult
from millrace.domain.quality.rules import Severity

MARKS = {"passed": "·", "failed": "✗", "warned": "!", "error": "?", "skipped": "-", "absent": " "}
"""What each mark means: `warned` is a broken rule of severity warn, `absent` one that the check did not have."""


def marks(history: Sequence[QualityCheck]) -> Mapping[str, str]:
    """For each rule of the newest check one mark a check, the oldest left.

    Args:
        history: checks, newest first.
    """
    if not history:
        return {}
    lines = {result.rule: "" for result in history[0].results}
    for check in reversed(history):
        results = {result.rule: result for result in check.results}
        for rule in lines:
            lines[rule] += MARKS["absent"] if rule not in results else MARKS[_word(results[rule])]
    return lines


def _word(result: RuleResult) -> str:
    if result.outcome is Outcome.FAILED and result.severity is Severity.WARN:
        return "warned"
    return result.outcome.value
