"""Rows as records of a declared topic: key, value, and why a row is none."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from millrace.adapters.sinks.row_sources import sources_of
from millrace.adapters.sinks.value_ranges import unheld, unheld_rows
from millrace.adapters.sinks.value_types import arrow_type
from millrace.domain.declaration.pipeline import BYTES_COLUMNS, Cleanup, Column, Topic, ValueFormat
from millrace.domain.sinks.origin import MOST_BYTES
from millrace.domain.topics.changes import ObservedTopic
from millrace.domain.topics.offsets import Source
from millrace.errors import Code, DeclarationError

TOPIC_COLUMN = "topic"
_CONTROL = r"[\x00-\x1f]"
_FRAME_BYTES = 256  # of a batch of one record, and of a record: lengths, times, offsets
_FOR_EVER_MS = 2**62


@dataclass(frozen=True, slots=True)
class Records:
    """Rows of a block as records of a topic, each of the three by row.

    Attributes:
        keys: None: it has none.
        values: None: it deletes its key.
        wrong: why a row is none.
    """

    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    wrong: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Target:
    """A topic that rows are written to, as declared and as the cluster has it.

    Attributes:
        name: the topic.
        columns: what a row gives for it; of a topic of bytes `key` and `value`.
        key: the column that makes the record's key; None: records have none.
        is_json: whether the value is an object of the columns; else it is the column `value`, and `key` the key.
        needs_key: whether a record without a key is refused.
        partitions: how many it has.
        limit_bytes: of a batch of records.
        most_bytes: of a record's key and value.
        behind_ms: how far a timestamp may lie behind now.
        ahead_ms: how far a timestamp may lie ahead of now.
    """

    name: str
    columns: tuple[Column, ...]
    key: str | None
    is_json: bool
    needs_key: bool
    partitions: int
    limit_bytes: int
    most_bytes: int
    behind_ms: int = _FOR_EVER_MS
    ahead_ms: int = _FOR_EVER_MS

    @classmethod
    def of(cls, declared: Topic, observed: ObservedTopic, stream: str) -> Target:
        """A declared topic that is there.

        Args:
            declared: its declaration, with a value.
            observed: what the cluster says of it.
            stream: who writes to it: its name is in each record.
        """
        assert declared.value is not None
        is_json = declared.value.format is ValueFormat.JSON
        cleanup = observed.setting("cleanup.policy") or Cleanup.DELETE.value
        limit = _whole(observed.setting("max.message.bytes"), 1_048_588)
        by_broker = observed.setting("message.timestamp.type") == "LogAppendTime"
        bounds = () if by_broker else ("message.timestamp.before.max.ms", "message.timestamp.after.max.ms")
        behind, ahead = (
            (_whole(observed.setting(key), _FOR_EVER_MS) for key in bounds) if bounds else (_FOR_EVER_MS,) * 2
        )
        return cls(
            declared.name,
            declared.value.columns if is_json else BYTES_COLUMNS,
            declared.key.field if declared.key and is_json else None if is_json else "key",
            is_json,
            declared.key is not None or Cleanup.COMPACT.value in cleanup,
            observed.partitions,
            limit,
            limit - len(stream) - MOST_BYTES - _FRAME_BYTES,
            behind,
            ahead,
        )

    def check(self, given: pa.Schema, where: str) -> None:
        """Refuse an app whose rows lack a column of this topic, or give it another type.

        Raises:
            DeclarationError: names the column.
        """
        for column in self.columns:
            index = given.get_field_index(column.name)
            if index < 0:
                raise DeclarationError(
                    f"the app returns no column `{column.name}`, but topic {self.name} declares it",
                    where=where,
                    next_step="add it in the transform, or remove it from the topic's schema",
                    code=Code.WRONG_TRANSFORM,
                )
            if given.field(index).type != arrow_type(column):
                raise DeclarationError(
                    f"the app returns `{column.name}` as {given.field(index).type}, but topic {self.name} declares "
                    f"{column.sql_type}",
                    where=where,
                    next_step=f'cast it in the transform: col("{column.name}").cast("{column.sql_type.lower()}")',
                    code=Code.WRONG_TRANSFORM,
                )

    def records(self, block: pa.RecordBatch) -> Records:
        """What the rows of a block are as records of this topic.

        Args:
            block: with this topic's columns, and `_deleted`.
        """
        given = {column.name: block.column(column.name) for column in self.columns}
        columns, unheld_values = _held(given)
        deleted = block.column("_deleted")
        keys = pa.nulls(len(block), pa.binary()) if self.key is None else _text(columns[self.key]).cast(pa.binary())
        values = _json(columns) if self.is_json else columns["value"].cast(pa.large_binary())
        values = pc.if_else(pc.fill_null(deleted, True), pa.scalar(None, values.type), values)
        wrong: dict[int, str] = {}
        for row in _rows_of(pc.greater(pc.add(_bytes_of(keys), _bytes_of(values)), self.most_bytes)):
            wrong[row] = f"the record is larger than the {self.most_bytes} bytes that the topic {self.name} takes"
        for row, why in _against_schema(self.columns, given):
            if deleted[row].as_py() is False:
                wrong[row] = f"the topic {self.name} {why}"
        if keys.null_count:
            gone = pc.fill_null(deleted, False)
            needed = pa.array([True] * len(block)) if self.needs_key else gone
            for row in _rows_of(pc.and_(pc.is_null(keys), needed)):
                wrong[row] = f"the topic {self.name} wants a key, and the row has none"
        for row, name, why in unheld_values:
            if deleted[row].as_py() and name != self.key:
                continue  # nothing of it is written but its key
            wrong[row] = f"the topic {self.name} does not take it: `{name}` {why}"
        for row in _rows_of(pc.is_null(deleted)) if deleted.null_count else ():
            wrong[row] = "the column `_deleted` is null"
        return Records(keys.to_pylist(), values.to_pylist(), wrong)


def without_topic(block: pa.RecordBatch, declared: Collection[str]) -> Iterator[tuple[Source, str]]:
    """Yield the source of each row that names none of the declared topics, and why.

    Args:
        block: with the column `topic`, a text of any bytes.
        declared: the names of the topics.
    """
    named = block.column(TOPIC_COLUMN)
    rows = pc.indices_nonzero(pc.invert(pc.is_in(named, pa.array([*declared], named.type))))
    if not len(rows):
        return
    names = named.take(rows)
    not_text = unheld_rows([TOPIC_COLUMN], [names])
    for row, source in enumerate(sources_of(block.take(rows))):
        if row in not_text:
            yield source, f"the row names no topic: {not_text[row]}"
        elif (name := names[row].as_py()) is None:
            yield source, "the row names no topic"
        else:
            yield source, f"the row names the topic {name}, which is not declared for it"


def _against_schema(columns: Sequence[Column], given: Mapping[str, pa.Array]) -> Iterator[tuple[int, str]]:
    """The rows that a topic's schema has something against, and what."""
    for column in columns:
        array = given[column.name]
        if column.required and array.null_count:
            for row in _rows_of(pc.is_null(array)):
                yield row, f"declares `{column.name}` as NOT NULL, and the row has none"
        if pa.types.is_floating(array.type):
            for row in _rows_of(pc.invert(pc.is_finite(array))):
                yield row, f"has JSON, which knows no number {array[row].as_py()} for `{column.name}`"


