"""What only others saw, held against an archive: earlier audits, the group's commits, what people said to know of."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from millrace.domain.archive.audits.acknowledgement import Known
from millrace.domain.archive.audits.findings import (
    Audit,
    Basis,
    Breach,
    BreachKind,
    EndSeen,
    Loss,
    PartitionAudit,
    Why,
)
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.proof.coverage import Coverage
from millrace.domain.archive.proof.partition import Label
from millrace.domain.archive.proof.spans import Spans
from millrace.domain.streams.position import LogBounds

MOST_REMEMBERED = 300


@dataclass(frozen=True, slots=True)
class Claim:
    """Somebody saw this manifest: its number, the SHA-256 of its bytes, and who says so."""

    sequence: int
    sha256: str
    by: str

    def fault(self, head: int, found: str | None) -> Breach | None:
        """What is wrong with a chain in which the manifest is not what it was; None: nothing.

        Args:
            head: the chain's last sequence, read after the claim was made.
            found: SHA-256 of the manifest now; None where there is none.
        """
        if found == self.sha256:
            return None
        what = f"the chain ends at manifest {head}" if self.sequence > head else "it is missing"
        if found is not None:
            what = "it has other bytes now"
        text = f"manifest {self.sequence}: {self.by} knew of it, but {what}"
        return Breach(BreachKind.BROKEN, text, sequence=self.sequence, basis=Basis.MEMORY)


@dataclass(frozen=True, slots=True)
class Memory:
    """What audits before this one knew: those of which no other one knew, by what each says of itself and by no clock.

    Attributes:
        audits: these, the newest first.
        keys: of their evidence, and of what they knew of.
        changed: keys of evidence that cannot be read any more.
    """

    audits: tuple[Audit, ...] = ()
    keys: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    @classmethod
    def of(cls, found: Mapping[str, Audit], changed: Collection[str] = ()) -> Memory:
        """The memory of these audits, by the keys of their evidence."""
        remembered = {key for audit in found.values() for key in audit.remembers}
        kept = [audit for key, audit in found.items() if key not in remembered]
        keys = sorted({*remembered, *found}, key=lambda key: key.rpartition("/")[2])
        still = dict.fromkeys([*changed, *(key for audit in kept for key in audit.changed)])
        return cls(
            tuple(sorted(kept, key=lambda audit: audit.at, reverse=True)), tuple(keys[-MOST_REMEMBERED:]), tuple(still)
        )

    @property
    def is_broken(self) -> bool:
        """Whether something was wrong with chain or objects."""
        return any(audit.count(BreachKind.BROKEN) for audit in self.audits)

    @property
    def has_unnamed(self) -> bool:
        """Whether there were more objects with a fault than could be named."""
        return any(audit.looked.unnamed for audit in self.audits)

    @property
    def suspects(self) -> frozenset[str]:
        """Keys of the objects with which something was wrong."""
        return frozenset(key for audit in self.audits for key in audit.suspects)

    @property
    def differences(self) -> tuple[Breach, ...]:
        """Objects that were found to differ from Kafka."""
        return tuple(dict.fromkeys(breach for audit in self.audits for breach in audit.differences))

    def claims(self) -> Iterator[Claim]:
        """What they knew of the chain."""
        for audit in self.audits:
            if audit.furthest >= 0:
                by = f"the audit of {audit.at:%Y-%m-%d %H:%M:%S} UTC"
                yield Claim(audit.furthest, audit.furthest_sha256, by)

    def partitions(self) -> dict[int, PartitionAudit]:
        """Each partition as one of them saw it: the newest in which it stands, with the ends that all of them saw."""
        found: dict[int, PartitionAudit] = {}
        for audit in self.audits:
            for one in audit.partitions:
                former = found.get(one.partition, one)
                found[one.partition] = former if former is one else replace(former, ends=(*former.ends, *one.ends))
        return found


def losses(memory: Memory, coverage: Coverage, bounds: Mapping[int, LogBounds]) -> tuple[Loss, ...]:
    """What earlier audits saw in the log or the archive, that is in neither now, and of which the chain says nothing.

    Args:
        memory: what they knew.
        coverage: every offset's label by chain and log.
        bounds: of the log; empty where the topic is gone.
    """
    now = {one.partition: one for one in coverage.partitions}
    found: dict[tuple[int, Why], Spans] = {}

    def add(number: int, why: Why, first: int, next_: int) -> None:
        found.setdefault((number, why), Spans()).add(first, next_)

    for loss in (loss for audit in memory.audits for loss in audit.losses):
        part = now.get(loss.partition)
        if loss.why is Why.REPLACED:
            add(loss.partition, loss.why, loss.first, min(loss.next, part.begin) if part else loss.next)
        elif loss.why is not Why.GONE or coverage.gone:  # a topic that is there was only not to be seen for a while
            add(loss.partition, loss.why, loss.first, loss.next)
    for number, before in memory.partitions().items():
        seen_to = max((end.end for end in before.ends), default=0)
        waited, part = _first_waiting(before), now.get(number)
        if number in bounds or coverage.gone:
            reach = max(part.archived_to, part.end) if part else waited
            add(number, Why.GONE if coverage.gone else Why.CUT, max(reach, waited), max(reach, seen_to))
        if part is None:
            continue
        if not coverage.gone:
            add(number, Why.UNREAD, waited, min(part.begin, seen_to))
        told = Spans((tile.first, tile.next) for tile in before.tiles)  # lost, expired: not archived then either
        for span in told.outside(before.begin, min(before.archived_to, part.begin)):
            add(number, Why.REPLACED, *span)
    return tuple(Loss(number, *span, why) for (number, why), spans in sorted(found.items()) for span in spans)


def _first_waiting(before: PartitionAudit) -> int:
    waiting = (tile.first for tile in before.tiles if tile.label is Label.PENDING)
    return max(before.archived_to, before.begin, next(waiting, 0))


def unforgiven(breaches: Sequence[Breach], known: Known, here: Incarnation) -> Iterator[Breach]:
    """Breaches without what people have said to know of. What the chain calls lost is for the chain to forgive.

    Args:
        breaches: all of them; the same one twice counts once.
        known: what people said: of a fault they said it of this very one, and not of a later one of the same offsets.
        here: whose archive it is.
    """
    for breach in dict.fromkeys(breaches):
        by_chain = breach.kind is BreachKind.LOST and breach.basis is Basis.ARCHIVE
        if by_chain or breach.kind is BreachKind.LATE:
            yield breach
        elif breach.kind is BreachKind.LOST and breach.partition is not None and breach.first is not None:
            rest = known.rest(breach.partition, breach.first, breach.next or 0)
            yield from (replace(breach, first=first, next=next_) for first, next_ in rest)
        elif breach.text not in known.faults and not _is_known(breach, known, here):
            yield breach


def _is_known(breach: Breach, known: Known, here: Incarnation) -> bool:
    """Whether a fault is of a manifest of which somebody said that it may be missing or changed."""
    if breach.partition is not None:
        return False
    sequence = breach.sequence if breach.sequence is not None else here.sequence_of(breach.key)
    return sequence is not None and sequence <= known.sequence


def waits_since(ends: Sequence[EndSeen]) -> datetime | None:
    """The first moment at which what waits was seen."""
    return ends[0].at if ends else None


@dataclass(frozen=True, slots=True)
class Remembered:
    """What audits of an incarnation remember, and the last that looked deep."""

    memory: Memory
    last_deep: Audit | None
