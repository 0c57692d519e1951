"""The look at a whole archive: the chain, the objects it names, and the log, against one another.

The order of the looks keeps the writer's work from looking like a fault. Objects are listed while the chain is read to
its end: what was deleted before had its expiry in the chain by then. An object that a listing did not show is asked for
by itself. The log is looked at last: an older look would make records that came in between look diverged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from millrace.adapters.archive.chain import Link, add, links
from millrace.adapters.archive.documents import sha256_of
from millrace.adapters.archive.objects import differences, read_object
from millrace.domain.archive.coverage import Coverage, Problem, Problems
from millrace.domain.archive.manifest import Kind, ObjectEntry
from millrace.domain.archive.names import ObjectName
from millrace.domain.archive.spans import Spans
from millrace.domain.archive.tiling import ObservedLog, Tiling
from millrace.errors import CorruptArchiveError
from millrace.ports import ObjectInfo, ObjectStore

_LISTED_AT_ONCE = 100_000  # keys that the listings of all partitions hold together
_READ_AHEAD = 4
_READ_AHEAD_BYTES = 128 << 20
_NAMED = 10_000  # absent objects that are remembered by name until the chain's end is reached


@dataclass(slots=True)
class Counts:
    """How much was looked at.

    Attributes:
        objects: that the chain brings, and `size_bytes` of them together as it says.
        checked: how many of them were read whole.
        ahead: objects that no manifest names yet, at or beyond the chain's end.
    """

    objects: int = 0
    size_bytes: int = 0
    checked: int = 0
    ahead: int = 0


@dataclass(frozen=True, slots=True)
class Inspection:
    """What an archive is like.

    Attributes:
        coverage: every offset's label, and the verdict. What is wrong with objects is among its problems.
        strays: what lies below the archive's prefix and belongs to nothing; harmless to the proof.
        counts: how much was looked at.
    """

    coverage: Coverage
    strays: Problems
    counts: Counts


def inspect(store: ObjectStore, tiling: Tiling, look: Callable[[], ObservedLog], *, deep: bool = False) -> Inspection:
    """Look at the archive of one incarnation from where a tiling ends.

    Args:
        store: where it lies.
        tiling: empty, or resumed from a summary: objects below that are not looked for. It is at the head afterwards.
        look: asks for the topic's log; called once, at the end.
        deep: read every object, and hold its bytes and records against its manifest.

    Returns:
        What was found. It takes memory for one page of names a partition, and for what is wrong.

    Raises:
        UnreachableError: the store or a broker does not answer. That is no verdict.
    """
    at_work = _Inspector(store, tiling, deep)
    with at_work.reading:
        at_work.walk()
        at_work.count_the_rest()
        at_work.settle_absent()
    return Inspection(tiling.end(look()), at_work.strays, at_work.counts)


class _Shelf:
    """The objects of one partition, in the order of their names."""

    def __init__(self, infos: Iterator[ObjectInfo]) -> None:
        self._infos = infos
        self._next: ObjectInfo | None = next(infos, None)

    def up_to(self, key: str) -> Iterator[ObjectInfo]:
        """Those whose keys are not beyond this one, which are then taken off."""
        while self._next is not None and self._next.key <= key:
            taken, self._next = self._next, next(self._infos, None)
            yield taken

    def rest(self) -> Iterator[ObjectInfo]:
        """All others."""
        if self._next is not None:
            yield self._next
        yield from self._infos


@dataclass(slots=True)
class _Absent:
    """Objects of one partition that the chain names and no listing has shown: ranges of all, names of the last."""

    spans: Spans = field(default_factory=Spans)
    named: deque[tuple[ObjectEntry, int]] = field(default_factory=lambda: deque(maxlen=_NAMED))


class _Inspector:
    def __init__(self, store: ObjectStore, tiling: Tiling, deep: bool) -> None:
        self.counts = Counts()
        self.strays = Problems()
        self.reading = ThreadPoolExecutor(_READ_AHEAD, thread_name_prefix="objects")
        self._store = store
        self._tiling = tiling
        self._here = tiling.incarnation
        self._deep = deep
        self._begun = {number: state.next for number, state in tiling.partitions.items()}
        self._shelves: dict[int, _Shelf] = {}
        self._absent: dict[int, _Absent] = {}
        self._ahead: deque[tuple[ObjectEntry, int, Future[bytes | None]]] = deque()

    def walk(self) -> None:
        """The chain to its end, and each object that it brings."""
        for link in links(self._store, self._here, self._tiling.head.sequence):
            manifest = add(self._tiling, link)
            if manifest is None or manifest.incarnation != self._here or manifest.kind is not Kind.DATA:
                continue
            assert isinstance(link, Link)
            for entry in manifest.objects:
                self._look_for(entry, link.sequence, manifest.partitions)
        self._read_down_to(0)

    def _look_for(self, entry: ObjectEntry, sequence: int, partitions: int) -> None:
        self.counts.objects += 1
        self.counts.size_bytes += entry.size_bytes
        key = self._here.object_key(entry.name)
        there = None
        for info in self._shelf(entry.partition, partitions).up_to(key):
            if info.key == key:
                there = info
            else:
                self._unnamed(info)
        if there is None:
            self._is_absent(entry, sequence)
        else:
            self._is_there(entry, sequence, there)

    def _is_there(self, entry: ObjectEntry, sequence: int, there: ObjectInfo) -> None:
        if there.size_bytes != entry.size_bytes:
            what = f"the object has {there.size_bytes} bytes where its manifest says {entry.size_bytes}"
            self._wrong(entry, sequence, what)
        if self._deep:
            self._ahead.append((entry, sequence, self.reading.submit(self._store.get, there.key)))
            self._read_down_to(_READ_AHEAD)

    def _shelf(self, partition: int, partitions: int) -> _Shelf:
        if partition not in self._shelves:
            begun = self._begun.get(partition)
            prefix = self._here.partition(partition)
            after = "" if begun is None else f"{prefix}{begun:020d}"
            size = max(10, min(1000, _LISTED_AT_ONCE // partitions))
            self._shelves[partition] = _Shelf(self._store.list(prefix, after=after, page_size=size))
        return self._shelves[partition]

    def _is_absent(self, entry: ObjectEntry, sequence: int) -> None:
        absent = self._absent.setdefault(entry.partition, _Absent())
        absent.spans.add(entry.first, entry.next)
        absent.named.append((entry, sequence))

    def _wrong(self, entry: ObjectEntry, sequence: int, what: str, first: int = -1, next_: int = -1) -> None:
        about = (first, next_) if first >= 0 else (entry.first, entry.next)
        key = self._here.object_key(entry.name)
        self._tiling.problems.append(Problem(what, sequence, entry.partition, *about, key=key))

    def _read_down_to(self, left: int) -> None:
        while self._ahead and (len(self._ahead) > left or self._held() > _READ_AHEAD_BYTES):
            entry, sequence, reading = self._ahead.popleft()
            data = reading.result()
            if data is None:
                self._is_absent(entry, sequence)  # since it was listed
                continue
            self.counts.checked += 1
            for difference in differences(entry, self._here, data):
                self._wrong(entry, sequence, difference.what, difference.first, difference.next)

    def _held(self) -> int:
        return sum(entry.size_bytes for entry, _, _ in self._ahead)

    def count_the_rest(self) -> None:
        """Objects that no manifest names: beyond the chain's end they are the writer's next, below it nobody's."""
        known = {"manifest", "summary", *map(str, self._tiling.partitions)}
        for folder in self._store.folders(self._here.prefix):
            if folder not in known:
                for info in self._store.list(f"{self._here.prefix}{folder}/"):
                    self._unnamed(info)
        for number in self._tiling.partitions:
            for info in self._shelf(number, max(1, self._tiling.known)).rest():
                self._unnamed(info)

    def _unnamed(self, info: ObjectInfo) -> None:
        name = self._here.object_name(info.key)
        state = self._tiling.partitions.get(name.partition) if name else None
        if name is None:
            self.strays.append(Problem("it is no object of the archive, and lies among them", key=info.key))
        elif name.first >= (state.next if state else 0):
            self.counts.ahead += 1
        elif not (
            state and any(span == (name.first, name.next) for span in state.expired.within(name.first, name.next))
        ):
            what = self._foreign(info.key, name) if self._deep else "no manifest names it"
            self.strays.append(Problem(what, None, name.partition, name.first, name.next, key=info.key))

    def _foreign(self, key: str, name: ObjectName) -> str:
        data = self._store.get(key)
        if data is None or sha256_of(data) != name.sha256:
            return "no manifest names it, and its bytes are not what its name says"
        try:
            held = read_object(data).range
        except CorruptArchiveError as error:
            return f"no manifest names it, and it is no object: {error.what}"
        if (held.partition.topic, held.partition.topic_id) != (self._here.topic, self._here.topic_id):
            return f"no manifest names it, and it holds {held}"
        return "no manifest names it: a writer that died may have left it"

    def settle_absent(self) -> None:
        """Of what no listing has shown: was it made since, has it expired, or is it gone?"""
        for number, absent in sorted(self._absent.items()):
            gone = absent.spans.minus(self._tiling.partitions[number].expired)
            told = Spans()
            for entry, sequence in list(absent.named):
                if any(gone.within(entry.first, entry.next)):
                    told.add(entry.first, entry.next)
                    if there := self._store.head(self._here.object_key(entry.name)):
                        self._is_there(entry, sequence, there)
                    else:
                        self._wrong(entry, sequence, "the object is gone")
            for first, next_ in gone.minus(told):
                self._tiling.problems.append(Problem("objects are gone", None, number, first, next_))
        self._read_down_to(0)
