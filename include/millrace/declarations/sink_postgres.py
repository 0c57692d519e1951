"""`writes: {postgres: ...}`: a table in PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Items
from typing import Annotated

from pydantic import Field

from millrace.declarations.fields import Table, choice
from millrace.declarations.findings import Finding, Place, Severity, finding
from millrace.declarations.name_list import NameList
from millrace.declarations.reader import Scalar, Sequence
from millrace.declarations.shapes import ConnectionName, Document, FieldName
from millrace.declarations.sink_kind import Claim, Read, Say, SinkKind, StreamPart
from millrace.declarations.topic_document import TopicDocument
from millrace.domain.declaration.pipeline import Cleanup, PostgresSink, SinkMode, Tombstones, ValueFormat
from millrace.domain.declaration.sinks import SYSTEM_COLUMNS

MOST_KEY_COLUMNS = 16
KeyColumns = Annotated[
    list[FieldName], Field(json_schema_extra={"minItems": 1, "maxItems": MOST_KEY_COLUMNS, "uniqueItems": True})
]
Mode = Annotated[SinkMode, choice(SinkMode)]


class PostgresDocument(Document):
    """A table in PostgreSQL."""

    connection: ConnectionName
    table: Table
    mode: Mode = SinkMode.APPEND
    key: KeyColumns = Field(default_factory=list)


class PostgresKind(SinkKind[PostgresDocument, PostgresSink]):
    """A table: one stream writes it, and a key says which row of it another one replaces."""

    word = "postgres"
    document = PostgresDocument
    example = "{connection: millrace_sink, table: shop.purchases}"
    service = "PostgreSQL"
    tabular = True
    examples = {"connection": "millrace_sink", "table": "shop.purchases", "key": "[customer_id]"}  # noqa: RUF012
    not_yet = {  # noqa: RUF012
        "subject": "naming a row's person (`postgres.subject`)",
        "shards": "sharding a sink (`postgres.shards`)",
    }

    def build(self, document: PostgresDocument) -> PostgresSink:
        """Return the value."""
        return PostgresSink(document.connection, document.table, document.mode, tuple(document.key))

    def show(self, sink: PostgresSink) -> Iterator[tuple[str, str]]:
        """Return the table, and how rows meet what it holds."""
        yield "connection", sink.connection
        yield "table", sink.table
        yield "mode", sink.mode.value
        if sink.key:
            yield "key", ", ".join(sink.key)

    def claims(self, document: PostgresDocument) -> Iterator[Claim]:
        """Return the table."""
        yield Claim("table", document.connection, document.table, owner=document.table)

    def check(self, say: Say, stream: StreamPart, document: PostgresDocument | None) -> None:
        """Add what is wrong with the key: said of a sink with `mode: upsert`, and of no other."""
        if document is None:
            return
        place, key = stream.place("writes", "postgres", "key"), stream.tree.get("writes", "postgres", "key")
        if document.mode is not SinkMode.UPSERT:
            if key is not None:
                what = "a sink with `mode: append` keeps every row, so it has no `key`"
                say(place, what, "remove `key`, or write `mode: upsert`")
            return
        if "quality" in stream.tree.entries:
            what = "quality rules need appended rows, and this sink has `mode: upsert`"
            say(stream.place("quality"), what, "remove `quality`, or write `mode: append`")
        if key is None:
            what = "a sink with `mode: upsert` keeps the last row of each key, and this one has no `key`"
            step = f"add `key: {self.examples['key']}`: the columns that identify a row"
            say(place, what, step)
        elif isinstance(key, Sequence):
            self._key_columns(say, key, place)

    def _key_columns(self, say: Say, key: Sequence, place: Place) -> None:
        fewest = "name the fewest that identify a row"
        columns = NameList("the key", "column", "the key", MOST_KEY_COLUMNS, fewest, self.examples["key"], str.casefold)
        columns.check(say, key, place)
        for item in key.items:
            if isinstance(item, Scalar) and item.value in SYSTEM_COLUMNS:
                what = (
                    f"PostgreSQL has a system column `{item.value}` in every table, so no column of rows has this name"
                )
                say(item.place, what, "name another column, and write it in the app")

    def advice(self, stream: StreamPart, document: PostgresDocument, reads: Items[Read]) -> Iterator[Finding]:
        """Return warnings of keys, and of columns that no table can have.

        Records of one key have an order within one partition only. The topic's key decides if they share one. A
        tombstone has its topic's key alone, so it deletes a row only if the row's key has no other column.
        """
        for read in reads:
            found = [*_system_columns(read.name, read.topic)]
            if document.mode is SinkMode.UPSERT:
                found += _scattered(read.name, read.topic, document.key)
                found += _undeleted(read.name, read.topic, document.key)
            for what, step in found:
                yield finding(read.place, what, step, Severity.WARNING)


def _system_columns(name: str, topic: TopicDocument) -> Iterator[tuple[str, str]]:
    """Return columns that no table can have; whether the app renames them shows at the start."""
    columns = topic.value.columns if topic.value else ()
    for column in [each.name for each in columns if each.name in SYSTEM_COLUMNS]:
        what = (
            f"the topic `{name}` has a column `{column}`, and PostgreSQL has a system column of this name in "
            "every table: the stream does not start if the app writes it"
        )
        yield what, f'rename it in the app: col("{column}").alias("record_{column}")'


def _scattered(name: str, topic: TopicDocument, columns: Items[str]) -> Iterator[tuple[str, str]]:
    """Return why records of one row may lie in several partitions; a wider key would lose the topic's deletes."""
    if topic.key is None:
        what = f"the topic `{name}` declares no key"
        step = f"declare its key, as `key: {{field: {columns[0]}}}`"
    elif topic.key.field not in columns:
        what = f"the topic `{name}` has the key `{topic.key.field}`, which is not a column of the sink's key"
        if _deletes(topic) or _compacted(topic):
            step = _narrowed(topic.key.field)
        else:
            step = f"add `{topic.key.field}` to the sink's key if it belongs there"
    else:
        return
    what += ": records of one row may come from several partitions, and then the latest timestamp decides"
    yield what, step + ", or check that its timestamps order its records"


def _undeleted(name: str, topic: TopicDocument, columns: Items[str]) -> Iterator[tuple[str, str]]:
    """Return why records that stand for deletes would go to quarantine, and their rows stay."""
    if topic.key is None or topic.value is None or topic.value.format is ValueFormat.BYTES:
        return
    field = topic.key.field
    unknown = [column for column in columns if column != field]
    if _deletes(topic) and unknown:
        named = ", ".join(f"`{column}`" for column in unknown)
        what = (
            f"a tombstone of the topic `{name}` knows `{field}` and no other column, and the sink's key has {named}: "
            "if the app does not derive it, the tombstone goes to quarantine, and its row stays"
        )
        yield what, f"{_narrowed(field)}, or derive {named} from `{field}` alone in the app"
    elif _compacted(topic) and not _deletes(topic):
        what = (
            f"the topic `{name}` is compacted, and without `tombstones: delete` its deletes go to quarantine and their "
            "rows stay; compaction may remove them from the topic before a rewind"
        )
        step = "add `tombstones: delete` to its `value`"
        yield what, f"{step}, and {_narrowed(field)}" if unknown else step


def _narrowed(field: str) -> str:
    return f"make `{field}` alone the sink's key, as `key: [{field}]`"


def _deletes(topic: TopicDocument) -> bool:
    return topic.value is not None and topic.value.tombstones is Tombstones.DELETE


def _compacted(topic: TopicDocument) -> bool:
    return topic.cleanup in (Cleanup.COMPACT, Cleanup.COMPACT_DELETE)
