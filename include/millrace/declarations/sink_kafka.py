"""`writes: {kafka: ...}`: topics of the pipeline's cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import ConfigDict, Field

from millrace.declarations.fields import TopicName
from millrace.declarations.findings import Place
from millrace.declarations.name_list import NameList
from millrace.declarations.reader import Mapping, Scalar, Sequence
from millrace.declarations.shapes import Document
from millrace.declarations.sink_kind import Say, SinkKind, StreamPart
from millrace.declarations.topic_document import TopicDocument
from millrace.declarations.topic_names import names_in
from millrace.domain.declaration.pipeline import ColumnType, KafkaSink, ValueFormat

TOPIC_COLUMN = "topic"
"""The column of an app's rows that names the topic of each, where there are several."""
KEY_TYPES = (ColumnType.STRING, ColumnType.TINYINT, ColumnType.SMALLINT, ColumnType.INT, ColumnType.BIGINT)
"""The types whose values have one text form, which is the record's key."""
MOST_TOPICS = 100
TopicNames = Annotated[
    list[TopicName], Field(json_schema_extra={"minItems": 1, "maxItems": MOST_TOPICS, "uniqueItems": True})
]


class KafkaDocument(Document):
    """Topics of the pipeline's cluster: one, or several of which each row names its own."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": ["topic"]}, {"required": ["topics"]}]})

    topic: TopicName | None = None
    topics: TopicNames | None = None


class KafkaKind(SinkKind[KafkaDocument, KafkaSink]):
    """Topics: each must be declared, and able to take the rows."""

    word = "kafka"
    document = KafkaDocument
    example = "{topic: shop.purchases}"
    service = "Kafka"
    examples = {"topic": "shop.purchases", "topics": "[shop.purchases, shop.returns]"}  # noqa: RUF012

    def build(self, document: KafkaDocument) -> KafkaSink:
        """Return the value; rows name their topic where the file has a list, also of one."""
        if document.topic is not None:
            return KafkaSink((document.topic,))
        return KafkaSink(tuple(document.topics or ()), by_column=True)

    def show(self, sink: KafkaSink) -> Iterator[tuple[str, str]]:
        """Return the topics."""
        yield "topics" if sink.by_column else "topic", ", ".join(sink.topics)

    def check(self, say: Say, stream: StreamPart, document: KafkaDocument | None) -> None:
        """Add what is wrong with the list of topics."""
        sink = stream.tree.get("writes", "kafka")
        if not isinstance(sink, Mapping):
            return
        place = stream.place("writes", "kafka")
        named = [name for name in ("topic", "topics") if name in sink.entries]
        if not named:
            step = f"write `topic: {self.examples['topic']}`, or `topics: {self.examples['topics']}`"
            say(place, "the sink names no topic", step)
        elif len(named) > 1:
            step = f"keep `topic`, or keep `topics` where each row names its topic in a column `{TOPIC_COLUMN}`"
            say(place, "the sink has `topic` and `topics`", step)
        topics = sink.get("topics")
        if isinstance(topics, Sequence):
            share = "share them out among several streams"
            several = NameList("the sink", "topic", "the list", MOST_TOPICS, share, self.examples["topics"])
            several.check(say, topics, stream.place("writes", "kafka", "topics"))

    def topics(self, tree: Mapping) -> Iterator[tuple[Place, str]]:
        """Return the topics that a stream's tree says it writes to."""
        one, several = tree.get("writes", "kafka", "topic"), tree.get("writes", "kafka", "topics")
        yield from names_in(one if isinstance(one, Scalar) else None)
        yield from names_in(several if isinstance(several, Sequence) else None)

    def misfits(self, tree: Mapping, name: str, topic: TopicDocument) -> Iterator[tuple[str, str]]:
        """Return why a topic cannot take the rows: by the type of its key, or a column that has another meaning."""
        if topic.value is None or topic.value.format is ValueFormat.BYTES:
            return
        columns = topic.value.columns
        key = next((column for column in columns if topic.key is not None and column.name == topic.key.field), None)
        if key is not None and key.type not in KEY_TYPES:
            types = f"{', '.join(each.value for each in KEY_TYPES[:-1])} or {KEY_TYPES[-1].value}"
            what = (
                f"the key of a record is the text of its field `{key.name}` of the topic `{name}`, "
                f"and {key.sql_type} has no single text form"
            )
            yield what, f"give the topic a key that is {types}"
        taken = next((column.name for column in columns if column.name.casefold() == TOPIC_COLUMN), None)
        if taken is not None and tree.get("writes", "kafka", "topics") is not None:
            what = f"the topic `{name}` has a column `{taken}`, and with `topics` that column names the topic of a row"
            yield what, "write to it with `topic`, from a stream of its own, or rename the column"
