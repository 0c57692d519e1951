"""An archive held against a consumer's records, by plain JSON and plain Parquet; knows nothing of Millrace.

It follows docs/reference/archive.md alone, so a fault that writer and proof share does not hide here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from botocore.exceptions import ClientError

MOST_TOLD = 1000
COLUMNS = ["offset", "timestamp_ms", "timestamp_type", "key", "value", "headers"]


class BucketAccess(Protocol):
    """What is asked of a bucket."""

    def get(self, key: str) -> bytes | None:
        """An object's bytes; None where there is none."""
        ...

    def keys(self, prefix: str) -> Iterable[str]:
        """The keys that begin with a prefix."""
        ...


@dataclass(frozen=True)
class PlainBucket:
    """A bucket by a client of boto3."""

    client: Any
    name: str

    def get(self, key: str) -> bytes | None:
        """An object's bytes; None where there is none."""
        try:
            data: bytes = self.client.get_object(Bucket=self.name, Key=key)["Body"].read()
        except ClientError as error:
            if error.response["Error"]["Code"] in ("NoSuchKey", "404"):
                return None
            raise
        return data

    def keys(self, prefix: str) -> Iterator[str]:
        """The keys that begin with a prefix."""
        for page in self.client.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix):
            yield from (each["Key"] for each in page.get("Contents", ()))


class Record(Protocol):
    """A consumer's record; see `support.topics.plain_consumer.PlainRecord`."""

    partition: int
    offset: int
    timestamp_type: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass
class _Object:
    """An object that a manifest brings, and the greatest log start that was seen until it was written."""

    entry: dict[str, Any]
    sequence: int
    start: int
    end: int  # of the log, looked at after the read

    @property
    def span(self) -> tuple[int, int]:
        return self.entry["first"], self.entry["next"]


@dataclass
class _Partition:
    """What the chain says of one partition."""

    objects: list[_Object] = field(default_factory=list)
    expired: list[tuple[int, int]] = field(default_factory=list)
    start: int = 0


def compare(
    bucket: BucketAccess, topic: str, topic_id: str, records: Sequence[Record], bounds: Mapping[int, Sequence[int]]
) -> list[str]:
    """What is wrong with an archive; empty: nothing.

    Every offset from the log's start to its end has to lie in exactly one object that the chain names: as a record that
    is the consumer's in every field, or as a hole where the consumer has none and that the log, looked at after the
    read, still covered. What has expired is not looked at, and what is archived outside the bounds is not compared.

    Args:
        bucket: where the archive lies.
        topic: whose it is.
        topic_id: of which incarnation.
        records: all that a consumer of committed records got, in any order.
        bounds: log start and last stable offset of each partition, which the records were read in.
    """
    wrong: list[str] = []
    prefix = f"archive/{topic}/{topic_id}/"
    partitions = _chain(bucket, prefix, topic, topic_id, wrong)
    wanted: dict[int, dict[int, Record]] = {number: {} for number in bounds}
    for record in records:
        if wanted[record.partition].setdefault(record.offset, record) is not record:
            wrong.append(f"the consumer has offset {record.offset} of partition {record.partition} twice")
    for number, (start, end) in sorted(bounds.items()):
        held = partitions.pop(number, _Partition())
        wrong += _partition(bucket, f"{prefix}{number}/", held, wanted[number], start, end)
    wrong += [f"partition {number}: archived, and the log has no such partition" for number in partitions]
    return wrong if len(wrong) <= MOST_TOLD else [*wrong[:MOST_TOLD], f"and {len(wrong) - MOST_TOLD} more"]


def _chain(bucket: BucketAccess, prefix: str, topic: str, topic_id: str, wrong: list[str]) -> dict[int, _Partition]:
    partitions: dict[int, _Partition] = {}
    previous, epoch, instance, sequence = "", 0, "", 0
    while (data := bucket.get(f"{prefix}manifest/{sequence:020d}.json")) is not None:
        manifest = json.loads(data)
        said = {name: manifest[name] for name in ("version", "sequence", "previous", "topic", "topic_id")}
        meant = {"version": 1, "sequence": sequence, "previous": previous, "topic": topic, "topic_id": topic_id}
        wrong += [f"manifest {sequence}: {n} is {said[n]!r}, not {meant[n]!r}" for n in said if said[n] != meant[n]]
        takes_over = manifest["kind"] == "takeover"
        same = (manifest["epoch"], manifest["instance"]) == (epoch, instance)
        if manifest["epoch"] < epoch or takes_over != (manifest["epoch"] > epoch) or not (takes_over or same):
            wrong.append(f"manifest {sequence}: {manifest['kind']} of epoch {manifest['epoch']} after epoch {epoch}")
        _take(manifest, partitions, wrong)
        previous, epoch, instance = hashlib.sha256(data).hexdigest(), manifest["epoch"], manifest["instance"]
        sequence += 1
    beyond = sorted(key for key in bucket.keys(f"{prefix}manifest/") if key >= f"{prefix}manifest/{sequence:020d}")
    if beyond or not sequence:
        wrong.append(f"manifest {sequence} is missing{', and there is ' + beyond[0] if beyond else ''}")
    return partitions


