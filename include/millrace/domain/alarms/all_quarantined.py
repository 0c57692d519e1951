"""The alarm for a stream whose records all go to quarantine: its table refuses every row, or its schema fits none."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from millrace.domain.alarms.extent import Extent
from millrace.domain.alarms.life import GROWS_BY

BREACH_BATCHES = 3
BREACH_RECORDS = 1000


class Verdict(Enum):
    """What a batch says of the alarm."""

    OPEN = "open"
    CLOSE = "close"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True)
class Refused:
    """Batches in a row of which every record went to quarantine.

    Attributes:
        batches: those that had records.
        records: how many they had together.
        said: batches and records that the alarm says: those at the breach, and again whenever they are ten times so
            many records. So the alarm is not written anew with every batch.
    """

    batches: int = 0
    records: int = 0
    said: tuple[int, int] = (0, 0)

    @property
    def is_breach(self) -> bool:
        """Return whether they are enough for an alarm."""
        return self.batches >= BREACH_BATCHES or self.records >= BREACH_RECORDS

    @property
    def extent(self) -> Extent:
        """Return how bad it is, as the alarm says it."""
        return Extent(self.said[1])

    def detail(self, stream: str) -> str:
        """Return what the alarm says."""
        count, records = self.said
        batches = "one batch" if count == 1 else f"{count:,} batches in a row"
        return (
            f"all {records:,} records of {batches} went to quarantine, and none became a row; "
            f"run `millrace quarantine list --stream {stream}` to count them by rule"
        )


def judge(before: Refused, *, rows_in: int, rows_out: int, quarantined: int) -> tuple[Refused, Verdict]:
    """Count a batch, and say what it means for the alarm.

    A batch without records changes nothing. One with records that the transform left out ends the count: not all was
    refused. Only a row closes the alarm.

    Args:
        before: the count before this batch; a stream that starts begins anew.
        rows_in: the records that the batch read.
        rows_out: the rows that it wrote.
        quarantined: the records of it that went to quarantine.
    """
    if rows_out > 0:
        return Refused(), Verdict.CLOSE
    if rows_in == 0:
        return before, Verdict.UNCHANGED
    if quarantined != rows_in:
        return Refused(), Verdict.UNCHANGED
    after = Refused(before.batches + 1, before.records + rows_in, before.said)
    if after.is_breach and after.records >= GROWS_BY * after.said[1]:
        after = replace(after, said=(after.batches, after.records))
    return after, Verdict.OPEN if after.is_breach else Verdict.UNCHANGED
