"""The books of a stream: every source of a topic is once in the sink or once in quarantine, and says what it should.

Nothing here trusts a count: sources are compared one by one, so a lost row and a doubled one do not cancel out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True, order=True)
class SourceAt:
    """Where an input record lies: the source of its output rows."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}@{self.offset}"


class Fate(StrEnum):
    """Where a record has to end."""

    ROW = "row"  # as one row of these values
    QUARANTINE = "quarantine"
    EITHER = "either"  # once, but what it becomes is not known here


@dataclass(frozen=True, slots=True)
class Expectation:
    """What has to become of one record; `row` holds its values in the order of the compared columns."""

    fate: Fate
    row: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True)
class StoredRow:
    """One row of the sink: its source and the values of the compared columns."""

    source: SourceAt
    values: tuple[object, ...]


class Fault(StrEnum):
    """One way in which the books do not balance."""

    LOST = "lost"
    DOUBLED = "doubled"
    CHANGED = "changed"
    MISPLACED = "misplaced"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """One source whose books do not balance."""

    source: SourceAt
    fault: Fault
    detail: str

    def __str__(self) -> str:
        return f"{self.source}: {self.fault}: {self.detail}"


def balance(
    expected: Mapping[SourceAt, Expectation],
    rows: Iterable[StoredRow],
    quarantined: Iterable[SourceAt],
    columns: Sequence[str],
) -> list[Finding]:
    """What is wrong with a sink and its quarantine, by source; nothing where all is right.

    Args:
        expected: every record that is in the topic.
        rows: every row of the sink.
        quarantined: the source of every entry in quarantine.
        columns: the names of the compared columns, in the order of the values.
    """
    stored: dict[SourceAt, list[tuple[object, ...]]] = defaultdict(list)
    for row in rows:
        stored[row.source].append(row.values)
    entries = Counter(quarantined)
    findings: list[Finding] = []
    for source, expectation in expected.items():
        finding = _judge(source, expectation, stored.get(source, []), entries[source], columns)
        if finding is not None:
            findings.append(finding)
    for source in sorted((stored.keys() | entries.keys()) - expected.keys()):
        place = "the sink has a row" if source in stored else "quarantine has an entry"
        findings.append(Finding(source, Fault.UNKNOWN, f"{place} of it, the topic does not have it"))
    return sorted(findings, key=lambda finding: finding.source)


def _judge(
    source: SourceAt,
    expectation: Expectation,
    stored: Sequence[tuple[object, ...]],
    entries: int,
    columns: Sequence[str],
) -> Finding | None:
    places = len(stored) + entries
    if places == 0:
        return Finding(source, Fault.LOST, "neither in the sink nor in quarantine")
    if places > 1:
        return Finding(source, Fault.DOUBLED, f"{len(stored)} rows in the sink and {entries} entries in quarantine")
    if expectation.fate is Fate.ROW and not stored:
        return Finding(source, Fault.MISPLACED, "in quarantine, though it is a good record")
    if expectation.fate is Fate.QUARANTINE and stored:
        return Finding(source, Fault.MISPLACED, "in the sink, though it is a bad record")
    if expectation.fate is Fate.ROW and stored[0] != expectation.row:
        pairs = zip(columns, stored[0], expectation.row, strict=True)
        changed = [f"{name} is {found}, should be {wanted}" for name, found, wanted in pairs if found != wanted]
        return Finding(source, Fault.CHANGED, "; ".join(changed))
    return None
