"""A long chain in files, read through the interface of a store; listings are made up as they are asked for."""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from millrace.adapters.chain.documents import encode, sha256_of
from millrace.domain.archive.manifest import Kind, Manifest, ObjectEntry, Seen
from millrace.domain.archive.names import Incarnation, ObjectName
from millrace.domain.archive.records import Digest
from millrace.ports.objects import ObjectInfo

HERE = Incarnation("bench.records", "B" * 22)
OFFSETS = 100  # an entry
SIZE = 5_000
AT = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Shape:
    """How many manifests, with an object of each partition in each."""

    manifests: int
    partitions: int

    @property
    def entries(self) -> int:
        return self.manifests * self.partitions


class WrittenChain:
    """An `ObjectStore` that can only be read."""

    def __init__(self, shape: Shape, folder: Path) -> None:
        self._shape = shape
        self._path = folder / "chain"
        self._starts = array("Q", [0])
        with self._path.open("wb") as file:
            for data in chain(shape):
                self._starts.append(self._starts[-1] + file.write(data))
        self._file = os.open(self._path, os.O_RDONLY)

    def get(self, key: str) -> bytes | None:
        sequence = HERE.sequence_of(key)
        if sequence is None or sequence >= len(self._starts) - 1:
            return None
        start, end = self._starts[sequence : sequence + 2]
        return os.pread(self._file, end - start, start)

    def head(self, key: str) -> ObjectInfo | None:
        name = HERE.object_name(key)
        return ObjectInfo(key, SIZE) if name and entry(name.partition, name.first // OFFSETS).name == name else None

    def list(self, prefix: str, *, after: str = "", page_size: int = 1000) -> Iterator[ObjectInfo]:
        if prefix == HERE.manifests:
            first = (HERE.sequence_of(after) or 0) + 1 if after else 0
            for sequence in range(first, len(self._starts) - 1):
                yield ObjectInfo(HERE.manifest_key(sequence), self._starts[sequence + 1] - self._starts[sequence])
        elif prefix != HERE.summaries:
            partition = int(prefix.removeprefix(HERE.prefix).rstrip("/"))
            for number in range(self._shape.manifests):
                yield ObjectInfo(HERE.object_key(entry(partition, number).name), SIZE)

    def folders(self, prefix: str) -> Iterator[str]:
        yield from ("manifest", "summary", *map(str, range(self._shape.partitions)))


def chain(shape: Shape) -> Iterator[bytes]:
    """The bytes of a takeover and of every data manifest after it."""
    previous = ""
    partitions = shape.partitions
    for sequence in range(shape.manifests + 1):
        end = sequence * OFFSETS
        data = encode(
            Manifest(
                sequence=sequence,
                previous=previous,
                epoch=1,
                instance="bench",
                kind=Kind.DATA if sequence else Kind.TAKEOVER,
                topic=HERE.topic,
                topic_id=HERE.topic_id,
                at=AT,
                partitions=partitions,
                seen=tuple(Seen(number, 0, end) for number in range(partitions)),
                objects=tuple(entry(number, sequence - 1) for number in range(partitions)) if sequence else (),
            )
        )
        previous = sha256_of(data)
        yield data


def entry(partition: int, number: int) -> ObjectEntry:
    """The object of a partition in the manifest of a number; one hole in it."""
    first = number * OFFSETS
    sha256 = hashlib.sha256(b"%d/%d" % (partition, number)).hexdigest()
    return ObjectEntry(
        partition,
        first,
        first + OFFSETS,
        OFFSETS - 1,
        ((first + 50, first + 51),),
        0,
        0,
        size_bytes=SIZE,
        sha256=sha256,
        digest=Digest(),
    )


def object_names(shape: Shape) -> Iterator[ObjectName]:
    """What every object is called."""
    for number in range(shape.manifests):
        yield from (entry(partition, number).name for partition in range(shape.partitions))
