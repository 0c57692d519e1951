"""What the coordinator's log says of consumer groups: their commits, their members, and what nobody here can read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from millrace.runtime.formats.coordinator_log import (
    OFFSETS_TOPIC,
    ClassicGroup,
    Commit,
    ConsumerAssignment,
    ConsumerMember,
    Entry,
    Unreadable,
    decode,
)

OWN_GROUP = "millrace.activity.groups"
"""Its own commits are left out: each would be the next batch's record."""

_SOURCE = "struct<topic: string, topic_id: string, partition: int, offset: bigint, timestamp: timestamp>"
_FACTS = (
    ("kind", "string", pa.string()),
    ("group_id", "string", pa.string()),
    ("topic", "string", pa.string()),
    ("partition", "int", pa.int32()),
    ("topic_id", "string", pa.string()),
    ("committed", "bigint", pa.int64()),
    ("committed_ms", "bigint", pa.int64()),
    ("member_id", "string", pa.string()),
    ("client_id", "string", pa.string()),
    ("client_host", "string", pa.string()),
    ("instance", "string", pa.string()),
    ("assigned", "string", pa.string()),
    ("version", "int", pa.int32()),
    ("error", "string", pa.string()),
)
_LATEST_MS = 253_402_300_799_999  # the end of the year 9999
_LAST = ("commit", "unreadable")  # kinds of which a batch keeps the last of each key, and counts them


def transform(inputs: Mapping[str, DataFrame], tables: Mapping[str, DataFrame]) -> DataFrame:
    """One row for each fact; `kind` says which.

    - `commit`: the last commit of a group and partition in the batch: `committed` (the offset), `committed_at`, and
      how many `records` of the batch committed it. Commits that were taken back or expired are none.
    - `classic`: a member of a classic group and what it has (`assigned`: partitions by topic, as JSON), a row each, at
      one and the same source; one row without `member_id` where the group is empty.
    - `member`: what a member of a KIP-848 group says of itself; without `client_id`: it left.
    - `assignment`: what such a member has from here on; `assigned` names topics by their ids.
    - `unreadable`: records that this release cannot read: how many (`records`), by the `version` in their key.

    Args:
        inputs: `__consumer_offsets` with `key`, `value` and `_source`.
        tables: not used.

    Returns:
        The facts, `records`, `committed_at`, `_ordinal`, and `_source` of the (last) record that says so.
    """
    columns = [("_source", _SOURCE), ("_ordinal", "int"), *((name, kind) for name, kind, _ in _FACTS)]
    log = inputs[OFFSETS_TOPIC].select("key", "value", "_source")
    facts = log.mapInArrow(_facts, ", ".join(f"{name} {kind}" for name, kind in columns))
    every = facts.where(~F.col("kind").isin(*_LAST)).withColumn("records", F.lit(1).cast("bigint"))
    in_time = F.col("committed_ms").between(0, _LATEST_MS)
    committed_at = F.when(in_time, F.timestamp_millis("committed_ms"))
    return _last(facts).unionByName(every).withColumn("committed_at", committed_at).drop("committed_ms")


def _last(facts: DataFrame) -> DataFrame:
    """The last of each group and partition, and of each version that cannot be read, with how many there are.

    In each partition of the log: all of one group lie in one.
    """
    log = {"log_topic_id": "_source.topic_id", "log_partition": "_source.partition"}
    among = ["kind", "group_id", "topic", "partition", "version"]
    others = [name for name in facts.columns if name not in among]
    last = F.max_by(F.struct(*others), F.col("_source.offset")).alias("last")
    grouped = facts.where(F.col("kind").isin(*_LAST)).groupBy(
        *among, *(F.col(column).alias(name) for name, column in log.items())
    )
    return grouped.agg(last, F.count(F.lit(1)).alias("records")).select(*among, "last.*", "records")


def _facts(blocks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    schema = pa.schema([("_ordinal", pa.int32()), *((name, arrow) for name, _, arrow in _FACTS)])
    for block in blocks:
        found: list[dict[str, Any]] = []
        rows: list[int] = []
        pairs = zip(block.column("key").to_pylist(), block.column("value").to_pylist(), strict=True)
        for row, (key, value) in enumerate(pairs):
            for ordinal, fact in enumerate(facts_of(decode(key, value))):
                found.append({"_ordinal": ordinal, **fact})
                rows.append(row)
        source = block.column("_source").take(pa.array(rows, type=pa.int64()))
        facts = pa.RecordBatch.from_pylist(found, schema=schema)
        yield pa.RecordBatch.from_arrays([source, *facts.columns], names=["_source", *schema.names])


def facts_of(entry: Entry) -> list[dict[str, Any]]:
    """The facts in one record, by the names of their columns."""
    match entry:
        case Commit() if entry.offset is not None and entry.group != OWN_GROUP:
            about = {"kind": "commit", "group_id": entry.group, "topic": entry.topic, "partition": entry.partition}
            return [{**about, "topic_id": entry.topic_id, "committed": entry.offset, "committed_ms": entry.at_ms}]
        case ClassicGroup():
            return _classic(entry)
        case ConsumerMember():
            about = {"kind": "member", "group_id": entry.group, "member_id": entry.member_id}
            facts = {"client_id": entry.client_id, "client_host": entry.host, "instance": entry.instance}
            return [{**about, **facts}]
        case ConsumerAssignment():
            about = {"kind": "assignment", "group_id": entry.group, "member_id": entry.member_id}
            return [{**about, "assigned": json.dumps(entry.assigned)}]
        case Unreadable():
            return [{"kind": "unreadable", "version": entry.version, "error": entry.error}]
    return []


def _classic(entry: ClassicGroup) -> list[dict[str, Any]]:
    about = {"kind": "classic", "group_id": entry.group}
    return [
        {
            **about,
            "member_id": member.member_id,
            "client_id": member.client_id,
            "client_host": member.host,
            "instance": member.instance,
            "assigned": json.dumps(member.assigned or {}),
        }
        for member in entry.members
    ] or [about]
