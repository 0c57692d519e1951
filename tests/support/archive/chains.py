"""Chains of manifests whose objects nobody reads, for what is decided about them."""

from __future__ import annotations

from datetime import UTC, datetime

from millrace.adapters.archive.chain import read_on
from millrace.adapters.archive.writer import ArchiveWriter
from millrace.adapters.chain.documents import decode, sha256_of
from millrace.adapters.chain.links import links
from millrace.domain.archive.manifest import Kind, Manifest, ObjectEntry
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.proof.coverage import Coverage
from millrace.domain.archive.proof.tiling import ObservedLog, Tiling
from millrace.domain.archive.records import Digest
from millrace.domain.chain.head import Writer
from millrace.domain.streams.position import LogBounds
from millrace.errors import UnreachableError
from millrace.ports.objects import Creation
from support.fakes.objects import MemoryStore

HERE = Incarnation("shop.purchases", "C" * 22)
AT = datetime(2026, 11, 24, 12, tzinfo=UTC)


def log(*bounds: tuple[int, int], at: datetime = AT, retention_ms: int | None = None) -> ObservedLog:
    """The log of as many partitions."""
    return ObservedLog(at, HERE.topic_id, {n: LogBounds(*each) for n, each in enumerate(bounds)}, retention_ms)


GONE = ObservedLog(AT, None, {})


def entry(first: int, next_: int, partition: int = 0, holes: tuple[tuple[int, int], ...] = ()) -> ObjectEntry:
    """An object that nobody reads."""
    count = next_ - first - sum(end - begin for begin, end in holes)
    stamps = (0, 0) if count else (None, None)
    return ObjectEntry(
        partition, first, next_, count, holes, *stamps, size_bytes=9, sha256=sha256_of(b"x"), digest=Digest()
    )


def started(
    store: MemoryStore, epoch: int = 1, instance: str = "one", bounds: tuple[int, int] = (0, 10)
) -> ArchiveWriter:
    return ArchiveWriter.take_over(store, Tiling(HERE), Writer(epoch, instance), lambda: log(bounds))


def read(store: MemoryStore) -> Tiling:
    tiling = Tiling(HERE)
    read_on(store, tiling)
    return tiling


def read_chain(store: MemoryStore, here: Incarnation = HERE) -> list[Manifest]:
    """The manifests that are there."""
    return [decode(link.data, Manifest, link.key) for link in links(store, here) if link.data]


class Losing(MemoryStore):
    """Loses the answers of the creations whose numbers are named, or (negative) the requests."""

    def __init__(self, *numbers: int) -> None:
        super().__init__()
        self._numbers = numbers
        self._number = 0

    def create(self, key: str, data: bytes) -> Creation:
        self._number += 1
        if -self._number in self._numbers:
            raise UnreachableError("lost")
        done = super().create(key, data)
        if self._number in self._numbers:
            raise UnreachableError("lost")
        return done


def chain_of(store: MemoryStore, manifests: int) -> ArchiveWriter:
    writer = started(store, bounds=(0, 0))
    for number in range(manifests):
        writer.append(Kind.DATA, log((0, number * 10 + 10)), objects=[entry(number * 10, number * 10 + 10)])
    return writer


def what_is_wrong(coverage: Coverage) -> list[str]:
    """Why an archive is broken, a sentence each, offsets named."""
    told = [str(tile) for partition in coverage.partitions for tile in partition.unacknowledged]
    assert coverage.problems.total == len(coverage.problems.found)
    return [*map(str, coverage.problems.found), *told]
