"""A small archive of real objects, and hands that spoil it: they write over objects and delete them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from millrace.adapters.archive.audits.inspection import Inspection, everything, inspect, nothing
from millrace.adapters.archive.columns import to_batch
from millrace.adapters.archive.objects import write_object
from millrace.adapters.archive.writer import ArchiveWriter
from millrace.adapters.chain.documents import decode, encode, sha256_of
from millrace.adapters.chain.links import links
from millrace.domain.archive.manifest import Kind, Manifest, ObjectEntry
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.proof.tiling import ObservedLog, Tiling
from millrace.domain.archive.records import ArchivedRecord, TimestampType
from millrace.domain.chain.head import Writer
from millrace.domain.streams.position import LogBounds
from millrace.domain.topics.offsets import OffsetRange, TopicPartition
from millrace.ports.objects import ObjectStore

PARTITIONS = 2
ROUNDS = 4
OFFSETS = 10  # a round and partition; the last but one is a marker
AT = datetime(2026, 11, 24, 12, tzinfo=UTC)


@dataclass
class Archive:
    """One incarnation in a store; `raw` is a client that writes over and deletes what it likes."""

    store: ObjectStore
    incarnation: Incarnation
    bucket: str
    raw: Any
    manifests: list[Manifest] = field(default_factory=list)

    def build(self) -> Archive:
        """Four manifests with an object of each partition, after a takeover."""
        chain = ArchiveWriter.take_over(
            self.store, Tiling(self.incarnation), Writer(1, "one"), lambda: self.log(OFFSETS)
        )
        for number in range(ROUNDS):
            objects = [self.put(records(p, number * OFFSETS), p, number * OFFSETS) for p in range(PARTITIONS)]
            self.manifests.append(chain.append(Kind.DATA, self.log((number + 1) * OFFSETS), objects=objects))
        return self

    def log(self, end: int = ROUNDS * OFFSETS) -> ObservedLog:
        """The log as it is when it has come so far."""
        return ObservedLog(AT, self.incarnation.topic_id, dict.fromkeys(range(PARTITIONS), LogBounds(0, end)))

    def put(self, given: list[ArchivedRecord], partition: int, first: int, next_: int = 0) -> ObjectEntry:
        """An object of these records."""
        written = self.written(given, partition, first, next_)
        self.store.create(self.incarnation.object_key(written.entry.name), written.data)
        return written.entry

    def written(self, given: list[ArchivedRecord], partition: int, first: int, next_: int = 0) -> Any:
        """The bytes of an object of these records, and its entry; not in the store."""
        of = TopicPartition(self.incarnation.topic, self.incarnation.topic_id, partition)
        return write_object(OffsetRange(of, first, next_ or first + OFFSETS), [to_batch(given)])

    def entry(self, round_: int, partition: int) -> ObjectEntry:
        """What the chain says of an object."""
        return self.manifests[round_].objects[partition]

    def key(self, round_: int, partition: int) -> str:
        """Where an object lies."""
        return self.incarnation.object_key(self.entry(round_, partition).name)

    def bytes_of(self, key: str) -> bytes:
        """What lies there now."""
        data: bytes = self.raw.get_object(Bucket=self.bucket, Key=key)["Body"].read()
        return data

    def overwrite(self, key: str, data: bytes) -> None:
        """Put bytes there, whatever was there."""
        self.raw.put_object(Bucket=self.bucket, Key=key, Body=data)

    def delete(self, key: str) -> None:
        """Delete an object."""
        self.raw.delete_object(Bucket=self.bucket, Key=key)

    def append(self, **changes: Any) -> int:
        """A further manifest that follows the last by its number and hash, and otherwise says what it is told to."""
        last = self.manifests[-1]
        follows = {"sequence": last.sequence + 1, "previous": sha256_of(encode(last))}
        follower = replace(last, **(follows | changes))
        self.overwrite(self.incarnation.manifest_key(follower.sequence), encode(follower))
        return follower.sequence

    def inspect(self, *, deep: bool, end: int = ROUNDS * OFFSETS) -> Inspection:
        """Look at it from the beginning."""
        return inspect(
            self.store, Tiling(self.incarnation), lambda: self.log(end), picks=everything if deep else nothing
        )

    def read_manifests(self) -> Iterator[Manifest]:
        """What the store has of the chain."""
        for link in links(self.store, self.incarnation):
            assert link.key is not None
            yield decode(link.data, Manifest, link.key)  # type: ignore[union-attr,arg-type]


def records(partition: int, first: int) -> list[ArchivedRecord]:
    """Ten offsets' records, all different; a marker lies at the last but one."""
    return [
        ArchivedRecord(
            at,
            1_700_000_000_000 + at,
            TimestampType.CREATE_TIME,
            f"{partition}/{at % 3}".encode(),
            f"value {at}".encode() * 20,
            (("trace", str(at).encode()), ("trace", None)),
        )
        for at in range(first, first + OFFSETS)
        if at != first + OFFSETS - 2
    ]
