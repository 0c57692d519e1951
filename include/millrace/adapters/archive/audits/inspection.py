"""The look at a whole archive: the chain, the objects it names, and the log, against one another.

The order of the looks keeps the work of a writer and of retention from looking like a fault. What a listing does not
show is asked for by itself; what then is not there is gone only if the chain, read on afterwards, has not let it
expire. The log is looked at between two looks at the chain that end at the same head: after an older one, records that
came in between would look diverged; before a newer one, records that were archived and then deleted would look lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

from millrace.adapters.archive.chain import add
from millrace.adapters.archive.objects import differences, read_object
from millrace.adapters.archive.summaries import promised, resume
from millrace.adapters.chain.documents import sha256_of
from millrace.adapters.chain.links import links
from millrace.domain.archive.manifest import Kind, Manifest, ObjectEntry
from millrace.domain.archive.names import ObjectName
from millrace.domain.archive.proof.coverage import Coverage, Problem, Problems
from millrace.domain.archive.proof.spans import Span, Spans
from millrace.domain.archive.proof.tiling import ObservedLog, Tiling
from millrace.errors import CorruptArchiveError, UnreachableError
from millrace.ports.objects import ObjectInfo, ObjectStore

_LISTED_AT_ONCE = 100_000  # keys that the listings of all partitions hold together
_READ_AHEAD = 4
_READ_AHEAD_BYTES = 128 << 20
_ASKED_AT_ONCE = 16
_NAMED = 100_000  # absent objects, with their holes, that wait until the chain's end is reached: most will have expired
_TOLD = 10_000  # faults of objects that are remembered by name until it is known what has expired
_ROUNDS = 20  # of chain and log, until both stand still

Picks = Callable[[ObjectEntry, Manifest], bool]
"""Whether an object, brought by this manifest, is to be read whole."""


def everything(entry: ObjectEntry, manifest: Manifest) -> bool:
    """Every object is read."""
    return True


def nothing(entry: ObjectEntry, manifest: Manifest) -> bool:
    """No object is read."""
    return False


@dataclass(slots=True)
class Counts:
    """How much was looked at.

    Attributes:
        objects: that the chain brings, and `size_bytes` of them together as it says.
        checked: how many of them were read whole, `checked_bytes` together.
        ahead: objects that no manifest names yet, at or beyond the chain's end.
        unnamed: of those that are there and not what they should be, how many are told without a name.
        forgiven: faults of which somebody said that they know.
    """

    objects: int = 0
    size_bytes: int = 0
    checked: int = 0
    checked_bytes: int = 0
    ahead: int = 0
    unnamed: int = 0
    forgiven: int = 0


@dataclass(frozen=True, slots=True)
class Inspection:
    """What an archive is like.

    Attributes:
        coverage: every offset's label, and the verdict. What is wrong with objects is among its problems.
        orphans: objects below the chain's end that no manifest names: a writer that died left them. Harmless.
        foreign: what lies among the archive and is no object of it; the offsets that its name speaks of are unharmed.
        counts: how much was looked at.
        log: the look that the coverage goes by.
    """

    coverage: Coverage
    orphans: Problems
    foreign: Problems
    counts: Counts
    log: ObservedLog


def inspect(
    store: ObjectStore,
    tiling: Tiling,
    look: Callable[[], ObservedLog],
    *,
    picks: Picks = nothing,
    held: Callable[[ObjectEntry, int, bytes], object] = lambda entry, sequence, data: None,
    known: Collection[str] = (),
) -> Inspection:
    """Look at the archive of one incarnation from where a tiling ends.

    Args:
        store: where it lies.
        tiling: empty, or resumed from a summary: objects below that are not looked for. It is at the head afterwards.
        look: asks for the topic's log; called again where the chain grew meanwhile.
        picks: which objects to read, to hold their bytes and records against their manifest.
        held: told of each object that was read and is what it should be, and the sequence of its manifest.
        known: faults of objects, in the words of a `Problem`, of which somebody said that they know: only counted.

    Returns:
        What was found. It takes memory for one page of names a partition, and for what is wrong.

    Raises:
        UnreachableError: the store or a broker does not answer, or the chain grows faster than the log can be looked
            at. That is no verdict.
    """
    at_work = _Inspector(store, tiling, picks, held, known)
    with at_work.reading:
        for _ in range(_ROUNDS):
            at_work.walk()
            at_work.ask_for_absent()
            log, head = look(), tiling.head
            at_work.walk()
            if tiling.head == head and not at_work.has_absent():
                break
        else:
            raise UnreachableError(
                f"the audit has no verdict: the chain grew {_ROUNDS} times while the audit read the log",
                where=tiling.incarnation.manifests,
                next_step="repeat the audit with fewer manifests a minute, or nearer to the brokers",
            )
        at_work.count_the_rest()
    at_work.tell()
    return Inspection(tiling.end(log), at_work.orphans, at_work.foreign, at_work.counts, log)


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


@dataclass(frozen=True, slots=True)
class _Named:
    """An object that the chain brings: what it should be, and the manifest that says so."""

    entry: ObjectEntry
    sequence: int
    is_picked: bool

    @property
    def weight(self) -> int:
        return 1 + len(self.entry.holes)


class _Inspector:
    def __init__(
        self,
        store: ObjectStore,
        tiling: Tiling,
        picks: Picks,
        held: Callable[[ObjectEntry, int, bytes], object],
        known: Collection[str],
    ) -> None:
        self.counts = Counts()
        self.orphans = Problems()
        self.foreign = Problems()
        self.reading = ThreadPoolExecutor(_ASKED_AT_ONCE, thread_name_prefix="objects")
        self._store = store
        self._tiling = tiling
        self._promised = promised(store, tiling)
        # What the last summary says has expired; that the chain says so too is seen in the end.
        self._hint = resume(store, tiling.incarnation).partitions if tiling.head.sequence < 0 <= self._promised else {}
        self._trusted: dict[int, Spans] = {}
        self._here = tiling.incarnation
        self._picks = picks
        self._hold = held
        self._known = known
        self._begun = {number: state.next for number, state in tiling.partitions.items()}
        self._shelves: dict[int, _Shelf] = {}
        self._ahead: deque[tuple[_Named, Future[bytes | None]]] = deque()
        # No listing has shown these.
        self._absent: deque[_Named] = deque()
        self._room = _NAMED
        # These were asked for by themselves and are not there, or not what they should be. Some may have expired.
        self._wrong: list[Problem] = []
        self._more_wrong: dict[int, Spans] = {}
        self._stray_keys: set[str] = set()

    def walk(self) -> None:
        """The chain to its end, and each object that it brings."""
        for link in links(self._store, self._here, self._tiling.head.sequence, self._no_manifest):
            manifest = add(self._tiling, link)
            if manifest is None or manifest.incarnation != self._here or manifest.kind is not Kind.DATA:
                continue
            for entry in manifest.objects:
                self._look_for(_Named(entry, link.sequence, self._picks(entry, manifest)), manifest.partitions)
        self._read_down_to(0)

    def _no_manifest(self, key: str) -> None:
        self._stray(key, "the object is not a manifest, but lies among the manifests")

    def _look_for(self, named: _Named, partitions: int) -> None:
        self.counts.objects += 1
        self.counts.size_bytes += named.entry.size_bytes
        key = self._here.object_key(named.entry.name)
        there = None
        for info in self._shelf(named.entry.partition, partitions).up_to(key):
            if info.key == key:
                there = info
            else:
                self._unnamed(info)
        if there is None:
            self._is_absent(named)
        else:
            self._is_there(named, there)

    def _is_there(self, named: _Named, there: ObjectInfo) -> None:
        meant = named.entry.size_bytes
        if there.size_bytes != meant:
            self._tell(named, f"the object has {there.size_bytes} bytes where its manifest says {meant}")
        if named.is_picked:
            self._ahead.append((named, self.reading.submit(self._store.get, there.key)))
            self._read_down_to(_READ_AHEAD)

    def _shelf(self, partition: int, partitions: int) -> _Shelf:
        if partition not in self._shelves:
            begun = self._begun.get(partition)
            prefix = self._here.partition(partition)
            after = "" if begun is None else f"{prefix}{begun:020d}"
            size = max(10, min(1000, _LISTED_AT_ONCE // partitions))
            self._shelves[partition] = _Shelf(self._store.list(prefix, after=after, page_size=size))
        return self._shelves[partition]

    def _is_absent(self, named: _Named) -> None:
        entry = named.entry
        hint = self._hint.get(entry.partition)
        if hint is not None and not any(hint.expired.outside(entry.first, entry.next)):
            self._trusted.setdefault(entry.partition, Spans()).add(entry.first, entry.next)
            return
        self._absent.append(named)
        self._room -= named.weight
        if self._room < 0:
            self.ask_for_absent()

    def _read_down_to(self, left: int) -> None:
        while self._ahead and (len(self._ahead) > left or self._held() > _READ_AHEAD_BYTES):
            named, reading = self._ahead.popleft()
            data = reading.result()
            if data is None:
                self._tell(named, "the object is gone", is_there=False)  # since it was seen
                continue
            self.counts.checked += 1
            self.counts.checked_bytes += len(data)
            found = differences(named.entry, self._here, data)
            for difference in found:
                self._tell(named, difference.what, (difference.first, difference.next))
            if not found:
                self._hold(named.entry, named.sequence, data)

    def _held(self) -> int:
        return sum(named.entry.size_bytes for named, _ in self._ahead)

    def _tell(self, named: _Named, what: str, about: Span | None = None, *, is_there: bool = True) -> None:
        """Something is wrong with an object, unless the chain lets it expire further on."""
        entry = named.entry
        if self._has_expired(entry):
            return
        key = self._here.object_key(entry.name)
        problem = Problem(what, named.sequence, entry.partition, *(about or (entry.first, entry.next)), key=key)
        if self._known and str(problem) in self._known:
            self.counts.forgiven += 1
        elif len(self._wrong) >= _TOLD:
            self.counts.unnamed += is_there
            self._more_wrong.setdefault(entry.partition, Spans()).add(entry.first, entry.next)
        else:
            self._wrong.append(problem)

    def _has_expired(self, of: ObjectEntry | ObjectName) -> bool:
        state = self._tiling.partitions.get(of.partition)
        return state is not None and not any(state.expired.outside(of.first, of.next))

    def has_absent(self) -> bool:
        """Whether there are objects that no listing has shown and nobody has asked for."""
        return bool(self._absent)

    def ask_for_absent(self) -> None:
        """Look whether what no listing has shown is there. What is not may have expired: the chain tells, read on."""
        waiting = [named for named in self._absent if not self._has_expired(named.entry)]
        self._absent.clear()
        self._room = _NAMED
        keys = (self._here.object_key(named.entry.name) for named in waiting)
        for named, there in zip(waiting, self.reading.map(self._store.head, keys), strict=True):
            if there:
                self._is_there(named, there)
            else:
                self._tell(named, "the object is gone", is_there=False)
        self._read_down_to(0)

    def tell(self) -> None:
        """What is wrong with objects, to be told now that all that has expired is known."""
        problems, partitions = self._tiling.problems, self._tiling.partitions
        if self._promised > self._tiling.head.sequence:
            what = f"the chain ends here, but a summary names manifest {self._promised}"
            problems.append(Problem(what, self._tiling.head.sequence))
        for problem in self._wrong:
            name = self._here.object_name(problem.key)
            if name is None or not self._has_expired(name):
                problems.append(problem)
        for number, spans in sorted(self._trusted.items()):
            what = "objects are gone, and only a summary lets them expire"
            expired = partitions[number].expired if number in partitions else Spans()
            problems.extend(Problem(what, None, number, *span) for span in spans.minus(expired))
        for number, spans in sorted(self._more_wrong.items()):
            for first, next_ in spans.minus(partitions[number].expired):
                problems.append(Problem("objects are gone, or not what they should be", None, number, first, next_))

    def count_the_rest(self) -> None:
        """Objects that no manifest names: beyond the chain's end they are the writer's next, below it nobody's."""
        known = {"manifest", "summary", *map(str, self._tiling.partitions)}
        for folder in self._store.folders(self._here.prefix):
            if folder not in known:
                for info in self._store.list(f"{self._here.prefix}{folder}/"):
                    self._unnamed(info)
        numbers, partitions = list(self._tiling.partitions), max(1, self._tiling.known)
        for shelf in self.reading.map(lambda number: self._shelf(number, partitions), numbers):
            for info in shelf.rest():
                self._unnamed(info)

    def _unnamed(self, info: ObjectInfo) -> None:
        name = self._here.object_name(info.key)
        state = self._tiling.partitions.get(name.partition) if name else None
        if name is None:
            self._stray(info.key, "the object does not belong to the archive, but lies in its folder")
        elif name.first >= (state.next if state else 0):
            self.counts.ahead += 1
        elif not self._has_expired(name):  # what expired may still be there
            self._stray(info.key, "no manifest names it", name)

    def _stray(self, key: str, what: str, name: ObjectName | None = None) -> None:
        if key in self._stray_keys:
            return
        kind, described = self.foreign, name is None
        if self.orphans.has_room() and self.foreign.has_room():
            self._stray_keys.add(key)
            if self._store.head(key) is None:
                return  # a store's own file, while an object was written (s3proxy lists those)
            if name and (why := self._why_foreign(key, name)):
                what, described = f"{what}, and {why}", True
        if not described:
            kind, what = self.orphans, f"{what}: a writer that died may have left it"
        stray = Problem(what, key=key)
        if name:
            stray = replace(stray, partition=name.partition, first=name.first, next=name.next)
        kind.append(stray)

    def _why_foreign(self, key: str, name: ObjectName) -> str:
        """Why an object that no manifest names cannot have been meant for the chain; empty where it can."""
        data = self._store.get(key)
        if data is None or sha256_of(data) != name.sha256:
            return "its bytes are not what its name says"
        try:
            held = read_object(data).range
        except CorruptArchiveError as error:
            return f"it is no object: {error.what}"
        if (held.partition.topic, held.partition.topic_id) != (self._here.topic, self._here.topic_id):
            return f"it holds {held}"
        return ""
