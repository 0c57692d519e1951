"""A chain in the object store: read from a summary or from its beginning, and written by one epoch at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from millrace.adapters.chain.documents import decode, encode, sha256_of
from millrace.domain.archive.chain import Writer, fences, follow
from millrace.domain.archive.manifest import Kind, Manifest, ObjectEntry, PartitionSpan
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.proof.coverage import Problem
from millrace.domain.archive.proof.summary import Summary
from millrace.domain.archive.proof.tiling import ObservedLog, Tiling
from millrace.errors import ChainFencedError, CorruptArchiveError, ObjectExistsError, RefusedError
from millrace.ports.objects import ObjectStore

THREADS = 16
_AHEAD = 4 * THREADS
_AHEAD_BYTES = 32 << 20
SUMMARIES_KEPT = 10
_MISSING_EACH = 100  # missing manifests that are asked for one by one


class Chained(Protocol):
    """What a chain is of: it knows the keys of its manifests, which are numbered from 0."""

    @property
    def manifests(self) -> str:
        """What every manifest's key begins with."""
        ...

    def manifest_key(self, sequence: int) -> str:
        """The key of a manifest."""
        ...

    def sequence_of(self, key: str) -> int | None:
        """The sequence that a manifest's key names; None where it is none."""
        ...


@dataclass(frozen=True, slots=True)
class Link:
    """A manifest as it lies in the store; `data` is None where one is missing, or several up to this one."""

    sequence: int
    key: str
    data: bytes | None


def links(
    store: ObjectStore, chained: Chained, after: int = -1, stranger: Callable[[str], object] = lambda key: None
) -> Iterator[Link]:
    """The manifests beyond a sequence, in order, until there is none behind the last.

    Listings only tell what can be fetched ahead, at most 32 MiB together unless one alone is larger: some stores leave
    objects out while others are written (s3proxy over a folder, tried). What decides is whether the next one is there.

    Args:
        store: where they lie.
        chained: what the chain is of.
        after: the last sequence that is known.
        stranger: told the key of each object among the manifests that is none.
    """
    last = after
    while True:
        for found in _listed(store, chained, last, stranger):
            yield from _between(store, chained, last, found.sequence)
            last = found.sequence
            yield found
        key = chained.manifest_key(last + 1)
        data = store.get(key)
        if data is None:
            return
        last, stranger = last + 1, lambda key: None  # the next listing shows the same ones again
        yield Link(last, key, data)


def _listed(store: ObjectStore, chained: Chained, after: int, stranger: Callable[[str], object]) -> Iterator[Link]:
    pool = ThreadPoolExecutor(THREADS, thread_name_prefix="manifests")
    ahead: deque[tuple[int, str, int, Future[bytes | None]]] = deque()
    held = 0
    try:
        start = chained.manifest_key(after) if after >= 0 else ""
        for info in store.list(chained.manifests, after=start):
            sequence = chained.sequence_of(info.key)
            if sequence is None:
                stranger(info.key)
                continue
            ahead.append((sequence, info.key, info.size_bytes, pool.submit(store.get, info.key)))
            held += info.size_bytes
            while len(ahead) > _AHEAD or (held > _AHEAD_BYTES and len(ahead) > 1):
                held -= ahead[0][2]
                yield from _taken(*ahead.popleft())
        while ahead:
            yield from _taken(*ahead.popleft())
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _taken(sequence: int, key: str, _: int, data: Future[bytes | None]) -> Iterator[Link]:
    """A manifest that was fetched ahead. One that is not there after all is missing if another one follows it."""
    if (found := data.result()) is not None:
        yield Link(sequence, key, found)


def _between(store: ObjectStore, chained: Chained, last: int, found: int) -> Iterator[Link]:
    """What lies between two manifests that were listed, or is missing there."""
    for sequence in range(last + 1, min(found, last + 1 + _MISSING_EACH)):
        key = chained.manifest_key(sequence)
        yield Link(sequence, key, store.get(key))
    if found > last + 1 + _MISSING_EACH:
        yield Link(found - 1, chained.manifest_key(found - 1), None)


