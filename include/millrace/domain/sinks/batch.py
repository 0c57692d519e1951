"""What a stream's sink is told and tells: who writes, what the tasks of a batch wrote, and what a batch came to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from millrace.domain.groups.snapshots import Partition
from millrace.domain.topics.offsets import Source


@dataclass(frozen=True, slots=True)
class Identity:
    """Who writes: one instance of one epoch of a stream."""

    stream: str
    epoch: int
    instance: str

    @property
    def application_name(self) -> str:
        """How a server lists this instance's connections; under 63 bytes by the rules for names."""
        return f"{self.stream}#{self.epoch}"


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What one task wrote.

    Attributes:
        rows: how many rows, or bad records, the sink took of it.
        refused: the sources of those that it did not take, with its reason.
        receipt: what the writer has to tell the sink that it came from, in words of their own; empty: nothing.
    """

    rows: int = 0
    refused: Mapping[Source, str] = field(default_factory=dict)
    receipt: str = ""


@dataclass(frozen=True, slots=True)
class TaskResults:
    """What the tasks of one pass wrote together.

    Attributes:
        attempts: the ids of the task attempts that reported; what others wrote does not count.
        rows: as in `TaskResult`, of all of them.
        refused: as in `TaskResult`, of all of them.
        receipts: those of the tasks that gave one.
    """

    attempts: tuple[int, ...] = ()
    rows: int = 0
    refused: Mapping[Source, str] = field(default_factory=dict)
    receipts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Written:
    """What was written of one batch before its commit, by the count of the tasks that wrote it.

    Attributes:
        attempts: ids of the task attempts whose rows and bad records count; what others left is ignored.
        rows: how many rows they wrote.
        bad_records: how many records they wrote for quarantine.
        refused: sources whose rows are left out, because they are among the bad records instead.
        records: how many records were read of each partition, by topic and number; None: that was not counted.
        receipts: those of the tasks whose rows count.
    """

    attempts: Sequence[int]
    rows: int
    bad_records: int = 0
    refused: Mapping[Source, str] = field(default_factory=dict)
    records: Mapping[Partition, int] | None = None
    receipts: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """What a batch's commit did. All zero where the batch was on record already."""

    rows_out: int = 0
    quarantined: int = 0

    def __add__(self, more: BatchCounts) -> BatchCounts:
        return BatchCounts(self.rows_out + more.rows_out, self.quarantined + more.quarantined)


@dataclass(frozen=True, slots=True)
class RangeCounts:
    """Counts of rows and bad records of some source ranges in a sink. `older` counts both, of other timelines."""

    rows: int
    quarantined: int
    older: int
