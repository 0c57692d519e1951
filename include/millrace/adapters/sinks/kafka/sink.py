"""The Kafka side of a stream: topics that it writes to, with its consumer group for a record of work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
import structlog

from millrace.adapters.sinks.aside import Aside, Opened, if_it_can
from millrace.adapters.sinks.kafka.output import RowsProducer
from millrace.adapters.sinks.kafka.values import TOPIC_COLUMN, Target
from millrace.domain.declaration.pipeline import KafkaSink as DeclaredSink
from millrace.domain.declaration.pipeline import Topic
from millrace.domain.groups.commits import CommitMetadata, Committed
from millrace.domain.sinks.batch import BatchCounts, Identity, Written
from millrace.domain.streams.position import WorkRecord
from millrace.domain.topics.offsets import OffsetRange, TopicPartition
from millrace.errors import (
    Code,
    DeclarationError,
    SinkExhaustedError,
    SinkUnreachableError,
    UnreachableError,
)
from millrace.ports.kafka import TopicAdmin
from millrace.ports.sinks import Quarantine, TaskWriter
from millrace.settings import KafkaSettings

log = structlog.get_logger()

Commits = Callable[[], Mapping[TopicPartition, Committed]]


class KafkaSink:
    """Topics that a stream writes to (`SinkStore`).

    Guarantees: at least once. The group is committed after all rows of a batch are acknowledged by all replicas in
    sync; its bad records are in quarantine before any of its rows is written, but for those that the brokers refuse.
    Rows carry their origin (`domain.sinks.origin`), by which `millrace.reader` leaves out what came twice: at most one
    batch for each try of it.
    Does not guarantee: that nothing is written twice, or that an older epoch writes nothing after `take_over` has
    returned. Its commits are refused, and it ends; what it was writing then may come late, and in a compacted topic
    stay as the last of its key until that key comes again. Not that the rows of one record come together: where one of
    them is refused in a later block than another, that one has been written.

    Args:
        settings: the cluster.
        identity: who writes.
        sink: as declared.
        topics: the topics, as declared.
        admin: tells what they are like.
        commits: asks for the group's commits of all partitions that the stream reads, as they are now.
        aside: keeps fence, timelines and quarantine.
        stops: whether a row that is refused ends the stream, so that no later one of its source partition is written.
    """

    metadata: tuple[str, ...] = ("_timestamp", "_deleted")

    def __init__(
        self,
        settings: KafkaSettings,
        identity: Identity,
        sink: DeclaredSink,
        topics: Sequence[Topic],
        *,
        admin: TopicAdmin,
        commits: Commits,
        aside: Aside,
        stops: bool = False,
    ) -> None:
        self.where = sink.named
        self.quarantine: Quarantine | None = aside
        self._settings = settings
        self._identity = identity
        self._sink = sink
        self._topics = topics
        self._admin = admin
        self._commits = commits
        self._aside = aside
        self._stops = stops
        self._targets: Mapping[str, Target] = {}
        self._timeline = 0
        self._done: dict[TopicPartition, int] = {}
        self._unbegun = False

    # A life's beginning

    def take_over(self) -> None:
        """Raise the fence beside the sink: an older epoch puts nothing into quarantine any more, and opens nothing."""
        self._aside.take_over()

    def check_fence(self) -> None:
        """Learn whether a newer epoch has raised the fence; where its database is away, the group says who may go on.

        Raises:
            FencedError: it has.
        """
        try:
            self._aside.check_fence()
        except (SinkUnreachableError, SinkExhaustedError) as error:
            log.warning("fence_not_asked", error=str(error))

    def read_record(self) -> WorkRecord:
        """What the group's own commits say, on the newest timeline that was opened."""
        timeline, opened = self._aside.timeline()
        record = work_record(self._identity.stream, timeline, opened, self._commits())
        self._timeline, self._done = record.timeline, dict(record.next_offsets)
        return record

    def open_positions(self, timeline: int, positions: Mapping[TopicPartition, int]) -> None:
        """Put on record where each of these partitions begins on a timeline; twice is once."""
        self._aside.open_positions(timeline, positions)
        if timeline > self._timeline:
            self._done = {}
        self._timeline, self._unbegun = timeline, True
        self._done |= positions

    def prepare(self, columns: pa.Schema) -> None:
        """See that the topics are there and take these columns.

        Raises:
            DeclarationError: a column is missing, is of another type, or goes nowhere.
            UnreachableError: a topic is not there, or the cluster does not answer.
            TopicAccessError: a topic may not be described.
        """
        observed = self._admin.observe([topic.name for topic in self._topics])
        if missing := [topic.name for topic in self._topics if topic.name not in observed]:
            raise UnreachableError(
                f"topic {', '.join(missing)} does not exist",
                where=f"stream {self._identity.stream}",
                next_step="run `topics plan` of its pipeline to see what is missing, then the DAG "
                "PIPELINE.topics to create it",
                code=Code.MISSING_TOPIC,
            )
        targets = {t.name: Target.of(t, observed[t.name], self._identity.stream) for t in self._topics}
        self._check(columns, targets)
        self._targets = targets
        self._aside.prepare_staging()
        self._aside.look_at_quarantine(list(self._done))
        self._begin()

    def _check(self, columns: pa.Schema, targets: Mapping[str, Target]) -> None:
        where = f"the output of the app for {self.where}"
        taken = {column.name for target in targets.values() for column in target.columns}
        if self._sink.by_column:
            taken.add(TOPIC_COLUMN)
            index = columns.get_field_index(TOPIC_COLUMN)
            if index < 0 or columns.field(index).type != pa.string():
                raise DeclarationError(
                    f"the app returns no text column `{TOPIC_COLUMN}`, which names the topic of each row",
                    where=where,
                    next_step=f"add it in the transform, with one of: {', '.join(targets)}",
                    code=Code.WRONG_TRANSFORM,
                )
        for target in targets.values():
            target.check(columns, where)
        if lost := [name for name in columns.names if name not in taken]:
            raise DeclarationError(
                f"no target topic of the stream declares the column {', '.join(f'`{name}`' for name in lost)}",
                where=where,
                next_step="drop it in the transform, or add it to the topic's schema",
                code=Code.WRONG_TRANSFORM,
            )

    def _begin(self) -> None:
        """Say that work may go on from here: who moves the group from now on moves the stream."""
        self._aside.reached(self._timeline, self._done, begun=True)
        self._unbegun = False

    # Batches

    def begin_batch(self) -> None:
        """Partitions that are new since the start are begun, too; what was written before stays written."""
        if self._unbegun:
            self._begin()

    def rows_writer(self, timeline: int, ranges: Sequence[OffsetRange], *, in_order: bool = True) -> TaskWriter:
        """Writes rows at once; where they come in no order, their records say so."""
        return RowsProducer(
            settings=self._settings,
            client_id=f"millrace.{self._identity.application_name}",
            stream=self._identity.stream,
            epoch=self._identity.epoch,
            timeline=timeline,
            ranges=tuple(ranges),
            targets=self._targets,
            by_column=self._sink.by_column,
            in_order=in_order,
            stops=self._stops,
        )

    def bad_records_writer(self) -> TaskWriter:
        """Writes bad records to the staging table beside the sink, emptied first."""
        self._aside.begin_batch()
        return self._aside.bad_records_writer()

    def commit_batch(self, timeline: int, ranges: Sequence[OffsetRange], written: Written) -> BatchCounts:
        """All rows are there by now; the group is to be committed next. What was refused goes to quarantine."""
        kept = self._aside.keep(timeline, ranges, written) if written.refused else written.bad_records
        self._done |= {entry.partition: entry.next for entry in ranges}
        return BatchCounts(written.rows, kept)

    def waits_for(self) -> str:
        """Whom the database beside the sink keeps waiting for."""
        return self._aside.waits_for()

    def discard(self) -> None:
        """Write how far the work came, for a group that forgets or is moved and moved back; drop the staging table.

        That database may be away or say no: neither is needed for the next start, which drops the table.

        Raises:
            FencedError: a newer epoch has taken over.
        """
        if_it_can(lambda: self._aside.reached(self._timeline, self._done, begun=False))
        if_it_can(self._aside.discard)

    def close(self) -> None:
        """Hang up."""
        self._aside.close()


