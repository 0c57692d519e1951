"""Objects held against what Kafka still has of their offsets, record by record."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain

from millrace.adapters.archive.objects import read_object
from millrace.domain.archive.audits.findings import Basis, Breach, BreachKind
from millrace.domain.archive.manifest import ObjectEntry
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.proof.tiling import ObservedLog
from millrace.domain.archive.records import ArchivedRecord
from millrace.domain.topics.sources import NO_TIMESTAMP, TopicRecord
from millrace.errors import DataLossError, DeclarationError

SAMPLE_OBJECTS = 64
SAMPLE_BYTES = 256 << 20
_MOST_NAMED = 20  # offsets of one object

Reads = Callable[[str, int, int, int], Iterator[TopicRecord]]
"""Records of a topic's partition between two offsets."""


@dataclass(slots=True)
class Sample:
    """Of the objects whose offsets Kafka still has, as many as a reservoir holds, each as likely as the others.

    Attributes:
        log: tells what Kafka has.
        dice: chooses.
        seen: how many had a chance; `taken` of them; `always`: those that were taken without one.
    """

    log: ObservedLog
    dice: random.Random
    seen: int = 0
    taken: list[ObjectEntry] = field(default_factory=list)
    always: list[ObjectEntry] = field(default_factory=list)

    def has(self, entry: ObjectEntry) -> bool:
        """Whether Kafka still has all offsets of an object."""
        bounds = self.log.bounds.get(entry.partition)
        return bounds is not None and bounds.start <= entry.first and entry.next <= bounds.end

    def offer(self, entry: ObjectEntry, *, wanted: bool) -> None:
        """Take an object, or not. An object that an earlier audit found different is wanted in any case."""
        if not self.has(entry):
            return
        if wanted:
            self.always.append(entry)
            return
        self.seen += 1
        if len(self.taken) < SAMPLE_OBJECTS:
            self.taken.append(entry)
        elif (place := self.dice.randrange(self.seen)) < SAMPLE_OBJECTS:
            self.taken[place] = entry

    def chosen(self) -> Iterator[ObjectEntry]:
        """Those to compare: all that are wanted, of the others at most 256 MiB."""
        yield from self.always
        room = SAMPLE_BYTES
        for entry in self.taken:
            if entry.size_bytes <= room:
                room -= entry.size_bytes
                yield entry


@dataclass(slots=True)
class BesideLog:
    """Compares objects with the log.

    Attributes:
        here: whose they are.
        reads: reads the log.
        compacted: whether the cleaner may have taken records out since they were archived.
        keys: of the objects that were compared; `records` of them together.
    """

    here: Incarnation
    reads: Reads
    compacted: bool
    keys: list[str] = field(default_factory=list)
    records: int = 0

    def compare(self, entry: ObjectEntry, data: bytes) -> list[Breach]:
        """How an object that is what its manifest says differs from the log; of one that the log lost by now: nothing.

        Raises:
            UnreachableError: the broker does not answer.
        """
        key = self.here.object_key(entry.name)
        kept = iter(read_object(data).records())
        found: list[Breach] = []
        try:
            told = self._differences(kept, self.reads(self.here.topic, entry.partition, entry.first, entry.next))
            for offset, what in told:
                if len(found) < _MOST_NAMED:
                    found.append(_breach(key, entry.partition, offset, what))
        except (DataLossError, DeclarationError):
            return []  # retention was quicker, or the topic is gone
        self.keys.append(key)
        return found

    def forget(self) -> None:
        """Nothing was compared: it was another log."""
        self.keys.clear()
        self.records = 0

    def _differences(self, kept: Iterator[ArchivedRecord], in_log: Iterator[TopicRecord]) -> Iterator[tuple[int, str]]:
        archived = next(kept, None)
        for record in in_log:
            while archived is not None and archived.offset < record.offset:
                yield from self._only_archived(archived)
                archived = next(kept, None)
            self.records += 1
            if archived is None or archived.offset > record.offset:
                yield record.offset, "Kafka has a record, and the archive has none"
                continue
            if what := _difference(archived, record):
                yield record.offset, f"{what} in Kafka"
            archived = next(kept, None)
        for rest in chain([] if archived is None else [archived], kept):
            yield from self._only_archived(rest)

    def _only_archived(self, archived: ArchivedRecord) -> Iterator[tuple[int, str]]:
        if not self.compacted:
            yield archived.offset, "the archive has a record, and Kafka has none"


def _difference(archived: ArchivedRecord, record: TopicRecord) -> str:
    at = NO_TIMESTAMP if record.timestamp_ms is None else record.timestamp_ms
    if archived.timestamp_ms != at:
        return f"timestamp {archived.timestamp_ms} is {at}"
    for name, one, other in (
        ("key", archived.key, record.key),
        ("value", archived.value, record.value),
        ("headers", tuple(archived.headers), tuple(record.headers)),
    ):
        if one != other:
            return f"the {name} is another one"
    return ""


def _breach(key: str, partition: int, offset: int, what: str) -> Breach:
    text = f"{key}: {what} [{offset}, {offset + 1}) of partition {partition}"
    return Breach(BreachKind.BROKEN, text, partition, offset, offset + 1, key=key, basis=Basis.LOG)
