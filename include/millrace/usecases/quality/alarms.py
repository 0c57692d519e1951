"""Alarms of quality: one for each rule of severity fail that is broken or could not be tried."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from millrace.domain.alarms.extent import UNKNOWN, Extent
from millrace.domain.alarms.kinds import AlarmKind
from millrace.domain.quality.results import Outcome, QualityCheck
from millrace.domain.quality.rules import Severity

if TYPE_CHECKING:
    from millrace.ports.platform import Platform

MOST_ALARMS = 10_000
_SEPARATOR = ": "


def hold(platform: Platform, check: QualityCheck) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Open the alarms of a check, and close those whose cause is over; the lines of new ones, and of known ones.

    A rule that was not tried keeps its alarm; one that is not declared any more has none.

    Args:
        platform: the adapters.
        check: of what the stream gained.

    Raises:
        UnreachableError: the control database does not answer.
    """
    alarms = platform.control.alarms
    wanted: dict[tuple[AlarmKind, str], tuple[str, Extent]] = {}
    if check.problem:
        wanted[AlarmKind.QUALITY_UNCHECKED, check.stream] = (f"nothing could be checked: {check.problem}", UNKNOWN)
    for result in check.red:
        if not check.problem:
            kind = AlarmKind.QUALITY_BROKEN if result.outcome is Outcome.FAILED else AlarmKind.QUALITY_UNCHECKED
            wanted[kind, subject_of(check.stream, result.rule)] = (str(result), Extent(result.broken))
    untried = {result.rule for result in check.results if result.outcome is Outcome.SKIPPED or check.problem}
    mild = {result.rule for result in check.results if result.severity is Severity.WARN}
    keep = {subject_of(check.stream, rule): rule for rule in untried - mild}
    for held, subject in _open(platform, check.stream):
        if (held, subject) not in wanted and (subject not in keep or _held_last(platform, check, keep[subject])):
            alarms.close(held, subject, opened_before=check.began)
    new: list[str] = []
    known: list[str] = []
    for (kind, subject), (line, extent) in wanted.items():
        (new if alarms.open(kind, subject, line, extent) else known).append(line)
    return tuple(new), tuple(known)


def _held_last(platform: Platform, check: QualityCheck, rule: str) -> bool:
    """Whether a rule held when it was tried last: by a check that was stored, and killed before it closed alarms."""
    for one in platform.control.quality.history(check.stream):
        outcomes = [result.outcome for result in one.results if result.rule == rule]
        if not one.problem and outcomes and outcomes[0] is not Outcome.SKIPPED:
            return outcomes[0] is Outcome.PASSED
    return False


def close_all(platform: Platform, stream: str, *, opened_before: datetime) -> None:
    """Close every alarm of a stream's quality.

    Raises:
        UnreachableError: the control database does not answer.
    """
    for kind, subject in _open(platform, stream):
        platform.control.alarms.close(kind, subject, opened_before=opened_before)


def subject_of(stream: str, rule: str) -> str:
    """What an alarm of a rule is about."""
    return f"{stream}{_SEPARATOR}{rule}"


def _open(platform: Platform, stream: str) -> list[tuple[str, str]]:
    found = platform.control.alarms.list(limit=MOST_ALARMS)
    mine = [alarm for alarm in found if alarm.kind in (AlarmKind.QUALITY_BROKEN, AlarmKind.QUALITY_UNCHECKED)]
    return [(one.kind, one.subject) for one in mine if one.subject.partition(_SEPARATOR)[0] == stream]
