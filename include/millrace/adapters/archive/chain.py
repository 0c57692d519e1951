"""A chain in the object store: read from a summary or from its beginning, and written by one epoch at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from millrace.adapters.archive.documents import decode, encode, sha256_of
from millrace.domain.archive.chain import Standing, Writer, follow, standing
from millrace.domain.archive.coverage import Problem
from millrace.domain.archive.manifest import Kind, Manifest, ObjectEntry, PartitionSpan
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.summary import Summary
from millrace.domain.archive.tiling import ObservedLog, Tiling
from millrace.errors import CorruptArchiveError, FencedError, ObjectExistsError, RefusedError
from millrace.ports import ObjectStore

THREADS = 16
_AHEAD = 4 * THREADS
_AHEAD_BYTES = 32 << 20
_MISSING_EACH = 100  # missing manifests that are asked for one by one


@dataclass(frozen=True, slots=True)
class Link:
    """A manifest as it lies in the store; `data` is None where one is missing, or several up to this one."""

    sequence: int
    key: str
    data: bytes | None


@dataclass(frozen=True, slots=True)
class Stranger:
    """An object among a chain's manifests that is none."""

    key: str


def links(store: ObjectStore, incarnation: Incarnation, after: int = -1) -> Iterator[Link | Stranger]:
    """The manifests beyond a sequence, in order, until there is none behind the last.

    Several are fetched ahead, of at most 32 MiB together, unless one alone is larger.
    """
    last, first_look = after, True
    while True:
        began_at = last
        for found in _listed(store, incarnation, last):
            if isinstance(found, Link):
                yield from _missing(store, incarnation, last, found.sequence)
                last = found.sequence
            elif not first_look:
                continue
            yield found
        if last == began_at:
            return
        first_look = False


def _listed(store: ObjectStore, incarnation: Incarnation, after: int) -> Iterator[Link | Stranger]:
    pool = ThreadPoolExecutor(THREADS, thread_name_prefix="manifests")
    ahead: deque[tuple[int, str, int, Future[bytes | None]]] = deque()
    held = 0
    try:
        start = incarnation.manifest_key(after) if after >= 0 else ""
        for info in store.list(incarnation.manifests, after=start):
            sequence = incarnation.sequence_of(info.key)
            if sequence is None:
                yield Stranger(info.key)
                continue
            ahead.append((sequence, info.key, info.size_bytes, pool.submit(store.get, info.key)))
            held += info.size_bytes
            while len(ahead) > _AHEAD or (held > _AHEAD_BYTES and len(ahead) > 1):
                sequence, key, size_bytes, data = ahead.popleft()
                held -= size_bytes
                yield Link(sequence, key, data.result())
        while ahead:
            sequence, key, _, data = ahead.popleft()
            yield Link(sequence, key, data.result())
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _missing(store: ObjectStore, incarnation: Incarnation, last: int, found: int) -> Iterator[Link]:
    """What should lie between two manifests. A manifest is written after the one before it, so a listing has both."""
    for sequence in range(last + 1, min(found, last + 1 + _MISSING_EACH)):
        key = incarnation.manifest_key(sequence)
        yield Link(sequence, key, store.get(key))
    if found > last + 1 + _MISSING_EACH:
        yield Link(found - 1, incarnation.manifest_key(found - 1), None)


