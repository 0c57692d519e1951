"""An audit of one incarnation: chain, objects, log and what earlier audits knew, against one another."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from millrace.adapters.archive.audits.beside_log import BesideLog, Reads, Sample
from millrace.adapters.archive.audits.evidence import EvidenceStore
from millrace.adapters.archive.audits.inspection import Inspection, inspect
from millrace.adapters.archive.summaries import drop_old_summaries, put_summary, resume
from millrace.adapters.chain.documents import sha256_of
from millrace.domain.archive.audits.acknowledgement import Known
from millrace.domain.archive.audits.findings import (
    MOST_NAMED,
    Audit,
    Breach,
    BreachKind,
    Depth,
    EndSeen,
    Looked,
    Loss,
    PartitionAudit,
    counted,
)
from millrace.domain.archive.audits.memory import Claim, Memory, losses, unforgiven, waits_since
from millrace.domain.archive.audits.turn import Turn
from millrace.domain.archive.manifest import Manifest, ObjectEntry
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.proof.coverage import PartitionCoverage, Problem, Verdict
from millrace.domain.archive.proof.partition import Label
from millrace.domain.archive.proof.tiling import ObservedLog, Tiling
from millrace.domain.archive.waiting import ends_beyond, late
from millrace.errors import DataLossError, ObjectExistsError
from millrace.ports.objects import ObjectStore


@dataclass(frozen=True, slots=True)
class Auditor:
    """Audits archives of one app, of one cluster, in one bucket.

    Attributes:
        app: PIPELINE.backup.
        store: the bucket.
        look: asks for a topic and its log.
        reads: reads the log.
        claims: asks what the group's commits know of a topic's chains; asked before a chain is read.
        deletable: asks how long what waits stays in the log, by the next offset of each partition.
        clock: the present, in UTC.
    """

    app: str
    store: ObjectStore
    look: Callable[[str], ObservedLog]
    reads: Reads
    claims: Callable[[Incarnation], Sequence[Claim]]
    deletable: Callable[[Incarnation, dict[int, int]], timedelta | None]
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)

    def audit(self, here: Incarnation, depth: Depth, max_lag: timedelta, known: Known) -> Audit:
        """Audit one incarnation; writes nothing but the summary of a chain in which nothing is wrong.

        While the last audit knew of anything broken, also a shallow one walks the whole chain and reads the objects
        that it named, so that a fault is told until it is mended.

        Args:
            here: what to audit.
            depth: how closely.
            max_lag: how long records may wait.
            known: what people have said that they know of.

        Raises:
            UnreachableError: store or broker do not answer. That is no verdict.
        """
        at, begun = self.clock(), time.monotonic()
        memory = EvidenceStore(self.store).remembered(here, at)
        claims = [*self.claims(here), *memory.memory.claims()]
        work = _Work(self, here, depth, max_lag, known, memory.memory, memory.last_deep, at)
        return work.audit([claim for claim in claims if claim.sequence > known.sequence], begun)


@dataclass(frozen=True, slots=True)
class _Look:
    """What was looked at: the chain up to its head, from behind which manifest, and what was found."""

    tiling: Tiling
    from_sequence: int
    found: Inspection
    beside: BesideLog

    def numbers(self) -> Looked:
        """How much that was."""
        counts = self.found.counts
        return Looked(
            objects=counts.objects,
            size_bytes=counts.size_bytes,
            read_objects=counts.checked,
            read_bytes=counts.checked_bytes,
            compared_objects=len(self.beside.keys),
            compared_records=self.beside.records,
            ahead=counts.ahead,
            orphans=self.found.orphans.total,
            from_sequence=self.from_sequence,
            unnamed=counts.unnamed,
        )


@dataclass(slots=True)
class _Work:
    """One audit on its way."""

    by: Auditor
    here: Incarnation
    depth: Depth
    max_lag: timedelta
    known: Known
    memory: Memory
    last_deep: Audit | None
    at: datetime
    different: list[Breach] = field(default_factory=list)
    suspects: set[str] = field(default_factory=set)  # keys that the last audit found fault with, and the chain has
    notes: list[str] = field(default_factory=list)

    def audit(self, claims: Sequence[Claim], begun: float) -> Audit:
        looked = self._look()
        tiling, found = looked.tiling, looked.found
        partitions = tuple(self._partitions(tiling, found))
        faulty = {claim: fault for claim in claims if (fault := self._fault(claim, tiling.head.sequence))}
        lost = losses(self.memory, found.coverage, {} if found.coverage.gone else dict(found.log.bounds))
        different = [*self.different, *self._carried(tiling, looked.beside)]
        breaches = list(self._breaches(found, partitions, [*faulty.values(), *different], lost))
        wrong = [breach for breach in breaches if breach.kind is not BreachKind.LATE]
        summary, false_summary = self._summary(tiling, looked.from_sequence, wrong, found.counts.forgiven)
        breaches += false_summary
        left = list(unforgiven(breaches, self.known, self.here))
        named, counts = counted(left)
        counts = _with_more(counts, _unnamed(found))
        sound = Claim(found.coverage.sequence, found.coverage.sha256, "")
        if faulty:  # the first of which the chain is not what it was: until it is, or somebody knows
            sound = min(faulty, key=lambda claim: claim.sequence)
        elif any(kind is BreachKind.BROKEN for kind, _ in counts):  # what lies there may have to go again
            sound = max(claims, key=lambda claim: claim.sequence, default=Claim(-1, "", ""))
        return Audit(
            app=self.by.app,
            topic=self.here.topic,
            topic_id=self.here.topic_id,
            depth=self.depth,
            at=self.at,
            took_seconds=round(time.monotonic() - begun, 3),
            verdict=_verdict(found, counts),
            breaches=named,
            counts=counts,
            forgiven=max(0, len(set(breaches)) - len(left)) + found.counts.forgiven,
            sequence=found.coverage.sequence,
            sha256=found.coverage.sha256,
            furthest=sound.sequence,
            furthest_sha256=sound.sha256,
            gone=found.coverage.gone,
            unseen=found.coverage.unseen,
            partitions=partitions,
            looked=looked.numbers(),
            max_lag_seconds=self.max_lag.total_seconds(),
            deletable_in_seconds=self._deletable(found, partitions),
            summary=summary,
            notes=tuple(self.notes),
            losses=lost,
            differences=tuple(different),
            suspects=tuple(sorted({breach.key for breach in breaches if self._may_be_read_again(breach)})),
            changed=self.memory.changed,
            remembers=self.memory.keys,
        )

    def _look(self) -> _Look:
        """Walk the chain, look at objects and log, and hold a sample of what was read against the log."""
        whole = self.memory.is_broken or self.depth is not Depth.SHALLOW
        tiling = Tiling(self.here) if whole else resume(self.by.store, self.here)
        from_sequence = tiling.head.sequence
        first = self.by.look(self.here.topic)
        beside = BesideLog(self.here, self.by.reads, first.delete_retention_ms is not None)
        if first.topic_id != self.here.topic_id:  # another topic has the name now, or none
            first = ObservedLog(first.at, None, {})
        sample = Sample(first, random.Random(f"{self.here} {self.at}"))
        wanted = {breach.key for breach in self.memory.differences}
        found = inspect(
            self.by.store,
            tiling,
            lambda: self.by.look(self.here.topic),
            picks=self._picks(),
            held=lambda entry, sequence, data: self._held(entry, data, sample, beside, wanted),
            known=self.known.faults,
        )
        for entry in sample.chosen():
            if (data := self.by.store.get(self.here.object_key(entry.name))) is not None:
                self.different += beside.compare(entry, data)
        if beside.keys and self.by.look(self.here.topic).topic_id != self.here.topic_id:
            self.notes.append("the topic was deleted while objects were held against it: that says nothing")
            self.different.clear()
            beside.forget()
        return _Look(tiling, from_sequence, found, beside)

    def _picks(self) -> Callable[[ObjectEntry, Manifest], bool]:
        """Which objects are read: those that are due, and those that earlier audits found fault with."""
        suspects, unnamed = self.memory.suspects, self.memory.has_unnamed
        turn = self._turn()

        def pick(entry: ObjectEntry, manifest: Manifest) -> bool:
            suspect = bool(suspects) and (key := self.here.object_key(entry.name)) in suspects
            if suspect:
                self.suspects.add(key)
            due = self.depth is Depth.DEEP and turn.has(manifest.sequence, entry.sha256)
            return suspect or due or unnamed or self.depth is Depth.ALL

        return pick

    def _turn(self) -> Turn:
        """What of the objects is due. All are new in a chain that is not the one that was looked at before."""
        deep = self.last_deep
        if self.depth is not Depth.DEEP or deep is None:
            return Turn.since(None, -1, self.at)
        data = self.by.store.get(self.here.manifest_key(deep.sequence)) if deep.sequence >= 0 else None
        same = data is not None and sha256_of(data) == deep.sha256
        return Turn.since(deep.at, deep.sequence if same else -1, self.at)

    def _held(
        self, entry: ObjectEntry, data: bytes, sample: Sample, beside: BesideLog, wanted: Collection[str]
    ) -> None:
        """An object was read and is what its manifest says: is it what Kafka says as well?"""
        if self.depth is Depth.ALL:
            if sample.has(entry):
                self.different += beside.compare(entry, data)
            return
        is_wanted = bool(wanted) and self.here.object_key(entry.name) in wanted
        if is_wanted or self.depth is Depth.DEEP:
            sample.offer(entry, wanted=is_wanted)

    def _may_be_read_again(self, breach: Breach) -> bool:
        """Whether a breach is about the bytes of an object of the archive."""
        named = breach.kind is BreachKind.BROKEN and breach.partition is not None and breach.key
        return bool(named) and self.here.object_name(breach.key) is not None

    def _fault(self, claim: Claim, head: int) -> Breach | None:
        data = self.by.store.get(self.here.manifest_key(claim.sequence))
        return claim.fault(head, None if data is None else sha256_of(data))

    def _breaches(
        self,
        found: Inspection,
        partitions: Sequence[PartitionAudit],
        faults: Sequence[Breach],
        lost: Sequence[Loss],
    ) -> Iterator[Breach]:
        coverage = found.coverage
        yield from map(Breach.of_problem, [*coverage.problems.found, *found.foreign.found])
        for key in self.memory.changed:
            yield Breach.of_problem(Problem("the evidence of an earlier audit was changed", key=key))
        yield from faults
        for one in coverage.partitions:
            yield from map(Breach.of_tile, one.unacknowledged)
        yield from (loss.breach() for loss in lost)
        for part in () if coverage.gone else partitions:
            if part.waiting_since is not None:
                first = next((tile.first for tile in part.tiles if tile.label is Label.PENDING), part.archived_to)
                breach = late(part.partition, (first, part.end), part.waiting_since, self.at, self.max_lag)
                if breach is not None:
                    yield breach

    def _carried(self, tiling: Tiling, beside: BesideLog) -> Iterator[Breach]:
        """Differences between Kafka and archive that earlier audits found, and this one could not look for again."""
        unseen = self.suspects - set(beside.keys) - self._expired(tiling)
        return (breach for breach in self.memory.differences if breach.key in unseen)

    def _expired(self, tiling: Tiling) -> set[str]:
        """Of the objects that the last audit found fault with, those that are no longer kept."""
        names = {key: self.here.object_name(key) for key in self.suspects}
        states = tiling.partitions
        return {
            key
            for key, name in names.items()
            if name
            and name.partition in states
            and not any(states[name.partition].expired.outside(name.first, name.next))
        }

    def _partitions(self, tiling: Tiling, found: Inspection) -> Iterator[PartitionAudit]:
        """Each partition; one that no chain knows and no broker tells of stays as an earlier audit saw it."""
        before = self.memory.partitions()
        for one in found.coverage.partitions:
            former = before.pop(one.partition, None)
            yield self._partition(tiling, found, one, former.ends if former else ())
        if not found.coverage.gone:
            yield from (former for _, former in sorted(before.items()) if former.partition in found.coverage.unseen)

    def _partition(
        self, tiling: Tiling, found: Inspection, one: PartitionCoverage, ends_seen: Sequence[EndSeen]
    ) -> PartitionAudit:
        state = tiling.partitions.get(one.partition)
        seen = list(ends_seen)
        if not found.coverage.gone and (bounds := found.log.bounds.get(one.partition)):
            seen.append(EndSeen(found.log.at, bounds.end))
        by_chain = [EndSeen(state.look.at, state.look.end)] if state is not None else []
        pending = next((tile.first for tile in one.tiles if tile.label is Label.PENDING), None)
        first = one.archived_to if pending is None else pending
        ends = ends_beyond(first, seen)
        waits = pending is not None and one.partition not in found.coverage.unseen
        return PartitionAudit(
            partition=one.partition,
            begin=one.begin,
            end=one.end,
            archived_to=one.archived_to,
            records=one.records,
            holes=one.holes,
            tiles=one.tiles[:MOST_NAMED],
            more_tiles=max(0, len(one.tiles) - MOST_NAMED),
            unacknowledged=one.unacknowledged[:MOST_NAMED],
            late=one.late[:MOST_NAMED],
            waiting_since=waits_since(ends_beyond(first, [*seen, *by_chain])) if waits else None,
            ends=ends,
        )

    def _deletable(self, found: Inspection, partitions: Sequence[PartitionAudit]) -> float | None:
        waits = {part.partition: part.archived_to for part in partitions if part.waiting_since is not None}
        if not waits or found.coverage.gone:
            return None
        try:
            left = self.by.deletable(self.here, waits)
        except DataLossError as error:
            self.notes.append(f"records that waited were deleted during the audit: {error.what}")
            return 0.0
        return None if left is None else left.total_seconds()

    def _summary(
        self, tiling: Tiling, from_sequence: int, wrong: Sequence[Breach], forgiven: int
    ) -> tuple[str, list[Breach]]:
        """Sum a chain up in which nothing is wrong, and nobody had to forgive anything.

        Returns:
            The key, empty where none was written; and what is wrong with the one that lies there.
        """
        if wrong or tiling.problems.total or forgiven or tiling.head.sequence <= from_sequence:
            return "", []
        if any(state.unacknowledged() for state in tiling.partitions.values()):
            return "", []
        try:
            key = put_summary(self.by.store, tiling)
        except ObjectExistsError:
            key = self.here.summary_key(tiling.head.sequence)
            return "", [Breach.of_problem(Problem("this summary differs from the chain", key=key))]
        drop_old_summaries(self.by.store, tiling)
        return key, []


def _verdict(found: Inspection, counts: tuple[tuple[BreachKind, int], ...]) -> Verdict:
    if any(kind is not BreachKind.LATE for kind, _ in counts):
        return Verdict.BROKEN
    waits = any(one.offsets(Label.PENDING) for one in found.coverage.partitions)
    return Verdict.PENDING if waits or found.coverage.unseen else Verdict.PROVEN


def _unnamed(found: Inspection) -> int:
    """How many faults there are that nobody has the names of."""
    problems = found.coverage.problems
    return problems.total - len(problems.found) + found.foreign.total - len(found.foreign.found)


def _with_more(counts: tuple[tuple[BreachKind, int], ...], more: int) -> tuple[tuple[BreachKind, int], ...]:
    """The same with faults that nobody has the names of."""
    if not more:
        return counts
    by_kind = dict(counts)
    by_kind[BreachKind.BROKEN] = by_kind.get(BreachKind.BROKEN, 0) + more
    return tuple(by_kind.items())
