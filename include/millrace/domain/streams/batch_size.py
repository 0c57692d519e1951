"""How many records a batch may have: fewer while the sink takes too long to merge them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta

LONGEST_MERGE = timedelta(minutes=2)
SMALLEST = 1_000
CALM_BATCHES = 20


@dataclass(frozen=True, slots=True)
class BatchSize:
    """The bound of a stream's batches.

    A merge that takes longer than `LONGEST_MERGE` halves the bound, as far as `SMALLEST`. After `CALM_BATCHES` batches
    whose merges stay below, the bound doubles, as far as what is declared.

    Attributes:
        declared: `max_records_per_batch`.
        records: the bound now.
        calm: how many batches in a row stayed below since it changed.
    """

    declared: int
    records: int
    calm: int = 0

    @classmethod
    def of(cls, declared: int) -> BatchSize:
        """The bound of a stream that starts."""
        return cls(declared, declared)

    def after(self, merge: timedelta) -> BatchSize:
        """Return the bound after a batch whose merge took so long."""
        if merge > LONGEST_MERGE:
            return replace(self, records=max(self.records // 2, min(SMALLEST, self.declared)), calm=0)
        if self.records == self.declared:
            return self
        if self.calm + 1 < CALM_BATCHES:
            return replace(self, calm=self.calm + 1)
        return replace(self, records=min(2 * self.records, self.declared), calm=0)

    @property
    def notice(self) -> str:
        """The bound in words, for people; empty where it is as declared."""
        if self.records == self.declared:
            return ""
        return (
            f"batches of at most {self.records:,} records instead of {self.declared:,}: a merge took longer than "
            f"{LONGEST_MERGE.total_seconds():.0f} s"
        )
