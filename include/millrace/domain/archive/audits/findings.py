"""What an audit of one incarnation of a topic found: the verdict, why, and the numbers; kept as evidence.

An audit's evidence is also its memory. What only an earlier one saw, as how far a log reached that is deleted now, or a
chain that was longer, is held against the archive by every later one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.proof.coverage import Problem, Verdict
from millrace.domain.archive.proof.partition import Label, Tile
from millrace.domain.archive.proof.spans import Span

VERSION = 1
MOST_NAMED = 1_000
"""Breaches, and ranges of a partition, that evidence names; of more it says how many there are."""


class Depth(StrEnum):
    """How closely an audit looks."""

    SHALLOW = "shallow"  # the chain from its last summary, names and sizes of the objects that it brings, the log
    DEEP = "deep"  # the whole chain, objects that are due read whole, a sample of them held against Kafka
    ALL = "all"  # every object read whole, and all that Kafka still holds compared


class BreachKind(StrEnum):
    """What is wrong; each kind has an alarm of its own."""

    BROKEN = "broken"  # the chain or an object is not what it says
    LOST = "lost"  # records are lost, or have diverged, and nobody said that they know
    LATE = "late"  # records wait for longer than `max_lag`


class Basis(StrEnum):
    """What shows that something is wrong, and so who can see that it is mended."""

    ARCHIVE = "archive"  # the archive itself: the next look tells
    LOG = "log"  # Kafka has something else than the archive: who compares again tells, while Kafka has it
    MEMORY = "memory"  # only an earlier audit saw it: it stays until somebody acknowledges it


@dataclass(frozen=True, slots=True)
class Breach:
    """One thing that is wrong, in words, and the offsets, manifest and key it is about where there are such."""

    kind: BreachKind
    text: str
    partition: int | None = None
    first: int | None = None
    next: int | None = None
    sequence: int | None = None
    key: str = ""
    basis: Basis = Basis.ARCHIVE

    @classmethod
    def of_problem(cls, problem: Problem) -> Breach:
        """A fault of the chain or of an object."""
        return cls(
            BreachKind.BROKEN,
            str(problem),
            problem.partition,
            problem.first,
            problem.next,
            problem.sequence,
            problem.key,
        )

    @classmethod
    def of_tile(cls, tile: Tile) -> Breach:
        """Offsets that are lost or have diverged."""
        return cls(BreachKind.LOST, str(tile), tile.partition, tile.first, tile.next)

    def __str__(self) -> str:
        return self.text


class Why(StrEnum):
    """Why offsets are lost that only an audit knows of."""

    GONE = "the topic was deleted"
    CUT = "it was cut off the log by an unclean election"
    UNREAD = "it was deleted before it was archived"
    REPLACED = "the chain that had it archived is another one now"


@dataclass(frozen=True, slots=True)
class Loss:
    """Offsets that an audit saw in the log, that are neither there now nor archived, and of which no chain tells."""

    partition: int
    first: int
    next: int
    why: Why

    def breach(self) -> Breach:
        """The same as what is wrong."""
        what = f"partition {self.partition} [{self.first}, {self.next}) is lost"
        text = f"{what}: an audit saw it, and {self.why}"
        return Breach(BreachKind.LOST, text, self.partition, self.first, self.next, basis=Basis.MEMORY)


@dataclass(frozen=True, slots=True)
class EndSeen:
    """A log's end, as somebody saw it: what lies below was in the log at that moment."""

    at: datetime
    end: int


@dataclass(frozen=True, slots=True)
class PartitionAudit:
    """One partition, from `begin` up to and without `end`, the end of the audited log.

    Attributes:
        archived_to: the offset that the next object begins with.
        records: how many the kept objects hold.
        holes: how many offsets of their ranges were absent for good.
        tiles: what is lost, diverged, expired or pending, in order: the first thousand ranges.
        more_tiles: how many more there are.
        unacknowledged: of these what nobody said to know of: the first thousand.
        late: ranges whose holes may hide a tombstone: the first thousand.
        waiting_since: a moment at which the first record that is not archived was in the log already; None: nothing
            waits.
        ends: ends that audits saw beyond what is archived, the oldest first: a memory for the next one.
    """

    partition: int
    begin: int
    end: int
    archived_to: int
    records: int
    holes: int
    tiles: tuple[Tile, ...]
    more_tiles: int
    unacknowledged: tuple[Tile, ...]
    late: tuple[Span, ...]
    waiting_since: datetime | None
    ends: tuple[EndSeen, ...]

    def offsets(self, label: Label) -> int:
        """How many offsets have one of the labels that `tiles` tells, of the ranges that are named."""
        return sum(tile.next - tile.first for tile in self.tiles if tile.label is label)


