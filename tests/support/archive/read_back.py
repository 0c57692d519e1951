"""Archives in memory that are read back, and what a reader of them printed."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from millrace.adapters.archive.chain import read_on
from millrace.adapters.archive.reading import ArchiveReader
from millrace.adapters.archive.summaries import put_summary
from millrace.adapters.archive.writer import ArchiveWriter
from millrace.domain.archive.manifest import Kind, ObjectEntry
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.proof.tiling import Tiling
from millrace.domain.archive.records import ArchivedRecord, TimestampType
from millrace.domain.archive.selection import Selection
from millrace.domain.chain.head import Writer
from millrace.errors import UnreachableError
from millrace.usecases.archive.cat import Cat
from support.archive.small_archive import OFFSETS, PARTITIONS, ROUNDS, Archive, records
from support.fakes.objects import MemoryStore
from support.fakes.platform import PartsPlatform

HERE = Incarnation("shop.purchases", "C" * 22)
BEGAN_MS = 1_700_000_000_000  # of the record at offset 0 of the archives of `support.archive.small_archive`


class CountingStore(MemoryStore):
    """Knows which keys were asked for, and is away for those that have `away_for` in them."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()
        self.away_for = ""

    def get(self, key: str) -> bytes | None:
        self.asked[key] += 1
        if self.away_for and self.away_for in key:
            raise UnreachableError("away", where="bucket", next_step="start it")
        return super().get(key)

    def fetched(self) -> set[str]:
        """The objects that were asked for."""
        return {key for key in self.asked if key.endswith(".parquet")}


class MemoryArchive(Archive):
    """The archive of `support.archive.small_archive` in memory."""

    store: CountingStore

    def overwrite(self, key: str, data: bytes) -> None:
        self.store.objects[key] = data

    def delete(self, key: str) -> None:
        self.store.objects.pop(key, None)

    def bytes_of(self, key: str) -> bytes:
        return self.store.objects[key]

    def read(self) -> Tiling:
        """The chain, to its head."""
        tiling = Tiling(self.incarnation)
        read_on(self.store, tiling)
        return tiling

    def sum_up(self) -> None:
        """A summary of the chain as it is."""
        put_summary(self.store, self.read())

    def expire(self, *entries: ObjectEntry) -> None:
        """The next epoch lets objects expire."""
        tiling = self.read()
        writer = Writer(tiling.head.epoch + 1, "next")
        chain = ArchiveWriter.take_over(self.store, tiling, writer, self.log)
        chain.append(Kind.EXPIRY, self.log(), objects=entries, by="keep", reason="10y")

    def build_of(self, objects: list[list[int]]) -> None:
        """A chain of one partition, an object a manifest, of records with these timestamps."""
        end = sum(map(len, objects))
        chain = ArchiveWriter.take_over(self.store, Tiling(self.incarnation), Writer(1, "one"), lambda: self.log(end))
        first = 0
        for stamps in objects:
            held = [ArchivedRecord(first + n, ms, TimestampType.CREATE_TIME, b"k", b"v") for n, ms in enumerate(stamps)]
            entry = self.put(held, 0, first, first + len(stamps))
            self.manifests.append(chain.append(Kind.DATA, self.log(end), objects=[entry]))
            first += len(stamps)


def made(store: CountingStore, incarnation: Incarnation) -> MemoryArchive:
    """Four manifests with an object of each of two partitions."""
    archive = MemoryArchive(store, incarnation, "", None)
    archive.build()
    return archive


def all_offsets() -> set[tuple[int, int]]:
    """Partition and offset of every record of such an archive."""
    return {(p, record.offset) for p in range(PARTITIONS) for n in range(ROUNDS) for record in records(p, n * OFFSETS)}


class Printed:
    """What a call printed."""

    def __init__(self, store: MemoryStore, topic: str = HERE.topic, selection: Selection | None = None, **how: Any):
        self.told: list[str] = []
        platform: Any = PartsPlatform(archive_reader=lambda connection: ArchiveReader(store))
        self.cat = Cat(platform, topic, selection or Selection(), self.told.append, **how)
        self.lines = [json.loads(line) for line in self.cat.lines()]

    @property
    def at(self) -> list[tuple[int, int]]:
        """Partition and offset of each record, as they came."""
        return [(line["partition"], line["offset"]) for line in self.lines]

    @property
    def said(self) -> str:
        """What was told, as one text."""
        return "\n".join(self.told)