def _held(columns: Mapping[str, pa.Array]) -> tuple[dict[str, pa.Array], list[tuple[int, str, str]]]:
    """Return the columns with null for each value that no sink takes; and the row, column and reason of each."""
    found, wrong = dict(columns), list[tuple[int, str, str]]()
    for name, array in columns.items():
        for mask, why in unheld(array):
            wrong += [(row, name, why) for row in _rows_of(mask)]
            found[name] = pc.if_else(mask, pa.scalar(None, array.type), found[name])
    return found, wrong


def _json(columns: Mapping[str, pa.Array]) -> pa.Array:
    """Each row as an object with these columns; its bytes."""
    parts: list[Any] = []
    for name, array in columns.items():
        parts += [
            ("," if parts else "{") + json.dumps(name, ensure_ascii=False) + ":",
            pc.fill_null(_token(array), "null"),
        ]
    parts = [pa.scalar(part, pa.large_string()) if isinstance(part, str) else part for part in parts]
    end, nothing = (pa.scalar(text, pa.large_string()) for text in ("}", ""))
    return pc.binary_join_element_wise(*parts, end, nothing).cast(pa.large_binary())


def _token(array: pa.Array) -> pa.Array:
    """A column's values as JSON; null for what JSON does not hold, which is refused."""
    text = _text(array)
    if pa.types.is_timestamp(array.type):
        text = pc.replace_substring(text, " ", "T")
    if pa.types.is_string(array.type):
        if pc.any(pc.match_substring_regex(text, _CONTROL)).as_py():
            quoted = [None if one is None else json.dumps(one, ensure_ascii=False) for one in text.to_pylist()]
            return pa.array(quoted, pa.large_string())
        text = pc.replace_substring(pc.replace_substring(text, "\\", "\\\\"), '"', '\\"')
    elif not (pa.types.is_timestamp(array.type) or pa.types.is_date(array.type)):
        return text
    quote, nothing = (pa.scalar(sign, pa.large_string()) for sign in ('"', ""))
    return pc.binary_join_element_wise(quote, text, quote, nothing)


def _text(array: pa.Array) -> pa.Array:
    """A column's values as Arrow writes them: numbers as JSON has them, times as `2026-05-04 00:00:00.000000Z`."""
    if pa.types.is_binary(array.type):
        return array
    return array.cast(pa.string()).cast(pa.large_string())


def _bytes_of(array: pa.Array) -> pa.Array:
    return pc.fill_null(pc.binary_length(array).cast(pa.int64()), 0)


def _rows_of(mask: pa.Array) -> list[int]:
    """Where a mask is true; null counts as false."""
    found: list[int] = pc.indices_nonzero(pc.fill_null(mask, False)).to_pylist()
    return found


def _whole(text: str, otherwise: int) -> int:
    return min(int(text), _FOR_EVER_MS) if text.isascii() and text.isdigit() else otherwise
