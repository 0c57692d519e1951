"""The topics or the dataset that a stream writes to: what its file says, and whether a topic can take its rows."""

from __future__ import annotations

from collections.abc import Iterator

from millrace.declarations.documents import MOST_TOPICS, StreamDocument, TopicDocument
from millrace.declarations.draft import Draft
from millrace.declarations.fields import is_topic_name
from millrace.declarations.findings import Place
from millrace.declarations.reader import Mapping, Node, Scalar, Sequence
from millrace.declarations.validate import EXAMPLES, Part
from millrace.domain.declaration.pipeline import ColumnType, ValueFormat
from millrace.domain.formats.printable import shown

TOPIC_COLUMN = "topic"
"""The column of an app's rows that names the topic of each, where there are several."""
KEY_TYPES = (ColumnType.STRING, ColumnType.TINYINT, ColumnType.SMALLINT, ColumnType.INT, ColumnType.BIGINT)
"""The types whose values have one text form, which is the record's key."""


def read_topics(tree: Mapping) -> list[tuple[Place, str]]:
    """The topics that a stream's tree says it reads, as far as they can be names."""
    return [*_names(tree.get("reads"))]


def written_topics(tree: Mapping) -> list[tuple[Place, str]]:
    """The topics that a stream's tree says it writes to, as far as they can be names."""
    one = tree.get("writes", "kafka", "topic")
    several = tree.get("writes", "kafka", "topics")
    return [*_named(one if isinstance(one, Scalar) else None), *_names(several)]


def _names(node: Node | None) -> Iterator[tuple[Place, str]]:
    for item in node.items if isinstance(node, Sequence) else ():
        yield from _named(item)


def _named(node: Node | None) -> Iterator[tuple[Place, str]]:
    if isinstance(node, Scalar) and isinstance(node.value, str) and is_topic_name(node.value):
        yield node.place, node.value


def check_sink(draft: Draft, stream: Part[StreamDocument]) -> None:
    """Add to a pipeline's findings what is wrong with a stream's sink in Kafka or in S3 by itself."""
    sink = stream.tree.get("writes", "kafka")
    if sink is None and stream.tree.get("writes", "s3") is None:
        return
    if "quality" in stream.tree.entries:
        where = "S3" if sink is None else "Kafka"
        what = f"quality rules are held against the rows of a table, and this stream writes to {where}"
        step = "remove `quality`; a second stream can read the topic and write its rows to a table"
        draft.say(stream.place("quality"), what, step)
    if not isinstance(sink, Mapping):
        return
    place = stream.place("writes", "kafka")
    named = [name for name in ("topic", "topics") if name in sink.entries]
    if not named:
        step = f"write `topic: {EXAMPLES['topic']}`, or `topics: {EXAMPLES['topics']}`"
        draft.say(place, "the sink names no topic", step)
    elif len(named) > 1:
        step = f"keep `topic`, or keep `topics` where each row names its topic in a column `{TOPIC_COLUMN}`"
        draft.say(place, "the sink has `topic` and `topics`", step)
    topics = sink.get("topics")
    if isinstance(topics, Sequence):
        _several(draft, topics, stream.place("writes", "kafka", "topics"))


def _several(draft: Draft, topics: Sequence, place: Place) -> None:
    if not topics.items:
        draft.say(place, "the sink has no topic", f"name at least one, like {EXAMPLES['topics']}")
    if len(topics.items) > MOST_TOPICS:
        what = f"the sink has {len(topics.items)} topics, more than {MOST_TOPICS}"
        draft.say(place, what, "share them out among several streams")
    seen: set[object] = set()
    for item in topics.items:
        if isinstance(item, Scalar) and not item.broken:
            if item.value in seen:
                draft.say(item.place, f"the topic `{shown(item.value)}` is in the list twice", "remove one of them")
            seen.add(item.value)


def misfits(name: str, topic: TopicDocument, *, by_column: bool) -> Iterator[tuple[str, str]]:
    """Why a sound topic cannot take a stream's rows: what is wrong, and the next step.

    Args:
        name: the topic's.
        topic: what it declares.
        by_column: whether each row names its topic.
    """
    if topic.value is None or topic.value.format is ValueFormat.BYTES:
        return
    columns = topic.value.columns
    key = next((column for column in columns if topic.key is not None and column.name == topic.key.field), None)
    if key is not None and key.type not in KEY_TYPES:
        types = f"{', '.join(each.value for each in KEY_TYPES[:-1])} or {KEY_TYPES[-1].value}"
        what = (
            f"the key of a record is the text of its field `{key.name}` of the topic `{name}`, "
            f"and {key.sql_type} has no one text form"
        )
        yield what, f"give the topic a key that is {types}"
    taken = next((column.name for column in columns if column.name.casefold() == TOPIC_COLUMN), None)
    if by_column and taken is not None:
        what = f"the topic `{name}` has a column `{taken}`, and with `topics` that column names the topic of a row"
        yield what, "write to it with `topic`, from a stream of its own, or rename the column"
