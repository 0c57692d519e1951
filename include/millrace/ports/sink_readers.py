"""Readers of the results of streams: tables, books, fences, datasets, activity."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import date, datetime
from typing import TYPE_CHECKING, Protocol

from millrace.domain.activity.readings import Reading, UnreadableRecords
from millrace.domain.quality.ranges import Work
from millrace.domain.quarantine.redrive import Left
from millrace.domain.quarantine.rules import QuarantinedRecord, QuarantineEntry, RuleCount
from millrace.domain.sinks.batch import RangeCounts
from millrace.domain.sinks.dataset.snapshot import DatasetSnapshot
from millrace.domain.streams.position import WorkRecord
from millrace.domain.topics.offsets import OffsetRange, SourceAt
from millrace.ports.sinks import Books

if TYPE_CHECKING:
    import pyarrow as pa


class DatasetReader(Protocol):
    """Reads a dataset, also while its stream writes."""

    def newest_epoch(self, stream: str) -> int:
        """Return the epoch of a stream that writes it, by its last manifest; 0 where there is none."""
        ...

    def snapshot(self, first: date | None = None, last: date | None = None) -> DatasetSnapshot | None:
        """The dataset as it is now; None where no stream has ever written it.

        Raises:
            CorruptArchiveError: a manifest is missing, or is not what it was; or a summary names later ones.
            UnreachableError: the store does not answer.
        """
        ...

    def rows(self, snapshot: DatasetSnapshot) -> Iterator[pa.Table]:
        """The rows of a snapshot that count, object by object, each with its `event_date` (null: it has none).

        Raises:
            CorruptArchiveError: an object is missing, or is not what its manifest names.
        """
        ...


class Fences(Protocol):
    """Reads the fences of one sink database; holds and changes none."""

    def epoch(self, stream: str) -> int:
        """The epoch that holds a stream's fence; 0 where there is none.

        Raises:
            UnreachableError: the server does not answer.
            SinkExhaustedError: it has no room for another connection.
            SinkFailedError: it does not show its fences to this role, or not in time.
        """
        ...


class SinkReader(Protocol):
    """Reads what streams have written to one sink database. Changes nothing."""

    @property
    def address(self) -> str:
        """`host:port/database`."""
        ...

    def next_offsets(self, stream: str, topic_id: str) -> dict[int, int]:
        """The next offset of each partition by the record of work, on the stream's newest timeline."""
        ...

    def record_of_work(self, stream: str) -> WorkRecord:
        """The record of work on a stream's newest timeline."""
        ...

    def work(self, stream: str) -> tuple[tuple[Work, ...], datetime | None]:
        """A stream's record of work, of every timeline, and when it was last written; None: there is none."""
        ...

    def count_in(self, stream: str, table: str | None, ranges: Sequence[OffsetRange], *, timeline: int) -> RangeCounts:
        """Return how many rows of a table, and records of the stream's quarantine, come from these ranges.

        Raises:
            UnreachableError: the database does not answer.
        """
        ...

    def columns(self, table: str) -> Mapping[str, str]:
        """The columns of a table and their types, as `format_type` spells them; none where it is not there.

        Raises:
            UnreachableError: the database does not answer.
        """
        ...

    def quarantined(self, stream: str, topic: str, topic_id: str) -> list[QuarantineEntry]:
        """Every entry in quarantine of one stream and topic id, by partition and offset."""
        ...

    def redriven(self, stream: str, plan: str) -> Left:
        """Return what has left a stream's quarantine by a plan."""
        ...

    def touched(self, stream: str, plan: str) -> list[OffsetRange]:
        """The entries of the ledger that what has left by a plan lies in."""
        ...

    def redriven_sources(self, stream: str, topic: str, topic_id: str) -> set[SourceAt]:
        """All that has left quarantine by a plan of a redrive, of one stream and topic id."""
        ...

    def quarantine_counts(self, stream: str | None, limit: int) -> list[RuleCount]:
        """Return the number of records in quarantine by stream and rule.

        Raises:
            UnreachableError: the database does not answer, or one of the two takes longer than a minute.
        """
        ...

    def quarantined_record(self, stream: str, source: SourceAt, longest_bytes: int) -> QuarantinedRecord | None:
        """One record in quarantine; of a topic that was deleted and made again, that of the latest one."""
        ...


class SinkBooks(SinkReader, Protocol):
    """Reads what a sink's table, quarantine and ledger say of the same offsets. Changes nothing."""

    def opened(self, stream: str, table: str, key: tuple[str, ...] = ()) -> AbstractContextManager[Books]:
        """The books of one stream, read by one connection.

        Raises:
            UnreachableError: the database does not answer.
            DeclarationError: the sink has no ledger, or a table lacks a column.
        """
        ...


class ActivityReader(SinkReader, Protocol):
    """Reads one sink database. Changes nothing."""

    def readings(self, since: datetime, group: str | None, topic: str | None) -> list[Reading] | None:
        """Every reading since then, by group, topic and client; None where the stream has made no views yet.

        Raises:
            UnreachableError: the database does not answer, or not within a minute.
        """
        ...

    def unreadable(self) -> list[UnreadableRecords]:
        """Return what of the coordinator's log could not be read, ever, by version."""
        ...
