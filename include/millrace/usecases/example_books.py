"""What has to become of each record of the example, worked out from the source's file and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import ROUND_HALF_UP, Decimal
from typing import Protocol

from millrace.domain.books import Expectation, Fate, SourceAt
from millrace.domain.sources import SourceRecord, TopicRecord, sequence_of

BAD_RECORD_HEADER = "millrace-example"
COLUMNS = ("customer_id", "purchased_on", "quantity", "amount", "unit_amount", "weekday", "month")
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
class Wanted:
    """What should be: by source, what has to become of it; and what is wrong with the topic itself."""

    expected: Mapping[SourceAt, Expectation]
    labels: Mapping[SourceAt, str]
    findings: tuple[str, ...]
    complete: bool


def what_should_be(
    source: str,
    topic: str,
    records: Sequence[SourceRecord],
    in_topic: Iterable[TopicRecord],
    starts: Mapping[int, int],
) -> Wanted:
    """What has to become of every record in the topic.

    Args:
        source: the source, PIPELINE.NAME.
        topic: the topic's name.
        records: what the source program yields.
        in_topic: what is in the topic. Records of other producers have to end somewhere, once.
        starts: the log start of each partition; where the log starts later than at 0, missing records are no fault.
    """
    expected: dict[SourceAt, Expectation] = {}
    labels: dict[SourceAt, str] = {}
    findings: list[str] = []
    seen: set[int] = set()
    for found in in_topic:
        at = SourceAt(topic, found.partition, found.offset)
        sequence = sequence_of(source, found.headers)
        if sequence is None or sequence >= len(records):
            expected[at] = Expectation(Fate.EITHER)
            continue
        if sequence in seen:
            findings.append(f"{at}: doubled: record {sequence} of source {source} is in the topic more than once")
        seen.add(sequence)
        record = records[sequence]
        if (found.key, found.value) != (record.key, record.value):
            findings.append(f"{at}: changed: the topic's record is not record {sequence} of source {source}")
        expected[at] = _expectation(record)
        if label := dict(record.headers).get(BAD_RECORD_HEADER):
            labels[at] = label.decode()
    missing = sorted(set(range(len(records))) - seen)
    if missing and seen and not any(starts.values()):
        first = ", ".join(map(str, missing[:_MISSING_SHOWN]))
        findings.append(f"{topic}: lost: {len(missing)} records of source {source} are not in the topic: {first} ...")
    return Wanted(expected, labels, tuple(findings), complete=max(seen, default=-1) + 1 == len(records))


def _expectation(record: SourceRecord) -> Expectation:
    if BAD_RECORD_HEADER in dict(record.headers):
        return Expectation(Fate.QUARANTINE)
    return Expectation(Fate.ROW, expected_row(record.value or b""))


def expected_row(value: bytes) -> tuple[object, ...]:
    """The sink's columns for one purchase, computed here once more and without Spark."""
    purchase = json.loads(value, parse_float=Decimal)
    day, quantity, amount = date.fromisoformat(purchase["purchased_on"]), purchase["quantity"], purchase["amount"]
    unit = (amount / quantity).quantize(Decimal("0.0001"), ROUND_HALF_UP) if quantity else None
    return (purchase["customer_id"], day, quantity, amount, unit, day.isoweekday(), day.replace(day=1))


def name_quarantined(entries: Iterable[QuarantineEntry], labels: Mapping[SourceAt, str]) -> tuple[Quarantined, ...]:
    """The quarantine's entries with what each was made to show."""
    return tuple(Quarantined(entry.source, entry.rule, labels.get(entry.source, "")) for entry in entries)
