"""Reading an archive back: a chain from its beginning, and of what it brings the objects that somebody wants."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime

from millrace.adapters.archive.chain import add, read_on
from millrace.adapters.archive.objects import ReadObject, read_object
from millrace.adapters.archive.summaries import promised, resume
from millrace.adapters.chain.documents import decode, sha256_of
from millrace.adapters.chain.links import Link, links
from millrace.domain.archive.expiry import has_expired
from millrace.domain.archive.manifest import Kind, Manifest, ObjectEntry
from millrace.domain.archive.names import ROOT, Incarnation
from millrace.domain.archive.proof.coverage import Problem
from millrace.domain.archive.proof.partition import Cause
from millrace.domain.archive.proof.tiling import Tiling
from millrace.domain.topics.offsets import OffsetRange, TopicPartition
from millrace.errors import CorruptArchiveError
from millrace.ports.objects import ObjectStore

_AHEAD = 2  # objects that are fetched while one is read

Fits = Callable[[ObjectEntry], bool]
Tell = Callable[[Problem], object]


class ArchiveReader:
    """Reads archives of one bucket. Asks nothing but the bucket, and writes nothing."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def topics(self) -> Iterator[str]:
        """The topics that have an archive, in order."""
        return self._store.folders(ROOT)

    def incarnations(self, topic: str) -> list[Incarnation]:
        """The incarnations of a topic that have an archive, in the order of their ids; what else lies there is none."""
        found = []
        for topic_id in self._store.folders(f"{ROOT}{topic}/"):
            try:
                found.append(Incarnation(topic, topic_id))
            except ValueError:
                continue
        return found

    def began(self, incarnation: Incarnation) -> datetime | None:
        """When a chain began, as the first of its manifests that can be read says; None where there is none."""
        data = self._store.get(key := incarnation.manifest_key(0))
        if data is not None and (first := _decoded(data, key)):
            return first.at
        rest = links(self._store, incarnation)  # somebody deleted or changed the first one
        readable = (_decoded(link.data, link.key) for link in rest if link.data is not None)
        return next((manifest.at for manifest in readable if manifest), None)

    def look_through(self, incarnation: Incarnation, see: Callable[[ObjectEntry], object]) -> Tiling:
        """What a chain comes to; fetches none of its objects, and tells nothing of what is wrong.

        Args:
            incarnation: whose chain it is.
            see: shown each object that the chain brings and that has not expired, in the order of the chain.

        Raises:
            UnreachableError: the store does not answer.
        """
        whole = resume(self._store, incarnation)
        read_on(self._store, whole)
        for link in links(self._store, incarnation):
            manifest = _decoded(link.data, link.key) if link.data is not None else None
            if manifest and manifest.incarnation == incarnation and manifest.kind is Kind.DATA:
                for entry in manifest.objects:
                    if not has_expired(whole, entry):
                        see(entry)
        return whole

    def read(
        self, incarnation: Incarnation, fits: Fits, tell: Tell, *, as_of: Tiling | None = None
    ) -> Generator[ReadObject, None, None]:
        """The objects of one incarnation that fit, in the order of the chain, each as its manifest says it is.

        Memory is for one object and two that are fetched ahead, and for the chain's partitions, however long it is.

        Args:
            incarnation: whose chain it is.
            fits: whether an object is wanted; asked once for each that the chain brings. Others are not fetched.
            tell: told what is wrong with the chain, and with objects that fit. Those are left out.
            as_of: the chain as somebody looked through it: none that had expired by then, and none that came later.

        Guarantees: an object that is handed out has the size and the SHA-256 that its manifest names, and its offsets
            rise within its range. One that has expired and is gone is left out without a word.
        Does not guarantee: whether one that has expired, and still lies there, is among them, unless `as_of`.

        Raises:
            UnreachableError: the store does not answer.
        """
        return _Reading(self._store, incarnation, tell, as_of).objects(fits)


@dataclass(frozen=True, slots=True)
class _Named:
    """An object that the chain brings, and the manifest that says so."""

    entry: ObjectEntry
    sequence: int

    def problem(self, what: str, key: str) -> Problem:
        return Problem(what, self.sequence, self.entry.partition, self.entry.first, self.entry.next, key)