@dataclass(frozen=True, slots=True)
class Looked:
    """How much an audit looked at.

    Attributes:
        objects: that the chain brought beyond where it began, and `size_bytes` of them together.
        read_objects: of these, how many were read whole, and `read_bytes` of them together.
        compared_objects, compared_records: how much was held against what Kafka still has.
        ahead: objects that no manifest names yet, at or beyond the chain's end.
        orphans: objects below it that no manifest names: a writer that died left them. Harmless, `backup collect`
            deletes them.
        from_sequence: the manifest the look began behind; -1: it began at the chain's beginning.
        unnamed: of objects that are there and not what they should be, how many nobody has the names of.
    """

    objects: int = 0
    size_bytes: int = 0
    read_objects: int = 0
    read_bytes: int = 0
    compared_objects: int = 0
    compared_records: int = 0
    ahead: int = 0
    orphans: int = 0
    from_sequence: int = -1
    unnamed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What an audit found.

    Attributes:
        app: PIPELINE.backup, whose archive it is.
        at: when it began, in UTC; `took_seconds` long.
        verdict: of chain, objects and log. Records that wait may be late all the same: see `breaches`.
        breaches: the first thousand, and how many of each kind in `counts`, those included.
        forgiven: faults that somebody acknowledged, so that they are no breaches.
        sequence: of the chain's head, -1 where there is none; `sha256` of its bytes.
        furthest: of the furthest manifest that is known to belong to the chain: the head, or while something is broken
            what earlier audits and the group's commits knew of; `furthest_sha256` of its bytes.
        gone: the topic was deleted.
        unseen: partitions whose log's bounds nobody told: of these there is no verdict.
        deletable_in_seconds: when the first record that waits may be deleted, at the earliest; None: none may.
        summary: the key of the summary that was written; empty where none was.
        notes: what a reader should know, and is no breach.
        losses: what audits saw and is lost, whether somebody knows or not. This and what follows is for the next audit;
            none of it is cut off.
        differences: objects that were found to differ from Kafka, until they are compared again.
        suspects: keys of the objects with which something is wrong, to be read again.
        changed: keys of evidence that somebody changed.
        remembers: keys of the evidence that this audit knew of, also by what that knew of: the last hundreds.
    """

    version: int = VERSION
    app: str
    topic: str
    topic_id: str
    depth: Depth
    at: datetime
    took_seconds: float
    verdict: Verdict
    breaches: tuple[Breach, ...]
    counts: tuple[tuple[BreachKind, int], ...]
    forgiven: int
    sequence: int
    sha256: str
    furthest: int
    furthest_sha256: str
    gone: bool
    unseen: tuple[int, ...]
    partitions: tuple[PartitionAudit, ...]
    looked: Looked
    max_lag_seconds: float
    deletable_in_seconds: float | None
    summary: str = ""
    notes: tuple[str, ...] = ()
    losses: tuple[Loss, ...] = ()
    differences: tuple[Breach, ...] = ()
    suspects: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    remembers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise ValueError(f"an audit of version {self.version}; this Millrace knows version {VERSION}")

    @property
    def incarnation(self) -> Incarnation:
        """The topic that was audited."""
        return Incarnation(self.topic, self.topic_id)

    @property
    def records(self) -> int:
        """How many records the archive holds."""
        return sum(partition.records for partition in self.partitions)

    def offsets(self, label: Label) -> int:
        """How many offsets have a label, over all partitions, of the ranges that are named."""
        return sum(partition.offsets(label) for partition in self.partitions)

    def count(self, kind: BreachKind) -> int:
        """How many breaches of a kind there are."""
        return dict(self.counts).get(kind, 0)

    @property
    def is_green(self) -> bool:
        """Whether nothing is wrong, and every partition was looked at."""
        return not self.counts and not self.unseen


def counted(breaches: Iterable[Breach]) -> tuple[tuple[Breach, ...], tuple[tuple[BreachKind, int], ...]]:
    """The first thousand breaches, those of lost records first, and how many there are of each kind."""
    ordered = sorted(breaches, key=lambda breach: _ORDER[breach.kind])
    counts = {kind: sum(1 for breach in ordered if breach.kind is kind) for kind in _ORDER}
    return tuple(ordered[:MOST_NAMED]), tuple((kind, count) for kind, count in counts.items() if count)


_ORDER = {BreachKind.LOST: 0, BreachKind.BROKEN: 1, BreachKind.LATE: 2}


def summed_up(audit: Audit) -> Iterator[str]:
    """What an audit comes to, a line each, the worst first: for a log or a terminal."""
    yield from map(str, audit.breaches)
    if more := sum(count for _, count in audit.counts) - len(audit.breaches):
        yield f"and {more:,} more like these"
    if audit.unseen:
        numbers = ", ".join(map(str, audit.unseen[:20]))
        yield f"no verdict on partitions that could not be read: {numbers}{', ...' if audit.unseen[20:] else ''}"
