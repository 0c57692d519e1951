"""Write the chain of a topic's archive."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from millrace.adapters.archive.chain import read_on
from millrace.adapters.archive.summaries import promised
from millrace.adapters.chain.writer import ChainWriter
from millrace.domain.archive.chain import follow
from millrace.domain.archive.manifest import Kind, Manifest, ObjectEntry, PartitionSpan
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.proof.tiling import ObservedLog, Tiling, link_faults
from millrace.domain.chain.head import Head, Writer
from millrace.errors import Code, RefusedError
from millrace.ports.objects import ObjectStore


class _ProvenChain:
    """A topic's chain and its proof (`ReadChain`): what cannot be read is a problem of the proof, not an error."""

    def __init__(self, store: ObjectStore, tiling: Tiling) -> None:
        self._store = store
        self._tiling = tiling

    @property
    def chained(self) -> Incarnation:
        return self._tiling.incarnation

    @property
    def head(self) -> Head:
        return self._tiling.head

    def promised(self) -> int:
        return promised(self._store, self._tiling)

    def read_on(self, tell: Callable[[Manifest], object]) -> None:
        read_on(self._store, self._tiling, tell)

    def fault(self, manifest: Manifest) -> str:
        return next(link_faults(self._tiling.head, self._tiling.incarnation, manifest), "")

    def add(self, manifest: Manifest, sha256: str) -> None:
        self._tiling.add(manifest, sha256)


class ArchiveWriter:
    """The one writer of a topic's chain (see `ChainWriter`).

    Attributes:
        tiling: the chain up to its head.
    """

    def __init__(self, store: ObjectStore, tiling: Tiling, writer: Writer) -> None:
        self.tiling = tiling
        self._writer = writer
        self._chain = ChainWriter(store, _ProvenChain(store, tiling), writer)

    @classmethod
    def take_over(
        cls, store: ObjectStore, tiling: Tiling, writer: Writer, look: Callable[[], ObservedLog]
    ) -> ArchiveWriter:
        """Begin a new epoch: write its takeover at the chain's first free place.

        Args:
            store: where the chain lies.
            tiling: the chain as far as it has been read, from the last summary (`resume`) or the beginning.
            writer: its epoch must be above that of every manifest but its own takeover.
            look: asks for the topic's log; called again after each conflict.

        Raises:
            ChainFencedError, CorruptArchiveError, UnreachableError: as `ChainWriter.take_over` says.
            RefusedError: the topic is gone and has no chain.
        """
        chain = cls(store, tiling, writer)
        chain._chain.take_over(lambda: chain._takeover(look()))
        return chain

    def _takeover(self, log: ObservedLog) -> Manifest:
        here = self.tiling.incarnation
        if self.tiling.head.sequence < 0 and log.topic_id != here.topic_id:
            raise RefusedError(
                f"{here} does not exist in Kafka and has no chain",
                where=here.manifests,
                next_step=f"start the chain of the topic that has this name now ({log.topic_id})",
                code=Code.RECREATED_TOPIC,
            )
        return follow(self.tiling, self._writer, Kind.TAKEOVER, log)

    @property
    def unsettled(self) -> bool:
        """True where nobody knows if the last manifest was written."""
        return self._chain.unsettled

    def settle(self) -> bool:
        """Read the chain on, for example after an answer was lost; see `ChainWriter.settle`."""
        return self._chain.settle()

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
        """Write the next manifest, whose objects are in the store already (see `follow`).

        Raises:
            ChainFencedError, CorruptArchiveError, ObjectExistsError, RefusedError, UnreachableError, ValueError: as
                `ChainWriter.append` says.
        """
        return self._chain.append(
            lambda: follow(
                self.tiling,
                self._writer,
                kind,
                log,
                objects=objects,
                acknowledged=acknowledged,
                by=by,
                reason=reason,
            )
        )