class _Reading:
    """One incarnation's chain on the way from its first manifest to its last."""

    def __init__(self, store: ObjectStore, incarnation: Incarnation, tell: Tell, as_of: Tiling | None) -> None:
        self._store = store
        self._here = incarnation
        self._tell = tell
        self._as_of = as_of
        self._expiry = _Expiry(store, incarnation)
        self._told = 0

    def objects(self, fits: Fits) -> Generator[ReadObject, None, None]:
        """Those that fit and are what they should be."""
        ahead: deque[tuple[_Named, Future[bytes | None]]] = deque()
        pool = ThreadPoolExecutor(_AHEAD, thread_name_prefix="read back")
        try:
            with closing(self._named(fits)) as wanted:
                for named in wanted:
                    if self._is_left_out(named.entry):
                        continue
                    ahead.append((named, pool.submit(self._store.get, self._here.object_key(named.entry.name))))
                    if len(ahead) > _AHEAD:
                        yield from self._sound(*ahead.popleft())
            while ahead:
                yield from self._sound(*ahead.popleft())
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _is_left_out(self, entry: ObjectEntry) -> bool:
        """Whether an object is known to have expired: before the look that is asked for, or any that was made."""
        return has_expired(self._as_of, entry) if self._as_of else self._expiry.is_known_of(entry)

    def _named(self, fits: Fits) -> Generator[_Named, None, None]:
        """What the chain brings that fits, manifest by manifest."""
        tiling = Tiling(self._here)
        known = promised(self._store, self._as_of or tiling)
        with closing(self._links()) as found:
            for link in found:
                manifest = add(tiling, link)
                self._tell_news(tiling)
                if manifest and manifest.incarnation == self._here and manifest.kind is Kind.DATA:
                    yield from (_Named(entry, link.sequence) for entry in manifest.objects if fits(entry))
        self._tell_end(tiling, known)

    def _links(self) -> Generator[Link, None, None]:
        """The chain, up to where it ended when it was looked through; to its end where nobody asked for that."""
        for link in links(self._store, self._here):
            if self._as_of and link.sequence > self._as_of.head.sequence:
                return
            yield link

    def _tell_news(self, tiling: Tiling) -> None:
        for problem in tiling.problems.found[self._told :]:
            named = problem.key or self._here.manifest_key(problem.sequence or 0)
            self._tell(replace(problem, key=named))
        self._told = len(tiling.problems.found)

    def _tell_end(self, tiling: Tiling, known: int) -> None:
        """What can be told only at the chain's end."""
        last, problems = tiling.head.sequence, tiling.problems
        if problems.total > self._told:
            self._tell(Problem(f"{problems.total - self._told} more faults like these", key=self._here.manifests))
        if known > last:
            what = f"the chain ends at manifest {last}, but a summary names manifest {known}"
            self._tell(Problem(what, key=self._here.manifests))
        elif last < 0:
            self._tell(Problem("the chain has no manifest", key=self._here.manifests))
        if not problems.total:
            return  # then what was left out is lost, and no fault of the archive as it is now
        for number, state in sorted(tiling.partitions.items()):
            for first, next_ in state.lost.get(Cause.UNEXPLAINED, ()):
                what = "no readable manifest has these offsets"
                self._tell(Problem(what, None, number, first, next_, self._here.manifests))

    def _sound(self, named: _Named, fetched: Future[bytes | None]) -> Iterator[ReadObject]:
        """The object, where it is what its manifest says; otherwise what is wrong with it is told."""
        key = self._here.object_key(named.entry.name)
        data = fetched.result()
        if data is None:
            if not self._expiry.is_of(named.entry):
                self._tell(named.problem("the object is gone", key))
            return
        try:
            held = _held(self._here, named.entry, data)
        except CorruptArchiveError as error:
            self._tell(named.problem(error.what, key))
            return
        del data, fetched  # up to 64 MiB that nobody needs while the records are read
        yield held


class _Expiry:
    """What the chain has let expire, looked up when an object is not there: most readers never need it.

    Whatever is deleted has expired before in the chain, so it is read to its end after an object was found missing. Its
    last summary is believed for what came before; what is not in there is taken for missing, and that is told.
    """

    def __init__(self, store: ObjectStore, incarnation: Incarnation) -> None:
        self._store = store
        self._here = incarnation
        self._tiling: Tiling | None = None

    def is_known_of(self, entry: ObjectEntry) -> bool:
        """Whether an object has expired, as far as that was looked up."""
        return self._tiling is not None and has_expired(self._tiling, entry)

    def is_of(self, entry: ObjectEntry) -> bool:
        """Whether an object that is not there has expired."""
        if not self.is_known_of(entry):
            self.look()
        return self.is_known_of(entry)

    def look(self) -> None:
        """Look up what has expired by now."""
        if self._tiling is None:
            self._tiling = resume(self._store, self._here)
        read_on(self._store, self._tiling)


def _held(incarnation: Incarnation, entry: ObjectEntry, data: bytes) -> ReadObject:
    """What an object holds.

    Raises:
        CorruptArchiveError: its bytes are others than the entry says, or are no object of its range.
    """
    if (found := sha256_of(data)) != entry.sha256 or len(data) != entry.size_bytes:
        meant = f"{entry.size_bytes} bytes of {entry.sha256}"
        raise CorruptArchiveError(f"the object has {len(data)} bytes of SHA-256 {found}, not {meant}")
    held = read_object(data)
    partition = TopicPartition(incarnation.topic, incarnation.topic_id, entry.partition)
    if held.range != OffsetRange(partition, entry.first, entry.next):
        said = held.range
        raise CorruptArchiveError(f"the object names another range: {said} of topic id {said.partition.topic_id}")
    return held


def _decoded(data: bytes, key: str) -> Manifest | None:
    """A manifest; None where it says nothing, which whoever reads the chain is told."""
    try:
        return decode(data, Manifest, key)
    except CorruptArchiveError:
        return None
