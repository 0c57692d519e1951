"""Write a chain, one epoch at a time: take over, append, settle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol

from millrace.adapters.chain.documents import ChainManifest, decode, encode, sha256_of
from millrace.adapters.chain.links import Chained
from millrace.domain.chain.head import Head, Writer
from millrace.errors import ChainFencedError, CorruptArchiveError, ObjectExistsError, RefusedError
from millrace.ports.objects import ObjectStore


class ReadChain(Protocol[ChainManifest]):
    """A chain as far as its writer has read it: the state that the manifests add up to, and the rules of its kind."""

    @property
    def chained(self) -> Chained:
        """The keys of the chain."""
        ...

    @property
    def head(self) -> Head:
        """The last manifest that was read or written."""
        ...

    def promised(self) -> int:
        """Return the last manifest that a summary names, or -1. The writer asks this before it reads the chain.

        A summary that is made later may name manifests that came later.
        """
        ...

    def read_on(self, tell: Callable[[ChainManifest], object]) -> None:
        """Read the rest of the chain, to its head, and tell each manifest once it is part of the state.

        Raises:
            CorruptArchiveError: a manifest cannot be read, and this kind of chain does not pass over it.
        """
        ...

    def fault(self, manifest: ChainManifest) -> str:
        """Return why a manifest cannot be the next one; empty where it can."""
        ...

    def add(self, manifest: ChainManifest, sha256: str) -> object:
        """Take the next manifest into the state."""
        ...


class ChainWriter(Generic[ChainManifest]):
    """The one writer of a chain: an epoch that has taken it over.

    After an UnreachableError nobody knows whether the manifest was written: call `settle`, then plan again.

    Guarantees: a manifest that was acknowledged is the next one of the only chain. After `take_over` has returned, no
    older epoch writes a manifest, nor does another instance of this epoch, not even one that was paused meanwhile.
    Nothing is written behind a head that was deleted or changed, or in the place of manifests that a summary names.
    Does not guarantee: that the head is as it was when the manifest arrives. Between the look at the head and the
    write somebody may delete it; the next append stops then.

    Args:
        store: where the chain lies. It must never write over an object (`prove_create_only`).
        chain: as far as it has been read.
        writer: its epoch must be above that of every manifest but its own takeover.
    """

    def __init__(self, store: ObjectStore, chain: ReadChain[ChainManifest], writer: Writer) -> None:
        self._store = store
        self._chain: ReadChain[ChainManifest] = chain
        self._writer = writer
        self._promised = -1
        self._unsettled = False
        self._planned_on = chain.head

    @property
    def unsettled(self) -> bool:
        """True where nobody knows if the last manifest was written."""
        return self._unsettled

    def take_over(self, takeover: Callable[[], ChainManifest]) -> None:
        """Begin an epoch: write its takeover at the chain's first free place.

        A takeover of this writer that was written before its answer was lost counts.

        Args:
            takeover: makes the manifest behind the head; called again after each conflict.

        Raises:
            ChainFencedError: the chain has this epoch of another instance, or a newer one.
            CorruptArchiveError: nothing can follow the head, or a summary names later manifests.
            UnreachableError: the store does not answer; call it again.
        """
        self._promised = self._chain.promised()
        refused_at: Head | None = None
        while not self._has_begun():
            if self._chain.head == refused_at:
                raise self._blind()
            refused_at = self._chain.head
            try:
                self._write(takeover())
            except ObjectExistsError:
                continue
            return
        self._unsettled = False

    def _has_begun(self) -> bool:
        """Read on; return whether the takeover is there already."""
        self._chain.read_on(lambda manifest: None)
        self._stop_at_fault()
        head = self._chain.head
        if head.writer == self._writer:
            return True
        if head.epoch >= self._writer.epoch:
            raise self._fenced(head.writer)
        return False

    def append(self, following: Callable[[], ChainManifest]) -> ChainManifest:
        """Write the next manifest, whose objects are in the store already.

        Args:
            following: makes the manifest behind the head.

        Returns:
            The manifest.

        Raises:
            ChainFencedError: a newer epoch has taken over, or another instance of this one writes.
            CorruptArchiveError: the head is missing or changed, or nothing can follow it.
            ObjectExistsError: an earlier try of this writer, which it had given up, arrived after all; or a twin of
                this instance wrote. The chain is read: plan again.
            RefusedError: the manifest before it is not settled.
            UnreachableError: the store does not answer; call `settle`.
            ValueError: it cannot be the next one.
        """
        if self._unsettled:
            raise RefusedError("the outcome of the last manifest's write is unknown", next_step="call settle first")
        self._stop_at_fault()
        self.check()
        self._planned_on = self._chain.head
        manifest = following()
        try:
            self._write(manifest)
        except ObjectExistsError:
            if not self.settle():
                raise self._blind() from None
            raise
        return manifest

    def settle(self) -> bool:
        """Read the chain on, for example after an answer was lost.

        Returns:
            True where the chain has grown since the last `append` began: plans are to be made again.

        Raises:
            ChainFencedError: another writer has taken over.
            CorruptArchiveError: nothing can follow the head.
            UnreachableError: the store does not answer; call it again.
        """
        self._chain.read_on(self._must_be_ours)
        self._stop_at_fault()
        self.check()
        self._unsettled = False
        return self._chain.head != self._planned_on

    def check(self) -> None:
        """Raise ChainFencedError where another writer has taken over, as far as the chain has been read."""
        if (found := self._chain.head.writer) != self._writer:
            raise self._fenced(found)

    def _must_be_ours(self, manifest: ChainManifest) -> None:
        found = Writer(manifest.epoch, manifest.instance)
        if found != self._writer:
            raise self._fenced(found)

    def _write(self, manifest: ChainManifest) -> None:
        """Create a manifest, and adopt it where an equal one is there.

        After an ObjectExistsError the writer is unsettled: the chain must be read first.
        """
        if fault := self._chain.fault(manifest):
            raise ValueError(fault)
        data, key = encode(manifest), self._chain.chained.manifest_key(manifest.sequence)
        decode(data, type(manifest), key)  # what cannot be read again must not be written
        self._stop_at_changed_head()
        self._unsettled = True
        self._store.create(key, data)
        self._unsettled = False
        self._chain.add(manifest, sha256_of(data))

    def _stop_at_fault(self) -> None:
        """Stop where nothing can follow the head."""
        head, chained = self._chain.head, self._chain.chained
        if self._promised > head.sequence:
            raise CorruptArchiveError(
                f"the chain ends at manifest {head.sequence}, but a summary names manifest {self._promised}",
                where=chained.manifests,
                next_step="find out who deleted manifests; Millrace writes nothing in their place",
            )
        if head.says_nothing:
            raise CorruptArchiveError(
                f"no manifest can follow the chain's last manifest, {head.sequence}: {head.says_nothing}",
                where=chained.manifest_key(head.sequence),
                next_step="find out who changed it; the chain before it is complete",
            )

    def _stop_at_changed_head(self) -> None:
        """Stop where the head is missing or has other bytes: the next manifest would hide that for ever."""
        head = self._chain.head
        if head.sequence < 0:
            return
        key = self._chain.chained.manifest_key(head.sequence)
        data = self._store.get(key)
        if data is None or sha256_of(data) != head.sha256:
            raise CorruptArchiveError(
                f"the chain's last manifest, {head.sequence}, {'is missing' if data is None else 'has other bytes'}",
                where=key,
                next_step="find out who deleted or changed manifests; Millrace writes nothing behind them",
            )

    def _blind(self) -> CorruptArchiveError:
        return CorruptArchiveError(
            f"the store refuses manifest {self._chain.head.sequence + 1}, but has no manifest of this number",
            where=self._chain.chained.manifests,
            next_step="check why the store does not show that object: every object must be readable",
        )

    def _fenced(self, found: Writer) -> ChainFencedError:
        return ChainFencedError(
            found.epoch,
            found.instance,
            f"epoch {found.epoch} of another instance writes the chain; epoch {self._writer.epoch} is fenced",
            where=self._chain.chained.manifests,
            next_step="check which process writes there, unless it is the newer instance",
        )
