"""What the example's topic holds of its source, held against the source's file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Protocol

from millrace.domain.topics.offsets import SourceAt
from millrace.domain.topics.sources import SourceRecord, TopicRecord, sequence_of

BAD_RECORD_HEADER = "millrace-example"
_MISSING_SHOWN = 5


class QuarantineEntry(Protocol):
    """One record in quarantine."""

    @property
    def source(self) -> SourceAt:
        """Where the record lies."""
        ...

    @property
    def rule(self) -> str:
        """The rule it broke."""
        ...


@dataclass(frozen=True, slots=True)
class Quarantined:
    """One record in quarantine as the report names it; `shows` is what the example put it there to show."""

    source: SourceAt
    rule: str
    shows: str


@dataclass(frozen=True, slots=True)
class InTopic:
    """What a topic holds of a source.

    Attributes:
        records: how many records it holds, those of others too.
        labels: of the records that are made to be bad, what each shows.
        good: the other records of the source.
        findings: what is wrong with it.
        complete: all of the source is in it.
    """

    records: int
    labels: Mapping[SourceAt, str]
    good: Set[SourceAt]
    findings: tuple[str, ...]
    complete: bool


def look_at(
    source: str,
    topic: str,
    records: Sequence[SourceRecord],
    in_topic: Iterable[TopicRecord],
    starts: Mapping[int, int],
) -> InTopic:
    """Hold what is in a topic against its source's file, record by record.

    Args:
        source: the source, PIPELINE.NAME.
        topic: the topic's name.
        records: what the source program yields.
        in_topic: what is in the topic.
        starts: the log start of each partition; where the log starts later than at 0, missing records are no fault.
    """
    count = 0
    labels: dict[SourceAt, str] = {}
    good: set[SourceAt] = set()
    findings: list[str] = []
    seen: set[int] = set()
    for found in in_topic:
        count += 1
        at = SourceAt(topic, found.partition, found.offset)
        sequence = sequence_of(source, found.headers)
        if sequence is None or sequence >= len(records):
            continue
        if sequence in seen:
            findings.append(f"{at}: doubled: record {sequence} of source {source} is in the topic more than once")
        seen.add(sequence)
        record = records[sequence]
        if (found.key, found.value) != (record.key, record.value):
            findings.append(f"{at}: changed: the topic's record is not record {sequence} of source {source}")
        if label := dict(record.headers).get(BAD_RECORD_HEADER):
            labels[at] = label.decode()
        else:
            good.add(at)
    missing = sorted(set(range(len(records))) - seen)
    if missing and seen and not any(starts.values()):
        first = ", ".join(map(str, missing[:_MISSING_SHOWN]))
        findings.append(f"{topic}: lost: {len(missing)} records of source {source} are not in the topic: {first} ...")
    return InTopic(count, labels, good, tuple(findings), complete=max(seen, default=-1) + 1 == len(records))


def misplaced(entries: Iterable[QuarantineEntry], found: InTopic, redriven: Set[SourceAt]) -> list[str]:
    """Good records that are in quarantine, and those that are made to be bad and are not.

    Args:
        entries: what is in quarantine.
        found: what is in the topic.
        redriven: what was there, and somebody has put through since: that is no fault.
    """
    there = {entry.source: entry.rule for entry in entries}
    faults = {at: f"{at}: in quarantine as {there[at]}, but it is a good record" for at in there.keys() & found.good}
    for at in found.labels.keys() - there.keys() - redriven:
        faults[at] = f"{at}: not in quarantine, but it is a bad record ({found.labels[at]})"
    return [faults[at] for at in sorted(faults)]


def name_quarantined(entries: Iterable[QuarantineEntry], labels: Mapping[SourceAt, str]) -> tuple[Quarantined, ...]:
    """The quarantine's entries with what each was made to show."""
    return tuple(Quarantined(entry.source, entry.rule, labels.get(entry.source, "")) for entry in entries)
