"""What only others saw, held against an archive: earlier audits, the group's commits, what people said to know of."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from millrace.domain.archive.acknowledgement import Known
from millrace.domain.archive.audit import Audit, Basis, Breach, BreachKind, EndSeen
from millrace.domain.archive.coverage import Coverage
from millrace.domain.archive.names import Incarnation
from millrace.domain.position import LogBounds


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
        text = f"manifest {self.sequence}: {self.by} knew of it, and {what}"
        return Breach(BreachKind.BROKEN, text, sequence=self.sequence, basis=Basis.MEMORY)


def ends_of(last: Audit | None, partition: int) -> tuple[EndSeen, ...]:
    """Ends of a partition's log, beyond what was archived, that audits saw."""
    found = next((one for one in last.partitions if one.partition == partition), None) if last else None
    return found.ends if found else ()


def forgotten(last: Audit | None, coverage: Coverage, bounds: dict[int, LogBounds]) -> Iterator[Breach]:
    """What an earlier audit saw in the log, that is neither there nor archived, and of which the chain says nothing.

    Args:
        last: the last audit.
        coverage: every offset's label by chain and log.
        bounds: of the log; empty where the topic is gone.
    """
    if last is None:
        return
    reach = {one.partition: max(one.archived_to, one.end) for one in coverage.partitions}
    for before in last.partitions:
        number = before.partition
        if number in bounds or coverage.gone:
            first, next_ = reach.get(number, 0), max((end.end for end in before.ends), default=0)
            if first < next_:
                why = "the topic was deleted" if coverage.gone else "it was cut off the log by an unclean election"
                text = f"partition {number} [{first}, {next_}) is lost: an audit saw it in the log, and {why}"
                yield Breach(BreachKind.LOST, text, number, first, next_, basis=Basis.MEMORY)
    for breach in last.breaches:
        if breach.basis is Basis.MEMORY and breach.kind is BreachKind.LOST:
            yield breach


def carried(last: Audit | None, unseen: Collection[str]) -> Iterator[Breach]:
    """Differences between Kafka and archive that an earlier audit found, and this one could not look for again.

    Args:
        last: the last audit.
        unseen: keys of the objects that it found fault with, are kept, and were not compared now.
    """
    for breach in last.breaches if last else ():
        if breach.basis is Basis.LOG and breach.key in unseen:
            yield breach


def unforgiven(breaches: Sequence[Breach], known: Known, here: Incarnation) -> Iterator[Breach]:
    """Breaches without what people have said to know of. What the chain calls lost is for the chain to forgive.

    Args:
        breaches: all of them; the same one twice counts once.
        known: what people said.
        here: whose archive it is.
    """
    for breach in dict.fromkeys(breaches):
        by_chain = breach.kind is BreachKind.LOST and breach.basis is Basis.ARCHIVE
        if by_chain or breach.kind is BreachKind.LATE:
            yield breach
        elif breach.partition is not None and breach.first is not None and breach.next is not None:
            rest = known.rest(breach.partition, breach.first, breach.next)
            yield from (replace(breach, first=first, next=next_) for first, next_ in rest)
        else:
            sequence = breach.sequence if breach.sequence is not None else here.sequence_of(breach.key)
            if sequence is None or sequence > known.sequence:
                yield breach


def waits_since(ends: Sequence[EndSeen]) -> datetime | None:
    """The first moment at which what waits was seen."""
    return ends[0].at if ends else None