def add(tiling: Tiling, link: Link) -> Manifest | None:
    """Take a manifest into a tiling, or what is wrong with it; the manifest, where it is one."""
    if link.data is None:
        before = tiling.head.sequence
        several = f"manifests {before + 1} to {link.sequence} are missing"
        tiling.pass_over(link.sequence, "", "it is missing" if link.sequence == before + 1 else several)
        return None
    try:
        manifest = decode(link.data, Manifest, link.key)
    except CorruptArchiveError as error:
        tiling.pass_over(link.sequence, sha256_of(link.data), error.what)
        return None
    if manifest.sequence != link.sequence:
        tiling.pass_over(link.sequence, sha256_of(link.data), f"it says it is manifest {manifest.sequence}")
        return None
    tiling.add(manifest, sha256_of(link.data))
    return manifest


def read_on(store: ObjectStore, tiling: Tiling) -> None:
    """Take the rest of a chain into a tiling, to its head."""
    for link in links(store, tiling.incarnation, tiling.head.sequence):
        add(tiling, link)


def resume(store: ObjectStore, incarnation: Incarnation) -> Tiling:
    """A tiling up to the chain's last summary, or an empty one.

    A summary that cannot be read is left aside: the chain alone says the same. One whose manifest is missing or has
    other bytes is a problem of the chain, which is then to be read from its beginning. Where a listing leaves the last
    one out, an earlier one does as well.
    """
    sequence = last_summary(store, incarnation)
    tiling = _summed_up(store, incarnation, sequence)
    tiling.promised = sequence
    return tiling


def promised(store: ObjectStore, tiling: Tiling) -> int:
    """The last sequence that a summary of the chain names, -1 where there is none; asked for once a tiling.

    To be asked for before the chain is read: a summary that is made later may name what has come since.
    """
    if tiling.promised is None:
        tiling.promised = last_summary(store, tiling.incarnation)
    return tiling.promised


def last_summary(store: ObjectStore, incarnation: Incarnation) -> int:
    """Return the last sequence that a summary of the chain names, by a listing; -1 where there is none."""
    sequences = (incarnation.sequence_of(info.key) for info in store.list(incarnation.summaries))
    return max((sequence for sequence in sequences if sequence is not None), default=-1)


def _summed_up(store: ObjectStore, incarnation: Incarnation, sequence: int) -> Tiling:
    anew, key = Tiling(incarnation), incarnation.summary_key(max(sequence, 0))
    data = store.get(key) if sequence >= 0 else None
    if data is None:
        return anew
    try:
        summary = decode(data, Summary, key)
        tiling = summary.tiling()
    except (CorruptArchiveError, ValueError):
        return anew
    if tiling.incarnation != incarnation or summary.sequence != sequence:
        return anew
    manifest = store.get(incarnation.manifest_key(sequence))
    if manifest is not None and sha256_of(manifest) == summary.sha256:
        return tiling
    missing = "is missing: the chain was cut off" if manifest is None else "has other bytes now"
    anew.problems.append(Problem(f"it sums up the chain to manifest {sequence}, which {missing}", key=key))
    return anew


def put_summary(store: ObjectStore, tiling: Tiling) -> str:
    """Write the summary of a chain without faults beside it; its key.

    Raises:
        ValueError: something is wrong with the chain, or lost without anybody's knowledge.
    """
    key = tiling.incarnation.summary_key(tiling.head.sequence)
    store.create(key, encode(Summary.of(tiling)))
    return key


