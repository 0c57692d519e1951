"""Logs and records of topics: bounds, bounded reads, exact writes of a restore, and unread records."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Protocol

from millrace.domain.archive.restore.records import Restored
from millrace.domain.groups.commits import Committed
from millrace.domain.retention.headroom import Headroom
from millrace.domain.retention.readers import FirstRecords
from millrace.domain.rewind.time_travel import PartitionTimes, RecordAt
from millrace.domain.streams.position import LogBounds
from millrace.domain.topics.offsets import TopicPartition
from millrace.domain.topics.sources import TopicRecord
from millrace.errors import FencedError


class TopicLogs(Protocol):
    """Reads topics' ids and bounds and groups' commits of one cluster; changes nothing."""

    def partitions(self, topics: Collection[str]) -> list[TopicPartition]:
        """Every partition of these topics, with the ids the topics have now; a topic that is not there has none.

        Raises:
            UnreachableError: no broker answered in time.
        """
        ...

    def leaders(self, topics: Collection[str]) -> dict[TopicPartition, bool]:
        """Every partition of these topics, and whether it has a leader now.

        Raises:
            UnreachableError: no broker answered in time.
        """
        ...

    def bounds(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, LogBounds]:
        """The log start and the read_committed end of each partition, in two requests a broker.

        Raises:
            UnreachableError: a partition's leader did not answer in time.
        """
        ...

    def ends(
        self, partitions: Collection[TopicPartition], within: timedelta | None = None
    ) -> dict[TopicPartition, int]:
        """Return the read_committed end (last stable offset) of each partition, by one request a broker.

        Raises:
            UnreachableError: a partition's leader did not answer in time.
        """
        ...

    def times(self, partitions: Collection[TopicPartition], time_ms: int) -> dict[TopicPartition, PartitionTimes]:
        """Bounds of each partition, and its records about a time, in four requests a broker.

        Raises:
            UnreachableError: a partition's leader did not answer in time.
        """
        ...

    def firsts(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, RecordAt | None]:
        """The first record that each partition holds, in one request a broker; None where that cannot be told.

        Raises:
            UnreachableError: a partition's leader did not answer in time.
        """
        ...

    def committed(self, group: str, partitions: Collection[TopicPartition]) -> dict[tuple[str, int], Committed]:
        """A group's commits of these partitions, by topic and number; without those it has not committed.

        Raises:
            UnreachableError: the group's coordinator did not answer in time, or not for every partition.
        """
        ...


class TopicRecords(Protocol):
    """Reads what is committed in topics of one cluster."""

    def partitions(self, topic: str) -> list[int]:
        """The topic's partition numbers.

        Raises:
            DeclarationError: the topic does not exist.
            UnreachableError: the broker does not answer.
        """
        ...

    def ends(self, topic: str) -> dict[int, int]:
        """The next committed offset of each partition: where a reader of committed records stands when it is done."""
        ...

    def committed(
        self, topic: str, *, firsts: Mapping[int, int] | None = None, progress: Callable[[int], None] | None = None
    ) -> Iterator[TopicRecord]:
        """Every committed record the topic holds now, of partitions in `firsts` from that offset on.

        Raises:
            DataLossError: the log no longer reaches back to where one of `firsts` lies, or not up to there.
            DeclarationError: the topic does not exist.
            RefusedError: a transaction stays open, so what is committed cannot be told.
            UnreachableError: the broker does not answer.
        """
        ...

    def settled(self, topic: str) -> Iterator[TopicRecord]:
        """Every committed record below the last stable offset: no open transaction is waited for.

        Raises:
            DataLossError: records expired before they were read.
            DeclarationError: the topic does not exist.
            UnreachableError: the broker does not answer.
        """
        ...

    def between(self, topic: str, partition: int, first: int, end: int) -> Iterator[TopicRecord]:
        """Every committed record of one partition with `first <= offset < end`.

        Raises:
            DataLossError: the log no longer reaches back to `first`.
            DeclarationError: the topic does not exist.
            UnreachableError: the broker does not answer.
        """
        ...

    def first_records(self, asked: Mapping[tuple[str, int], tuple[int, int]], within: timedelta) -> FirstRecords:
        """The first committed record of each partition from an offset on, of many partitions at once."""
        ...


class RestoreTarget(Protocol):
    """Writes with librdkafka, and from the first record of timestamp 0 on with a slower client that can."""

    def glance(self) -> Iterator[TopicRecord]:
        """Return what is committed in the topic below transactions that are open; older restores go on.

        Raises:
            UnreachableError: the broker does not answer.
        """
        ...

    def fence(self) -> None:
        """End what an older restore had open; from here on it can write no more.

        Raises:
            RefusedError: the broker does not let this user write.
            UnreachableError: the broker does not answer.
        """
        ...

    def look(self, *, anew: bool = False) -> Iterator[TopicRecord]:
        """Every committed record in the topic that no look before this one has seen; all of them where it is `anew`.

        Raises:
            DataLossError: records behind the last look are gone, or the log ends before it.
            RefusedError: a transaction of somebody else stays open.
            UnreachableError: the broker does not answer.
        """
        ...

    def takes(self, records: Sequence[Restored]) -> bool:
        """Return whether the client at work can write these records exactly."""
        ...

    def become_exact(self) -> None:
        """Go on with the client that takes every record.

        Raises:
            RefusedError: the client cannot be used with this connection, or the broker says no.
            UnreachableError: the broker does not answer.
        """
        ...

    def write(self, records: Sequence[Restored]) -> None:
        """Write the records in one transaction: all of them, or none.

        Raises:
            FencedError: another restore has taken over, or the transaction lasted too long.
            RefusedError: the topic does not take a record, or the broker does not let this user write.
            UnreachableError: the broker does not answer.
        """
        ...

    def taken_over(self) -> FencedError:
        """Return what an older restore learns of a newer one."""
        ...

    def close(self) -> None:
        """End the client; what was not committed counts as never written."""
        ...


class UnreadLogs(Protocol):
    """Looks at what is not read of the logs of one cluster."""

    def least(self, positions: Mapping[TopicPartition, int]) -> Headroom | None:
        """The unread record that may be deleted first; None: none may, by what is known.

        Raises:
            UnreachableError: a broker does not answer.
            DataLossError: what was unread has been deleted while it was looked at.
        """
        ...
