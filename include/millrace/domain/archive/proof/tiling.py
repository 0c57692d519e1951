"""The proof: a chain, manifest by manifest, held against the log as it is now, until every offset has one label.

Pure. It is given manifests in the order of their sequences and never holds more of them than one: a chain of a million
entries needs no more memory than its partitions and what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import groupby

from millrace.domain.archive.manifest import Kind, Manifest, ObjectEntry, Seen
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.proof.coverage import Coverage, PartitionCoverage, Problem, Problems, cover
from millrace.domain.archive.proof.partition import Look, PartitionState, Tile
from millrace.domain.chain.head import Head
from millrace.domain.streams.position import LogBounds


@dataclass(frozen=True, slots=True)
class ObservedLog:
    """A topic's log as it is now, looked at after the chain's head was read.

    Attributes:
        at: a moment before it was looked at, and after what was read before that.
        topic_id: of the topic that has the name now; None where there is none.
        bounds: of that topic's partitions, for a reader of committed records; without those that have no leader.
        delete_retention_ms: its `delete.retention.ms`, where it is compacted; None where it is not.
        partitions: how many it has, with those that have no leader; as many as `bounds` where nothing is said.
    """

    at: datetime
    topic_id: str | None
    bounds: Mapping[int, LogBounds]
    delete_retention_ms: int | None = None
    partitions: int = 0

    def __post_init__(self) -> None:
        if not self.partitions:
            object.__setattr__(self, "partitions", len(self.bounds))
        if self.topic_id is not None and (not self.partitions or max(self.bounds, default=0) >= self.partitions):
            raise ValueError(f"a topic of {self.partitions} partitions, and bounds of {sorted(self.bounds)[-10:]}")

    def seen(self) -> tuple[Seen, ...]:
        """The same as a manifest says it; a start and an end that were not asked for at once may cross."""
        return tuple(Seen(n, min(bounds.start, bounds.end), bounds.end) for n, bounds in sorted(self.bounds.items()))


@dataclass(frozen=True, slots=True)
class LogsSeen:
    """The result of one look at several topics. A topic or partition without an answer may be anything but empty.

    Attributes:
        logs: each topic that was described; a partition without an answer has no bounds in it.
        silent: why a topic (`TOPIC`) or a partition (`TOPIC/PARTITION`) gave no answer.
    """

    logs: Mapping[str, ObservedLog]
    silent: Mapping[str, str] = field(default_factory=dict)


def link_faults(head: Head, incarnation: Incarnation, manifest: Manifest) -> Iterator[str]:
    """Why a manifest cannot be the one after `head`."""
    if manifest.incarnation != incarnation:
        yield f"it belongs to {manifest.incarnation}, but lies in the chain of {incarnation}"
        return
    if manifest.sequence != head.sequence + 1:
        yield f"it is not the manifest after {head.sequence}"
    elif head.sha256 and manifest.previous != head.sha256:
        yield f"it does not name manifest {head.sequence} as its predecessor"
    if head.says_nothing:
        return  # nor does it say who had taken over by then
    if manifest.epoch < head.epoch:
        yield f"epoch {manifest.epoch} wrote after epoch {head.epoch} took over"
    elif manifest.epoch == head.epoch and manifest.instance != head.instance:
        yield f"an instance of epoch {manifest.epoch} wrote after another instance took over"
    elif (manifest.epoch > head.epoch) != (manifest.kind is Kind.TAKEOVER):
        yield f"epoch {manifest.epoch} after epoch {head.epoch} in a manifest of kind {manifest.kind}"


_NEVER = Look(datetime.min.replace(tzinfo=UTC), 0, 0, None)


class Tiling:
    """The labels of one incarnation's offsets, up to the last manifest that was added.

    Attributes:
        head: the last manifest that was added.
        born: how many partitions the topic had when the chain began; others came later, and from offset 0 on.
        known: how many it had at most when the chain was written.
        partitions: what the chain says of each, by number.
        problems: what is wrong with the chain itself.
        promised: the last sequence that a summary names, whether it is there or not; None: nobody has asked.
    """

    def __init__(self, incarnation: Incarnation) -> None:
        self.incarnation = incarnation
        self.head = Head()
        self.born = 0
        self.known = 0
        self.partitions: dict[int, PartitionState] = {}
        self.problems = Problems()
        self.promised: int | None = None

    def add(self, manifest: Manifest, sha256: str) -> list[Tile]:
        """The labels that a manifest gives. A later label of an offset replaces an earlier one.

        A manifest that does not follow is a problem; what it brings is counted all the same, so that one fault is not
        told as a thousand. One of another topic, or that is not the one its key names, brings nothing.

        Args:
            manifest: the next of the chain.
            sha256: of its bytes.
        """
        wrong = list(link_faults(self.head, self.incarnation, manifest))
        self.problems.extend(Problem(what, manifest.sequence) for what in wrong)
        if manifest.sequence <= self.head.sequence:
            return []
        if manifest.incarnation != self.incarnation:
            self.head = replace(self.head, sequence=manifest.sequence, sha256=sha256, says_nothing=wrong[0])
            return []
        self.head = Head(manifest.sequence, sha256, max(manifest.epoch, self.head.epoch), manifest.instance)
        tiles = list(self._take(manifest))
        self.born = self.born or manifest.partitions
        self.known = max(self.known, manifest.partitions)
        return tiles

    def pass_over(self, sequence: int, sha256: str, what: str) -> None:
        """Go on after a manifest that is missing (without SHA-256), or whose bytes say nothing."""
        self.problems.append(Problem(what, sequence))
        self.head = replace(self.head, sequence=sequence, sha256=sha256, says_nothing=what)

    def _take(self, manifest: Manifest) -> Iterator[Tile]:
        seen = {look.partition: look for look in manifest.seen}
        for number in seen.keys() & self.partitions.keys():
            self.partitions[number].is_there()
        if manifest.kind is Kind.EXPIRY:
            for entry in manifest.objects:
                yield from self._expire(entry, manifest)
        elif manifest.kind is Kind.DATA:
            for entry in manifest.objects:
                yield from self._bring(entry, manifest, seen[entry.partition])
        for look in manifest.seen:
            yield from self._state(look.partition, look.start).see(look, manifest)
        for number, spans in groupby(manifest.acknowledged, key=lambda span: span.partition):
            if state := self.partitions.get(number):
                state.seemed_gone |= manifest.gone
                log_start = seen[number].start if number in seen else state.look.end if manifest.gone else 0
                state.acknowledge(spans, log_start)

    def _state(self, number: int, first_seen: int) -> PartitionState:
        """What is known of a partition. One that the topic did not have before has been there from offset 0 on."""
        if number not in self.partitions:
            self.partitions[number] = self._new(number, first_seen)
        return self.partitions[number]

    def _new(self, number: int, first_seen: int) -> PartitionState:
        begin = 0 if self.born and number >= self.born else first_seen
        return PartitionState(number, begin, begin, _NEVER)

    def _bring(self, entry: ObjectEntry, manifest: Manifest, seen: Seen) -> Iterator[Tile]:
        state = self._state(entry.partition, min(entry.first, seen.start))
        if entry.first < state.next:
            overlap = (entry.first, min(entry.next, state.next))
            what = "an object overlaps with what the chain has already"
            self.problems.append(Problem(what, manifest.sequence, entry.partition, *overlap))
            return
        yield from state.bring(entry, manifest, seen)

    def _expire(self, entry: ObjectEntry, manifest: Manifest) -> Iterator[Tile]:
        if what := self.expiry_fault(entry):
            self.problems.append(Problem(what, manifest.sequence, entry.partition, entry.first, entry.next))
        else:
            yield from self.partitions[entry.partition].expire(entry)

    def expiry_fault(self, entry: ObjectEntry) -> str:
        """Why an object cannot expire; empty where it can."""
        state = self.partitions.get(entry.partition)
        if state is None or entry.first < state.begin or entry.next > state.next:
            return "an object expires that the chain never had"
        if any(state.expired.within(entry.first, entry.next)):
            return "an object expires that has expired before"
        return ""

    def end(self, log: ObservedLog) -> Coverage:
        """Every offset's label, up to the end of the log as it is now.

        Args:
            log: looked at after the chain's head was read: an older look would show records as diverged that came in
                between.
        """
        gone = log.topic_id != self.incarnation.topic_id
        bounds = {} if gone else log.bounds
        found: list[PartitionCoverage] = []
        for number in sorted(self.partitions.keys() | bounds.keys()):
            state = self.partitions.get(number) or self._new(number, bounds[number].start)
            found.append(cover(state, bounds.get(number), gone))
        unseen = () if gone else set(range(max(self.known, log.partitions))) - bounds.keys()
        head = self.head
        return Coverage(
            self.incarnation, head.sequence, head.sha256, gone, tuple(sorted(unseen)), tuple(found), self.problems
        )