def _take(manifest: dict[str, Any], partitions: dict[int, _Partition], wrong: list[str]) -> None:
    """Take in one manifest's looks at the log, its objects, and what it lets expire."""
    seen = {look["partition"]: look for look in manifest["seen"]}
    for number, look in seen.items():
        held = partitions.setdefault(number, _Partition())
        held.start = max(held.start, look["start"])
    for entry in manifest["objects"]:
        held = partitions.setdefault(entry["partition"], _Partition())
        name = f"manifest {manifest['sequence']}, partition {entry['partition']} [{entry['first']}, {entry['next']})"
        if manifest["kind"] == "expiry":
            kept = [each for each in held.objects if each.entry != entry]
            if len(kept) != len(held.objects) - 1:
                wrong.append(f"{name}: expires, and is not one that is kept")
            held.objects = kept
            held.expired.append((entry["first"], entry["next"]))
        elif look := seen.get(entry["partition"]):
            held.objects.append(_Object(entry, manifest["sequence"], held.start, look["end"]))
        else:
            wrong.append(f"{name}: its log was not looked at")


def _partition(
    bucket: BucketAccess, prefix: str, held: _Partition, wanted: Mapping[int, Record], start: int, end: int
) -> Iterator[str]:
    """What is wrong with one partition."""
    spans = [(*each.span, each) for each in held.objects] + [(*span, None) for span in held.expired]
    spans.sort(key=lambda span: span[:2])
    covered = min([start, *(first for first, _, _ in spans[:1])])
    for first, next_, found in spans:
        if first < covered:
            yield f"{prefix}: offsets [{first}, {min(covered, next_)}) lie in more than one object"
        yield from _absent(prefix, max(start, covered), min(first, end), wanted)
        covered = max(covered, next_)
        if found:
            yield from _object(bucket, prefix, found, wanted, start, end)
    yield from _absent(prefix, max(start, covered), end, wanted)


def _absent(prefix: str, first: int, next_: int, wanted: Mapping[int, Record]) -> Iterator[str]:
    if first < next_:
        records = sum(first <= offset < next_ for offset in wanted)
        yield f"{prefix}: offsets [{first}, {next_}) lie in no object; the consumer has {records} records there"


def _object(
    bucket: BucketAccess, prefix: str, found: _Object, wanted: Mapping[int, Record], start: int, end: int
) -> Iterator[str]:
    """What is wrong with one object: by itself, with its manifest, and with the consumer's records."""
    entry, (first, next_) = found.entry, found.span
    key = f"{prefix}{first:020d}-{next_:020d}-{entry['sha256']}.parquet"
    if (data := bucket.get(key)) is None:
        yield f"{key}: named by manifest {found.sequence}, and not there"
        return
    if (hashlib.sha256(data).hexdigest(), len(data)) != (entry["sha256"], entry["size_bytes"]):
        yield f"{key}: other bytes than manifest {found.sequence} says"
        return
    table = pq.read_table(pa.BufferReader(data))
    if table.column_names != COLUMNS:
        yield f"{key}: columns {table.column_names}"
        return
    rows = table.to_pylist()
    offsets = [row["offset"] for row in rows]
    if offsets != sorted(set(offsets)) or (offsets and not first <= offsets[0] <= offsets[-1] < next_):
        yield f"{key}: its offsets do not rise within its range"
    stamps = [row["timestamp_ms"] for row in rows]
    own = (len(rows), min(stamps, default=None), max(stamps, default=None), _holes(offsets, first, next_))
    said = (entry["count"], entry["min_timestamp_ms"], entry["max_timestamp_ms"], [tuple(h) for h in entry["holes"]])
    if own != said:
        yield f"{key}: count, timestamps and holes are {own}, manifest {found.sequence} says {said}"
    for low, high in ((max(low, start), min(high, end)) for low, high in own[3]):
        if low < high and (low < found.start or high > found.end):
            yield f"{key}: the hole [{low}, {high}) was not seen in the log [{found.start}, {found.end}) afterwards"
    held = {row["offset"]: row for row in rows}
    for offset in range(max(first, start), min(next_, end)):
        yield from _offset(key, offset, held.get(offset), wanted.get(offset))


def _holes(offsets: Sequence[int], first: int, next_: int) -> list[tuple[int, int]]:
    edges = [first - 1, *offsets, next_]
    return [(low + 1, high) for low, high in pairwise(edges) if low + 1 < high]


def _offset(key: str, offset: int, row: dict[str, Any] | None, record: Record | None) -> Iterator[str]:
    """What is wrong with one offset, if anything is."""
    if row is None and record is None:
        return
    if row is None or record is None:
        which = "is a hole, and the consumer has a record" if row is None else "is a record, and the consumer has none"
        yield f"{key}: offset {offset} {which}"
        return
    headers = tuple((header["name"], header["value"]) for header in row["headers"])
    for name, own in {**row, "headers": headers}.items():
        if own != (theirs := getattr(record, name)):
            yield f"{key}: offset {offset}: {name} is {own!r:.200}, the consumer has {theirs!r:.200}"