def drop_old_summaries(store: ObjectStore, tiling: Tiling) -> None:
    """Delete summaries but the last ten: the last serves, those before it where a listing leaves it out."""
    here = tiling.incarnation
    found = sorted(s for info in store.list(here.summaries) if (s := here.sequence_of(info.key)) is not None)
    old = [sequence for sequence in found if sequence < tiling.head.sequence][: -(SUMMARIES_KEPT - 1)]
    if old:
        store.delete([here.summary_key(sequence) for sequence in old])


def forget_false_summaries(store: ObjectStore, tiling: Tiling, known: int) -> None:
    """Delete summaries of manifests that are gone and will be written anew, as far as somebody said to know of that.

    Args:
        store: where they lie.
        tiling: the chain, read to its head.
        known: the last manifest that is known to be missing or changed.
    """
    here, head = tiling.incarnation, tiling.head.sequence
    found = (here.sequence_of(info.key) for info in store.list(here.summaries))
    false = [sequence for sequence in found if sequence is not None and head < sequence <= known]
    if false:
        store.delete([here.summary_key(sequence) for sequence in false])
        tiling.promised = None


class ChainWriter:
    """The one writer of a chain: an epoch that has taken it over.

    `tiling` is the chain up to its head. After an UnreachableError nobody knows whether the manifest was written: call
    `settle`, then plan again.
    """

    def __init__(self, store: ObjectStore, tiling: Tiling, writer: Writer) -> None:
        self.tiling = tiling
        self._store = store
        self._writer = writer
        self._taken_over = False
        self._unsettled = False
        self._planned_on = tiling.head

    @property
    def unsettled(self) -> bool:
        """Whether nobody knows if the last manifest was written."""
        return self._unsettled

    @classmethod
    def take_over(
        cls, store: ObjectStore, tiling: Tiling, writer: Writer, look: Callable[[], ObservedLog]
    ) -> ChainWriter:
        """Begin a new epoch: write its takeover at the chain's first free place.

        Args:
            store: where the chain lies.
            tiling: the chain as far as it has been read, from the last summary (`resume`) or the beginning.
            writer: its epoch must be above that of every manifest, but for its own takeover, written before an answer
                was lost.
            look: asks for the topic's log; called anew after each conflict.

        Raises:
            ChainFencedError: the chain has this epoch of another instance, or a newer one.
            CorruptArchiveError: the last manifest cannot be read, or a summary knows of later ones than are there:
                nobody knows what to go on from.
            RefusedError: the topic is gone and has no chain.
            UnreachableError: the store does not answer; the same again.
        """
        chain = cls(store, tiling, writer)
        promised(store, tiling)
        refused_at = None
        while not chain._taken_over:
            read_on(store, tiling)
            chain._stop_at_cut_off_chain()
            if (tiling.head.epoch, tiling.head.instance) == (writer.epoch, writer.instance):
                chain._taken_over = True
            elif tiling.head.epoch >= writer.epoch:
                raise chain._fenced(tiling.head.epoch, tiling.head.instance)
            elif tiling.head == refused_at:
                raise chain._blind()
            else:
                refused_at = tiling.head
                chain._taken_over = chain._try_to_take_over(look())
        return chain

    def _try_to_take_over(self, log: ObservedLog) -> bool:
        """Whether nobody was quicker: an older epoch, or a newer one that ends this one."""
        here = self.tiling.incarnation
        if self.tiling.head.sequence < 0 and log.topic_id != here.topic_id:
            raise RefusedError(
                f"{here} is not there, and no chain of it",
                where=here.manifests,
                next_step=f"begin the chain of the topic that has the name now ({log.topic_id})",
            )
        try:
            self.append(Kind.TAKEOVER, log)
        except ObjectExistsError:
            return False
        return True

    def append(
        self,
        kind: Kind,
        log: ObservedLog,
        *,
        objects: Sequence[ObjectEntry] = (),
        acknowledged: Sequence[PartitionSpan] = (),
        by: str = "",
        reason: str = "",
    ) -> Manifest:
        """Write the next manifest; its objects are in the store already (see `domain.archive.chain.follow`).

        Raises:
            ChainFencedError: a newer epoch has taken over, or another instance of this one writes.
            ObjectExistsError: a try of this writer that had been given up came through after all: plan again.
            RefusedError: the one before is not settled.
            UnreachableError: the store does not answer; `settle`.
        """
        if self._unsettled:
            raise RefusedError("nobody knows whether the last manifest was written", next_step="call settle first")
        self._stop_at_cut_off_chain()
        self._stop_at_deleted_head()
        head, me = self.tiling.head, self._writer
        if self._taken_over and (head.epoch, head.instance) != (me.epoch, me.instance):
            raise self._fenced(head.epoch, head.instance)
        manifest = follow(
            self.tiling,
            me,
            kind,
            log,
            objects=objects,
            acknowledged=acknowledged,
            by=by,
            reason=reason,
        )
        self._write(manifest)
        return manifest

    def _write(self, manifest: Manifest) -> None:
        data, key = encode(manifest), self.tiling.incarnation.manifest_key(manifest.sequence)
        decode(data, Manifest, key)  # what cannot be read again must not be written
        self._unsettled, self._planned_on = True, self.tiling.head
        try:
            self._store.create(key, data)
        except ObjectExistsError:
            if self._taken_over and not self.settle():
                raise self._blind() from None
            self._unsettled = False
            raise
        self._unsettled = False
        self.tiling.add(manifest, sha256_of(data))

    def settle(self) -> bool:
        """Read the chain on, after an answer was lost; whether it has grown since, so that plans are to be made anew.

        Raises:
            ChainFencedError: by somebody else's manifest.
            UnreachableError: the store does not answer; the same again.
        """
        for link in links(self._store, self.tiling.incarnation, self.tiling.head.sequence):
            manifest = add(self.tiling, link)
            if manifest and fences(manifest, self._writer, self._taken_over):
                raise self._fenced(manifest.epoch, manifest.instance)
        self._stop_at_cut_off_chain()
        self._unsettled = False
        return self.tiling.head != self._planned_on

    def _stop_at_cut_off_chain(self) -> None:
        if (known := promised(self._store, self.tiling)) > self.tiling.head.sequence:
            raise CorruptArchiveError(
                f"the chain ends at manifest {self.tiling.head.sequence}; a summary knows of {known}",
                where=self.tiling.incarnation.manifests,
                next_step="look for who deleted manifests; nothing is written into their place",
            )
        if self.tiling.head.says_nothing:
            raise CorruptArchiveError(
                f"the chain's last manifest says nothing that can be gone on from: {self.tiling.head.says_nothing}",
                where=self.tiling.incarnation.manifest_key(self.tiling.head.sequence),
                next_step="look for who changed it; the archive before it is whole",
            )

    def _stop_at_deleted_head(self) -> None:
        """Stop where the last manifest is gone: another one behind the gap would hide it for ever."""
        sequence, key = self.tiling.head.sequence, self.tiling.incarnation.manifest_key(self.tiling.head.sequence)
        if sequence >= 0 and self._store.head(key) is None:
            raise CorruptArchiveError(
                f"the chain's last manifest, {sequence}, is gone",
                where=key,
                next_step="look for who deleted manifests; nothing is written behind them",
            )

    def _blind(self) -> CorruptArchiveError:
        return CorruptArchiveError(
            f"the store refuses manifest {self.tiling.head.sequence + 1}, and has none of this number",
            where=self.tiling.incarnation.manifests,
            next_step="look at the store: what is there must be readable",
        )

    def _fenced(self, epoch: int, instance: str) -> ChainFencedError:
        return ChainFencedError(
            epoch,
            instance,
            f"epoch {epoch} of another instance writes the chain, epoch {self._writer.epoch} may no longer",
            where=self.tiling.incarnation.manifests,
            next_step="nothing where it is the newer one; otherwise see which other process backs this topic up",
        )
