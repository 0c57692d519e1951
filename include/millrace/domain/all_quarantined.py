"""The alarm for a stream whose records all go to quarantine: its table refuses every row, or its schema fits none."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

ALL_QUARANTINED = "stream.all_quarantined"
"""The kind of the alarm."""
BREACH_BATCHES = 3
BREACH_RECORDS = 1000


class Verdict(Enum):
    """What a batch says of the alarm."""

    OPEN = "open"
    CLOSE = "close"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True)
class Refused:
    """Batches in a row of which every record went to quarantine; the count ends where it is a breach.

    Attributes:
        batches: those that had records.
        records: how many they had together.
    """

    batches: int = 0
    records: int = 0

    @property
    def is_breach(self) -> bool:
        """Return whether they are enough for an alarm."""
        return self.batches >= BREACH_BATCHES or self.records >= BREACH_RECORDS

    def detail(self, stream: str) -> str:
        """Return what the alarm says."""
        batches = "one batch" if self.batches == 1 else f"{self.batches} batches in a row"
        return (
            f"all {self.records:,} records of {batches} went to quarantine, and none became a row; "
            f"`millrace quarantine list --stream {stream}` counts them by rule"
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
    after = before if before.is_breach else Refused(before.batches + 1, before.records + rows_in)
    return after, Verdict.OPEN if after.is_breach else Verdict.UNCHANGED