def add(tiling: Tiling, link: Link | Stranger) -> Manifest | None:
    """Take a manifest into a tiling, or what is wrong with it; the manifest, where it is one."""
    if isinstance(link, Stranger):
        tiling.problems.append(Problem("it is no manifest, and lies among them", key=link.key))
        return None
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
    other bytes is a problem of the chain, which is then to be read from its beginning.
    """
    last = ""
    for info in store.list(incarnation.summaries):
        last = info.key if incarnation.sequence_of(info.key) is not None else last
    data = store.get(last) if last else None
    if data is None:
        return Tiling(incarnation)
    try:
        summary = decode(data, Summary, last)
        tiling = summary.tiling()
    except (CorruptArchiveError, ValueError):
        return Tiling(incarnation)
    manifest = store.get(incarnation.manifest_key(summary.sequence))
    if tiling.incarnation == incarnation and manifest is not None and sha256_of(manifest) == summary.sha256:
        return tiling
    anew = Tiling(incarnation)
    missing = "is missing: the chain was cut off" if manifest is None else "has other bytes now"
    anew.problems.append(Problem(f"it sums up the chain to manifest {summary.sequence}, which {missing}", key=last))
    return anew


def put_summary(store: ObjectStore, tiling: Tiling) -> str:
    """Write the summary of a chain without faults beside it; its key.

    Raises:
        ValueError: something is wrong with the chain, or lost without anybody's knowledge.
    """
    key = tiling.incarnation.summary_key(tiling.head.sequence)
    store.create(key, encode(Summary.of(tiling)))
    return key


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

    @classmethod
    def take_over(
        cls, store: ObjectStore, tiling: Tiling, writer: Writer, look: Callable[[], ObservedLog]
    ) -> ChainWriter:
        """Begin a new epoch: write its takeover at the chain's first free place.

        Args:
            store: where the chain lies.
            tiling: the chain as far as it has been read.
            writer: its epoch must be above that of every manifest, but for its own takeover, written before an answer
                was lost.
            look: asks for the topic's log; called anew after each conflict.

        Raises:
            FencedError: the chain has this epoch of another instance, or a newer one.
            CorruptArchiveError: the last manifest cannot be read, so nobody knows what to go on from.
            UnreachableError: the store does not answer; the same again.
        """
        chain = cls(store, tiling, writer)
        refused_at = None
        while not chain._taken_over:
            read_on(store, tiling)
            if tiling.head == refused_at:
                raise CorruptArchiveError(
                    f"the store refuses manifest {tiling.head.sequence + 1} and lists none of this number",
                    where=tiling.incarnation.manifests,
                    next_step="see whether the store's listings show what was written",
                )
            chain._stop_at_unreadable_head()
            if (tiling.head.epoch, tiling.head.instance) == (writer.epoch, writer.instance):
                chain._taken_over = True
            elif tiling.head.epoch >= writer.epoch:
                raise chain._fenced(tiling.head.epoch)
            else:
                try:
                    chain.append(Kind.TAKEOVER, look())
                    chain._taken_over = True
                except ObjectExistsError:  # somebody was quicker: an older epoch, or one that ends this one
                    refused_at = tiling.head
        return chain

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
            FencedError: a newer epoch has taken over, or another instance of this one writes.
            ObjectExistsError: a try of this writer that had been given up came through after all: plan again.
            RefusedError: the one before is not settled.
            UnreachableError: the store does not answer; `settle`.
        """
        if self._unsettled:
            raise RefusedError("nobody knows whether the last manifest was written", next_step="call settle first")
        entries: dict[str, object] = {"objects": objects, "acknowledged": acknowledged}
        manifest = follow(self.tiling, self._writer, kind, log, by=by, reason=reason, **entries)  # type: ignore[arg-type]
        data = encode(manifest)
        self._unsettled = True
        try:
            self._store.create(self.tiling.incarnation.manifest_key(manifest.sequence), data)
        except ObjectExistsError:
            self._unsettled = False
            if self._taken_over:
                self.settle()
            raise
        self._unsettled = False
        self.tiling.add(manifest, sha256_of(data))
        return manifest

    def settle(self) -> bool:
        """Read the chain on, after an answer was lost; whether it has grown, so that plans are to be made anew.

        Raises:
            FencedError: by somebody else's manifest.
            UnreachableError: the store does not answer; the same again.
        """
        before = self.tiling.head
        for link in links(self._store, self.tiling.incarnation, before.sequence):
            manifest = add(self.tiling, link)
            if manifest and standing(self._writer, self._taken_over, manifest) is Standing.FENCED:
                raise self._fenced(manifest.epoch)
        self._stop_at_unreadable_head()
        self._unsettled = False
        return self.tiling.head != before

    def _stop_at_unreadable_head(self) -> None:
        if self.tiling.head.says_nothing:
            raise CorruptArchiveError(
                f"the chain's last manifest says nothing that can be gone on from: {self.tiling.head.says_nothing}",
                where=self.tiling.incarnation.manifest_key(self.tiling.head.sequence),
                next_step="look for who changed it; the archive before it is whole",
            )

    def _fenced(self, epoch: int) -> FencedError:
        return FencedError(
            f"epoch {epoch} of another instance writes the chain, epoch {self._writer.epoch} may no longer",
            where=self.tiling.incarnation.manifests,
            next_step="nothing where it is the newer one; otherwise see which other process backs this topic up",
        )