def work_record(
    stream: str,
    timeline: int,
    opened: Mapping[TopicPartition, Opened],
    commits: Mapping[TopicPartition, Committed],
) -> WorkRecord:
    """The record of work, where a group's own commits are that.

    A commit that is not the stream's own stands in the place of one that was. What had been done then, nobody knows
    where a life has not ended in order: at least what was written aside. Where it has, and where it died before it
    began, that is exactly what was done, and a commit there moves nothing.

    Args:
        stream: PIPELINE.STREAM.
        timeline: the newest that was opened; 0: none.
        opened: where it stands on each partition.
        commits: the group's, of the partitions that are there now.
    """
    said = {partition: _said(stream, made) for partition, made in commits.items()}
    own = {
        TopicPartition(partition.topic, one.topic_id, partition.partition): one
        for partition, one in said.items()
        if one
    }
    foreign = {partition: made.offset for partition, made in commits.items() if said[partition] is None}
    newest = max([timeline, *(one.timeline for one in own.values())])
    done = {p: one.offset for p, one in own.items() if one.timeline == newest or p not in opened or newest > timeline}
    moved = {p for p in foreign if p in opened and opened[p].begun}
    if newest > timeline:
        log.warning("timelines_are_older", of_the_group=newest, written_aside=timeline)  # another database, or a backup
        opened, moved = {}, set(foreign)
        done |= foreign
    done |= {p: max(stood.done, done.get(p, 0)) for p, stood in opened.items()}
    first = {p: opened[p].first if p in opened else offset for p, offset in done.items()}
    return WorkRecord(newest, done, first, frozenset(moved))


def _said(stream: str, made: Committed) -> CommitMetadata | None:
    """What a commit says of itself, where the stream has made it for this very offset."""
    said = CommitMetadata.decode(made.metadata)
    return said if said is not None and said.stream == stream and said.offset == made.offset else None
