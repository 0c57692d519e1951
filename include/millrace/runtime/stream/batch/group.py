"""The consumer group of a stream and the log it reads: which records a batch has, and where the group stands.

The sink's record of work moves first; the group follows. A crash between the two leaves the group behind, and the next
start resumes from the record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import structlog
from pyspark.sql import DataFrame

from millrace.adapters.kafka.log import KafkaLog
from millrace.adapters.kafka.member import GroupMember
from millrace.domain.groups.commits import stream_commits
from millrace.domain.sinks.batch import BatchCounts
from millrace.domain.topics.offsets import OffsetRange, TopicPartition
from millrace.errors import Code, DataLossError, RecreatedTopicError, UnreachableError
from millrace.runtime.formats.coordinator_log import OFFSETS_TOPIC
from millrace.runtime.stream.batch.constants import StreamConstants
from millrace.runtime.stream.batch.offset_log import of_next_query, read_offset_log
from millrace.runtime.stream.source import holds_only_commits_of

log = structlog.get_logger()

Opening = Callable[[Mapping[TopicPartition, int]], None]
"""Gives partitions a row in the record of work, as `BatchSink.open_positions` does."""


class StreamGroup:
    """The positions of one query, and the group that is committed behind them.

    The positions may be read from any thread; all else is for the one that runs batches.

    Args:
        constants: what the batches have in common.
        member: the driver's membership.
        log: the log of the topics.
        positions: the next offset of each partition, as the record of work has it.
        offset_log: the folder of the query's own offset log.
    """

    def __init__(
        self,
        constants: StreamConstants,
        member: GroupMember,
        log: KafkaLog,
        positions: Mapping[TopicPartition, int],
        offset_log: Path,
    ) -> None:
        self._constants = constants
        self._member = member
        self._log = log
        self._positions = dict(positions)  # replaced as a whole, never changed: another thread reads it
        self.offset_log = offset_log

    @property
    def positions(self) -> Mapping[TopicPartition, int]:
        """The next offset of each partition, as the last batch left them."""
        return dict(self._positions)

    @property
    def topic_ids(self) -> dict[str, str]:
        """The id of each topic that the query began to read."""
        return {partition.topic: partition.topic_id for partition in self._positions}

    def check_member(self) -> None:
        """See that the driver still is the group's member.

        Raises:
            FencedError: it is not.
        """
        self._member.check()

    def ranges(self, batch_id: int) -> list[OffsetRange]:
        """Return the exact range of each partition of a batch, from the query's own offset log.

        Raises:
            FencedError: the driver is no member of the group any more.
            DataLossError: a range ends before the position of its partition.
        """
        self._member.check()
        ends = read_offset_log(self.offset_log / str(batch_id))
        by_name = {(p.topic, p.partition): p for p in self._positions}
        ids = self.topic_ids
        ranges = []
        for (topic, number), end in sorted(ends.items()):
            partition = by_name.get((topic, number)) or TopicPartition(topic, ids[topic], number)
            first = self._positions.get(partition, 0)  # Kafka begins every partition at 0; Spark fails where it cannot
            if end < first:
                raise DataLossError(
                    f"{partition}: the log was cut: the batch ends at {end}, before its first offset {first}",
                    next_step=f"check what happened to the topic, then reset the group {self._constants.stream.group}",
                )
            ranges.append(OffsetRange(partition, first, end))
        return ranges

    def open_new_partitions(self, ranges: Sequence[OffsetRange], open_positions: Opening) -> None:
        """Give partitions that were made since the start a row in the record of work, and a position."""
        new = {entry.partition: entry.first for entry in ranges if entry.partition not in self._positions}
        if new:
            log.info("new_partitions", partitions=[str(partition) for partition in new])
            open_positions(new)
            self._positions = self._positions | new

    def check_topics(self, ids: Mapping[str, str]) -> None:
        """See that the topics are those that were read.

        A topic that was deleted and made again begins at offset 0 with other records under the old numbers.

        Args:
            ids: the id that each topic had.

        Raises:
            RecreatedTopicError: one was made again.
            UnreachableError: one is not there.
        """
        now = {partition.topic: partition.topic_id for partition in self._log.partitions(ids)}
        stream = self._constants.stream.qualified_name
        if changed := sorted(topic for topic in now if now[topic] != ids[topic]):
            raise RecreatedTopicError(
                f"{', '.join(changed)} was deleted and created again while the stream read it",
                where=f"stream {stream}",
                next_step=f"check the new topic; `streams accept {stream} --reason ...` reads it from its beginning",
            )
        if missing := sorted(ids.keys() - now.keys()):
            raise UnreachableError(
                f"{', '.join(missing)} no longer exists: a later topic of its name may be another topic",
                where=f"stream {stream}",
                next_step="find out who deleted the topic; the next start checks again",
                code=Code.MISSING_TOPIC,
            )

    def is_own_echo(self, raw: DataFrame, counts: BatchCounts) -> bool:
        """Return true where a batch holds only what this stream's own commits wrote into the coordinator's log.

        To commit the group for it would write the next such batch, for ever. The record of work has moved, and the
        next start goes by that: a group that is behind it with a commit of ours is no move by anybody (`open_at`).

        Args:
            raw: the records, a frame of `runtime.stream.source.RAW_TYPE`.
            counts: what became of them.
        """
        stream = self._constants.stream
        if OFFSETS_TOPIC not in stream.reads or counts.rows_out or counts.quarantined:
            return False
        return holds_only_commits_of(raw, stream.group)

    def commit(self, ranges: Sequence[OffsetRange]) -> None:
        """Commit the group behind these ranges; the sink's record of work must have moved before.

        Raises:
            FencedError: the driver is no member of the group any more.
            UnreachableError: the broker does not answer.
        """
        constants = self._constants
        behind = {entry.partition: entry.next for entry in ranges}
        self._member.commit(
            stream_commits(constants.stream.qualified_name, constants.epoch, constants.timeline, behind)
        )

    def advance(self, ranges: Sequence[OffsetRange]) -> None:
        """Move the positions behind these ranges; the next batch begins there."""
        self._positions = self._positions | {entry.partition: entry.next for entry in ranges}

    def next_query(self, open_positions: Opening) -> StreamGroup:
        """Return the group as the next query begins, which has an offset log of its own.

        That query must also name partitions that no batch has met, at their beginning.
        """
        ids = self.topic_ids
        there = self._log.partitions(self._constants.stream.reads)
        new = {p: 0 for p in there if p not in self._positions and ids.get(p.topic) == p.topic_id}
        if new:
            open_positions(new)
        log_of_next = of_next_query(self.offset_log)
        return StreamGroup(self._constants, self._member, self._log, self._positions | new, log_of_next)
