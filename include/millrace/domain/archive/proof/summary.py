"""A tiling put down beside the chain, so that the next one need not begin at the beginning.

It holds nothing but what follows from the chain up to its head, so two who sum up the same chain write the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.proof.partition import Cause, Look, PartitionState
from millrace.domain.archive.proof.spans import Span, Spans
from millrace.domain.archive.proof.tiling import Tiling
from millrace.domain.archive.records import is_sha256
from millrace.domain.chain.head import Head

VERSION = 1


@dataclass(frozen=True, slots=True)
class LostSpans:
    """What is lost for one cause."""

    cause: Cause
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class PartitionSummary:
    """`PartitionState` as text can hold it."""

    partition: int
    begin: int
    next: int
    looked_at: datetime
    log_start: int
    log_end: int
    delete_retention_ms: int | None
    records: int
    holes: int
    lost: tuple[LostSpans, ...]
    late: tuple[Span, ...]
    expired: tuple[Span, ...]
    diverged: tuple[Span, ...]
    acknowledged: tuple[Span, ...]
    cut: tuple[Span, ...]
    seemed_gone: bool

    @classmethod
    def of(cls, state: PartitionState) -> PartitionSummary:
        """A partition's state, as it is now."""
        return cls(
            state.number,
            state.begin,
            state.next,
            looked_at=state.look.at,
            log_start=state.look.start,
            log_end=state.look.end,
            delete_retention_ms=state.look.delete_retention_ms,
            records=state.records,
            holes=state.holes,
            lost=tuple(LostSpans(cause, tuple(spans)) for cause, spans in sorted(state.lost.items()) if spans),
            late=tuple(state.late),
            expired=tuple(state.expired),
            diverged=tuple(state.diverged),
            acknowledged=tuple(state.acknowledged),
            cut=tuple(state.cut),
            seemed_gone=state.seemed_gone,
        )

    def state(self) -> PartitionState:
        """The state it was made from."""
        return PartitionState(
            self.partition,
            self.begin,
            self.next,
            Look(self.looked_at, self.log_start, self.log_end, self.delete_retention_ms),
            records=self.records,
            holes=self.holes,
            lost={entry.cause: Spans(entry.spans) for entry in self.lost},
            late=Spans(self.late),
            expired=Spans(self.expired),
            diverged=Spans(self.diverged),
            acknowledged=Spans(self.acknowledged),
            cut=Spans(self.cut),
            seemed_gone=self.seemed_gone,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A proven chain up to its head: the manifest `sequence`, whose bytes have this SHA-256."""

    version: int = VERSION
    topic: str
    topic_id: str
    sequence: int
    sha256: str
    epoch: int
    instance: str
    born: int
    known: int
    partitions: tuple[PartitionSummary, ...]

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise ValueError(f"a summary of version {self.version}; this Millrace knows version {VERSION}")
        if self.sequence < 0 or not is_sha256(self.sha256):
            raise ValueError(f"a summary of no manifest: {self.sequence}, {self.sha256!r}")

    @classmethod
    def of(cls, tiling: Tiling) -> Summary:
        """A chain in which nothing is wrong, and nothing is lost without somebody's knowledge.

        Raises:
            ValueError: that is not so, or there is no chain.
        """
        unknown = [state.number for state in tiling.partitions.values() if state.unacknowledged()]
        if tiling.problems.total or unknown:
            raise ValueError(f"{tiling.incarnation}: {tiling.problems.total} problems, loss in partitions {unknown}")
        head = tiling.head
        return cls(
            topic=tiling.incarnation.topic,
            topic_id=tiling.incarnation.topic_id,
            sequence=head.sequence,
            sha256=head.sha256,
            epoch=head.epoch,
            instance=head.instance,
            born=tiling.born,
            known=tiling.known,
            partitions=tuple(PartitionSummary.of(state) for _, state in sorted(tiling.partitions.items())),
        )

    def tiling(self) -> Tiling:
        """The tiling it was made from, to which the manifests after it can be added."""
        tiling = Tiling(Incarnation(self.topic, self.topic_id))
        tiling.head = Head(self.sequence, self.sha256, self.epoch, self.instance)
        tiling.born = self.born
        tiling.known = self.known
        tiling.partitions = {entry.partition: entry.state() for entry in self.partitions}
        return tiling
