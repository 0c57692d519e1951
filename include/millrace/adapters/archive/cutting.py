"""Records of one range on their way into objects: cut where an object is large enough, written one at a time.

Where they are cut depends on the records and on the range's beginning alone, so whoever reads a range again writes
the same objects, and finds those that a former try had left.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from millrace.adapters.archive.columns import conform, gaps, spans_of, weights
from millrace.adapters.archive.objects import WrittenObject, write_object
from millrace.domain.archive.manifest import ObjectEntry
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.pace import LEAST_OBJECT_BYTES, MOST_HOLES, MOST_OBJECT_BYTES, READ_BYTES, Read
from millrace.domain.topics.offsets import OffsetRange
from millrace.ports.objects import ObjectStore


@dataclass(frozen=True, slots=True)
class Copied:
    """What became of one range that was read.

    Attributes:
        entries: its objects, in order and without a gap between them, from the range's beginning. They end before its
            end where more waits behind that, or where so much came that it was enough for once.
        weight: bytes of its records, as `domain.archive.pace` counts them.
    """

    read: Read
    entries: tuple[ObjectEntry, ...]
    weight: int

    def __post_init__(self) -> None:
        edges = [self.read.range.first, *(edge for entry in self.entries for edge in (entry.first, entry.next))]
        broken = any(low != high for low, high in zip(edges[::2], edges[1::2], strict=False))
        short = self.read.whole and edges[-1] != self.read.range.next and self.weight < READ_BYTES
        if broken or short or edges[-1] > self.read.range.next:
            raise ValueError(f"objects that are not {self.read.range}: {', '.join(map(str, self.entries)) or 'none'}")

    @property
    def next(self) -> int:
        """Up to where it was copied: the end of the range, or less where more waits behind that."""
        return self.entries[-1].next if self.entries else self.read.range.first


class Cutter:
    """Cuts the records of one range into objects and hands each on; holds the records of one.

    Args:
        read: the range.
        put: takes each object, in order.
        most_bytes: what the records of an object weigh before it is cut.
    """

    def __init__(
        self, read: Read, put: Callable[[WrittenObject], object], *, most_bytes: int = MOST_OBJECT_BYTES
    ) -> None:
        self._read = read
        self._put = put
        self._most_bytes = most_bytes
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._held_holes = 0
        self._first = self._expected = read.range.first
        self._weight = 0
        self._cut_bytes = 0
        self._entries: list[ObjectEntry] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Take records that come after those before.

        Raises:
            RefusedError: an object cannot be written of them (see `write_object`).
        """
        found = conform(batch)
        ends = pc.cumulative_sum(weights(found)).to_pylist()
        at = 0
        while at < len(ends):
            if self._held and (self._held_bytes >= self._most_bytes or self._held_holes >= MOST_HOLES):
                self._cut(self._expected)  # only now: what is absent behind the last record goes with it
            before = ends[at - 1] if at else 0
            upto = min(bisect_left(ends, before + self._most_bytes - self._held_bytes) + 1, len(ends))
            self._hold(found.slice(at, upto - at))
            self._held_bytes += ends[upto - 1] - before
            at = upto
        self._weight += ends[-1] if ends else 0

    @property
    def has_enough(self) -> bool:
        """Whether so much was written that the rest is better read in another round."""
        return self._cut_bytes >= READ_BYTES

    def _hold(self, piece: pa.RecordBatch) -> None:
        spans = spans_of(piece["offset"])
        self._held.append(piece)
        self._held_holes += len(gaps(spans, min(self._expected, spans[0][0]), spans[-1][1]))
        self._expected = spans[-1][1]

    def close(self) -> Copied:
        """The rest as the last object, but for a small rest with more waiting behind it: that is read again then.

        Where there was enough, what came last is left for another round too.

        Raises:
            RefusedError: an object cannot be written of them (see `write_object`).
        """
        small = self._held_bytes < LEAST_OBJECT_BYTES and not self._read.whole
        if self._first < self._read.range.next and not (self._entries and (small or self.has_enough)):
            self._cut(self._read.range.next)
        return Copied(self._read, tuple(self._entries), self._weight)

    def _cut(self, next_: int) -> None:
        written = write_object(OffsetRange(self._read.partition, self._first, next_), self._held)
        self._put(written)
        self._entries.append(written.entry)
        self._cut_bytes += self._held_bytes
        self._first = next_
        self._held, self._held_bytes, self._held_holes = [], 0, 0


def put_object(store: ObjectStore, incarnation: Incarnation, written: WrittenObject) -> None:
    """Write an object at its own name; one that is there already has these very bytes.

    Raises:
        ObjectExistsError: it has others: somebody has written to the archive.
        UnreachableError: the store does not answer.
    """
    store.create(incarnation.object_key(written.entry.name), written.data)


def copy_range(
    read: Read,
    batches: Iterable[pa.RecordBatch],
    put: Callable[[WrittenObject], object],
    *,
    most_bytes: int = MOST_OBJECT_BYTES,
) -> Copied:
    """Write a range's records as objects; what was written, in order.

    Raises:
        RefusedError: an object cannot be written of them (see `write_object`).
    """
    cutter = Cutter(read, put, most_bytes=most_bytes)
    for batch in batches:
        cutter.add(batch)
        if cutter.has_enough:
            break
    return cutter.close()
