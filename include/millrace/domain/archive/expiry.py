"""What a backup no longer has to keep: the beginning of a chain, up to a manifest that is older than `keep`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from types import MappingProxyType

from millrace.domain.archive.manifest import Kind, Manifest, ObjectEntry
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.proof.coverage import Problems
from millrace.domain.archive.proof.partition import Tile
from millrace.domain.archive.proof.spans import Spans
from millrace.domain.archive.proof.tiling import Tiling

_MOST_TOLD = 20


@dataclass(frozen=True, slots=True)
class Expiry:
    """What people ask a backup to let go: only its own app writes the chain, so it is asked.

    Attributes:
        identity: of the row that holds it; None before it is asked.
        app: PIPELINE.backup, that is asked.
        incarnation: whose chain it is about.
        sequence: of the last manifest whose objects may go; those of the manifests before it go as well.
        by: who asks, and `reason` why.
    """

    identity: int | None
    app: str
    incarnation: Incarnation
    sequence: int
    by: str
    reason: str


@dataclass(frozen=True, slots=True)
class Done:
    """What became of an expiry: done up to manifest `reached`; `fault`: why not all of it was, empty where it was."""

    reached: int
    fault: str = ""


def is_due(manifest: Manifest, keep: timedelta | None, now: datetime) -> bool:
    """Whether what a manifest brings was archived longer ago than it has to be kept; `keep` None: for ever."""
    return keep is not None and manifest.at <= now - keep


@dataclass(slots=True)
class DuePart:
    """The beginning of a chain that is due, found by seeing the chain's entries in their order.

    Attributes:
        keep: for how long at least what is archived is kept; None: for ever.
        now: the present.
        sequence: of the last manifest that is due; -1: none is.
    """

    keep: timedelta | None
    now: datetime
    sequence: int = -1
    _spans: dict[int, Spans] = field(default_factory=dict)
    _ended: bool = False

    def see(self, entry: ObjectEntry, manifest: Manifest) -> None:
        """Take an entry in. Behind the first one that is not due nothing is, whatever a clock then said."""
        self._ended = self._ended or not is_due(manifest, self.keep, self.now)
        if not self._ended:
            self.sequence = manifest.sequence
            self._spans.setdefault(entry.partition, Spans()).add(entry.first, entry.next)

    def offsets(self, tiling: Tiling) -> int:
        """How many offsets are due and have not expired by the chain up to its head."""
        states = tiling.partitions
        rest = (spans.minus(states[number].expired) for number, spans in self._spans.items() if number in states)
        return sum(next_ - first for spans in rest for first, next_ in spans)


def expired_to(read: Callable[[int], Manifest | None], tiling: Tiling, last: int) -> int:
    """Behind which manifest what has not expired begins; found in as many reads as its number has digits in base 2.

    Objects expire in the order of the chain, so those of all manifests up to there have expired.

    Args:
        read: gives the manifest of a number; None where there is none that can be read.
        tiling: the chain up to its head.
        last: where to end.
    """
    low, high = -1, last + 1
    while high - low > 1:
        middle = (low + high) // 2
        number, found = middle, read(middle)
        while number + 1 < high and (found is None or found.kind is not Kind.DATA):
            number += 1
            found = read(number)
        if found is not None and found.kind is Kind.DATA and all(has_expired(tiling, each) for each in found.objects):
            low = number
        else:
            high = middle
    return low


def has_expired(tiling: Tiling, entry: ObjectEntry) -> bool:
    """Whether the chain has let an object go."""
    state = tiling.partitions.get(entry.partition)
    return state is not None and not any(state.expired.outside(entry.first, entry.next))


class ExpiringTiling(Tiling):
    """A tiling that notes what expired before a moment, by the manifests that say so.

    Attributes:
        expired_before: these offsets, by partition.
    """

    def __init__(self, incarnation: Incarnation, moment: datetime) -> None:
        super().__init__(incarnation)
        self.expired_before: dict[int, Spans] = {}
        self._moment = moment

    def add(self, manifest: Manifest, sha256: str) -> list[Tile]:
        """As `Tiling.add`."""
        if manifest.kind is Kind.EXPIRY and manifest.at <= self._moment and manifest.incarnation == self.incarnation:
            for entry in manifest.objects:
                if not self.expiry_fault(entry):
                    self.expired_before.setdefault(entry.partition, Spans()).add(entry.first, entry.next)
        return super().add(manifest, sha256)


@dataclass(frozen=True, slots=True)
class Collectable:
    """An archive as its whole chain has it.

    Attributes:
        tiling: the chain up to its head.
        problems: what is wrong with chain and objects.
        orphans: objects that no manifest names.
        due: the beginning of the chain that need not be kept.
        expired: what expired longer ago than the grace, by partition.
    """

    tiling: Tiling
    problems: Problems
    orphans: Problems
    due: DuePart
    expired: Mapping[int, Spans]


@dataclass(slots=True)
class Deleted:
    """What was deleted.

    Attributes:
        objects: how many, of `size_bytes` together.
        kept: how many the store did not delete.
        refused: why not, by key: the first twenty.
        young: how many were left as they were written too lately.
    """

    objects: int = 0
    size_bytes: int = 0
    kept: int = 0
    refused: dict[str, str] = field(default_factory=dict)
    young: int = 0

    def count(self, objects: int, size_bytes: int, refused: Mapping[str, str] = MappingProxyType({})) -> None:
        """Count some more."""
        self.objects += objects
        self.size_bytes += size_bytes
        self.kept += len(refused)
        self.refused |= dict(islice(refused.items(), _MOST_TOLD - len(self.refused)))

    def leave_young(self) -> bool:
        """Count one that is too young; false: it is not among those that go."""
        self.young += 1
        return False
