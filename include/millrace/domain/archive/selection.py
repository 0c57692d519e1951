"""Which records of an archive are asked for."""

from __future__ import annotations

from dataclasses import dataclass

from millrace.domain.archive.manifest import MOST, ObjectEntry
from millrace.domain.archive.records import ArchivedRecord

NO_TIMESTAMP = -1


@dataclass(frozen=True, slots=True)
class Selection:
    """Which records are asked for; everything where nothing is said.

    Attributes:
        partition: the only one.
        first: offsets from here on, and below `next`.
        from_ms: timestamps from here on, in milliseconds since 1970.
        to_ms: timestamps below this.
        key: the record's key is these bytes.
    """

    partition: int | None = None
    first: int = 0
    next: int = MOST
    from_ms: int | None = None
    to_ms: int | None = None
    key: bytes | None = None

    @property
    def is_by_time(self) -> bool:
        """Whether timestamps select: records that have none then are left out."""
        return self.from_ms is not None or self.to_ms is not None

    def has_offsets_of(self, entry: ObjectEntry) -> bool:
        """Whether an object holds records of the partition and the offsets that are asked for."""
        if self.partition not in (None, entry.partition):
            return False
        first, next_ = max(self.first, entry.first), min(self.next, entry.next)
        return first < next_ and not any(low <= first and next_ <= high for low, high in entry.holes)

    def may_hold(self, entry: ObjectEntry) -> bool:
        """Whether an object may hold what is asked for, as far as its manifest says."""
        low, high = entry.min_timestamp_ms, entry.max_timestamp_ms
        if low is None or high is None or not self.has_offsets_of(entry):
            return False
        return (self.to_ms is None or low < self.to_ms) and (self.from_ms is None or high >= self.from_ms)

    def may_take(self, record: ArchivedRecord) -> bool:
        """Whether a record of the partition that is asked for is selected but for its timestamp."""
        return self.first <= record.offset < self.next and self.key in (None, record.key)

    def is_in_time(self, timestamp_ms: int) -> bool:
        """Whether a timestamp, which is one, is selected."""
        return (self.from_ms is None or timestamp_ms >= self.from_ms) and (
            self.to_ms is None or timestamp_ms < self.to_ms
        )
