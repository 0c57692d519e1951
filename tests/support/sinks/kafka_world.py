"""A sink of topics, under the contract of `support.sinks.worlds`: a real broker, a real group, the control database."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING

from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import AdminClient

from millrace.adapters.kafka.log import KafkaLog
from millrace.adapters.kafka.reader import TopicReader
from millrace.adapters.kafka.topics import KafkaTopicAdmin
from millrace.adapters.sinks.aside import Aside
from millrace.adapters.sinks.kafka.output import RowsProducer
from millrace.adapters.sinks.kafka.sink import KafkaSink
from millrace.domain.declaration import pipeline as declaration
from millrace.domain.declaration.pipeline import Column, ColumnType, Key, Topic, ValueFormat, ValueSchema
from millrace.domain.groups.commits import Committed, stream_commits
from millrace.domain.sinks.origin import Origin
from millrace.domain.topics.changes import NewTopic
from millrace.domain.topics.offsets import OffsetRange, TopicPartition
from millrace.domain.topics.sources import TopicRecord
from millrace.reader import Deduplicator
from millrace.settings import KafkaSettings
from support.sinks.aside_world import AsideWorld
from support.sinks.worlds import TOPIC, TOPIC_ID, Commit, Row, at_second
from support.topics.new import create_topics
from support.waiting import result_of

if TYPE_CHECKING:
    from millrace.embedded.stack import Stack

PARTITIONS = 3
VALUE = ValueSchema(
    ValueFormat.JSON,
    (
        Column("customer", ColumnType.STRING, required=True),
        Column("amount", ColumnType.DECIMAL, precision=12, scale=2),
    ),
)


class SharingSink(KafkaSink):
    """A sink whose tasks take idle producers of other worlds and this epoch: a new one waits 0.5 s for its id."""

    def rows_writer(self, timeline: int, ranges: Sequence[OffsetRange], *, in_order: bool = True) -> RowsProducer:
        writer = super().rows_writer(timeline, ranges, in_order=in_order)
        assert isinstance(writer, RowsProducer)
        return replace(writer, client_id=f"millrace.worlds#{writer.epoch}")


class KafkaWorld(AsideWorld):
    """Topics of one stream's, which reads from two partitions of another.

    Args:
        stack: with Kafka and PostgreSQL.
        name: of the world.
        topics: what it writes to, as declared; by default one with a key, of three partitions.
        by_column: whether rows name theirs.
        settings: of the topics, for Kafka.
        own_clients: whether its tasks keep producers of their own.
    """

    at_once = True

    def __init__(
        self,
        stack: Stack,
        name: str,
        topics: Sequence[Topic] = (),
        *,
        by_column: bool = False,
        settings: Mapping[str, str] = {},
        own_clients: bool = False,
    ) -> None:
        self.secret = "secret of a world"
        self._sink = KafkaSink if own_clients else SharingSink
        self.kafka = KafkaSettings({**stack.settings().kafka().librdkafka, "sasl.password": self.secret})
        self.control = stack.settings().postgres("millrace_control")
        self.stream, self.group, self.reads = f"{name}.s", f"millrace.{name}.s", f"{name}.in"
        self.topics = tuple(topics) or (Topic(f"{name}.out", name, key=Key("customer"), value=VALUE),)
        self.by_column = by_column
        self.admin = AdminClient({**self.kafka.librdkafka, "log_level": 0})
        config = {"retention.ms": "-1", **settings}
        made = [NewTopic(topic.name, PARTITIONS, 1, config) for topic in self.topics]
        create_topics(KafkaTopicAdmin(self.kafka), NewTopic(self.reads, 2, 1, {}), *made)
        self._log = KafkaLog(self.kafka, client_id="world")

    def sink(self, epoch: int, instance: str = "") -> KafkaSink:
        identity = self.identity(epoch, instance)
        return self._sink(
            self.kafka,
            identity,
            declaration.KafkaSink(tuple(topic.name for topic in self.topics), self.by_column),
            self.topics,
            admin=KafkaTopicAdmin(self.kafka),
            commits=self.commits,
            aside=Aside(self.control, identity),
        )

    # The group

    def commits(self) -> dict[TopicPartition, Committed]:
        asked = [TopicPartition(self.reads, TOPIC_ID, number) for number in (0, 1)]
        return {
            TopicPartition(TOPIC, TOPIC_ID, number): made
            for (_, number), made in self._log.committed(self.group, asked).items()
        }

    def commit_group(self, epoch: int, timeline: int, positions: Mapping[TopicPartition, int]) -> None:
        self._commit({p.partition: made for p, made in stream_commits(self.stream, epoch, timeline, positions).items()})

    def reset_group(self, positions: Mapping[int, int]) -> None:
        """As the stock tool does."""
        self._commit({number: Committed(offset) for number, offset in positions.items()})

    def _commit(self, made: Mapping[int, Committed]) -> None:
        offsets = [ClientTopicPartition(self.reads, n, one.offset, one.metadata) for n, one in made.items()]
        asked = [ConsumerGroupTopicPartitions(self.group, offsets)]
        for future in self.admin.alter_consumer_group_offsets(asked).values():
            result_of(future, what="the group's commit")

    # What it holds

    def records(self, topic: str = "") -> list[TopicRecord]:
        """All of a topic, each partition in its order."""
        return list(TopicReader(self.kafka).committed(topic or self.topics[0].name))

    def written(self) -> list[tuple[int, Row]]:
        """Every row that was written, also twice, with its timeline."""
        return [self._row(record) for record in self.records()]

    def contents(self) -> Counter[tuple[int, Row]]:
        """Every row that is new to one who reads with our reader."""
        seen = Deduplicator()
        topic = self.topics[0].name
        new = [one for one in self.records() if seen.is_new(topic, one.partition, one.headers)]
        return Counter(self._row(record) for record in new)

    def expected(self, history: Iterable[Commit]) -> Counter[tuple[int, Row]]:
        """Each row of each batch once."""
        return Counter((commit.timeline, replace(one, deleted=False)) for commit in history for one in commit.rows)

    def _row(self, record: TopicRecord) -> tuple[int, Row]:
        origin = Origin.of(record.headers)
        assert origin is not None
        assert record.value is not None
        assert record.timestamp_ms is not None
        said = json.loads(record.value, parse_float=Decimal, parse_int=Decimal)
        assert record.key == said["customer"].encode()
        _, partition, offset = origin.source
        second = (record.timestamp_ms - int(at_second(0).timestamp() * 1000)) // 1000
        row = Row(partition, offset, origin.ordinal, said["customer"], said["amount"], second)
        assert (origin.stream, origin.source[0]) == (self.stream, TOPIC_ID)
        return origin.timeline, row
