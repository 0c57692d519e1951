"""What a restore does while its target is open: learn what is there, write what is not, read all of it back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.proof.tiling import Tiling
from millrace.domain.archive.records import ArchivedRecord, content_hash
from millrace.domain.archive.restore.records import (
    Marker,
    Placement,
    Restored,
    Tally,
    content_of,
    differences,
    incarnation_of,
    is_restored,
    place,
    selection_id,
)
from millrace.domain.archive.restore.target import Survey
from millrace.domain.topics.changes import ObservedTopic
from millrace.domain.topics.sources import TopicRecord
from millrace.errors import Code, FencedError, RefusedError
from millrace.usecases.archive.archived import ArchivedTopic

TRANSACTION_RECORDS = 10_000
TRANSACTION_BYTES = 16 << 20
_BETWEEN_PROGRESS = 10_000


class Phase(StrEnum):
    """What a restore is doing."""

    SURVEYING = "reading the chain"
    FENCING = "fencing older restores"
    LOOKING = "reading the target"
    RESTORING = "restoring"
    VERIFYING = "reading back the restored records"


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """What a restore came to.

    Attributes:
        selection: the name that its records carry.
        restored: records that it wrote; `already_there`: that an earlier try had written.
        verified: records of this restore that were read back from the target.
        others: other records that the target holds.
        problems: how much of the archive was wrong or missing; each was told.
        differences: how what was read back differs from the archive.
    """

    topic: str
    topic_id: str
    into: str
    into_topic_id: str
    selection: str
    restored: int
    already_there: int
    verified: int
    others: int
    problems: int
    differences: tuple[str, ...]

    @property
    def is_whole(self) -> bool:
        """Whether the target holds all that was asked for, and each record once."""
        return not self.problems and not self.differences


class Target(Protocol):
    """A topic that is open for one restore (`millrace.adapters.kafka.producers.restore`)."""

    def glance(self) -> Iterator[TopicRecord]:
        """What is committed in the topic, below what is still undecided; older restores go on."""
        ...

    def fence(self) -> None:
        """End what an older restore had open; from here on it can write no more."""
        ...

    def look(self, *, anew: bool = False) -> Iterator[TopicRecord]:
        """Every committed record in the topic that no look before this one has seen; all of them where it is `anew`."""
        ...

    def takes(self, records: Sequence[Restored]) -> bool:
        """Whether the client at work can write these records exactly."""
        ...

    def become_exact(self) -> None:
        """Go on with a client that takes every record; somebody may have taken over meanwhile, so look then."""
        ...

    def write(self, records: Sequence[Restored]) -> None:
        """Write the records in one transaction: all of them, or none."""
        ...

    def taken_over(self) -> FencedError:
        """What an older restore learns of a newer one."""
        ...


@dataclass(frozen=True, slots=True)
class Surveyed:
    """An archive as its chain had it when the try began: what came later is left to the next one."""

    source: Incarnation
    chain: Tiling
    survey: Survey

    def comes_later(self, partition: int, offset: int) -> bool:
        """Whether a record lies behind the archive's end."""
        state = self.chain.partitions.get(partition)
        return offset >= max(self.survey.ends.get(partition, 0), 0 if state is None else state.next)

    def has_expired(self, partition: int, offset: int) -> bool:
        """Whether the archive has let a record go."""
        state = self.chain.partitions.get(partition)
        return state is not None and any(state.expired.within(offset, offset + 1))


@dataclass(slots=True)
class Found:
    """What looks at the target have found.

    Attributes:
        ours: records of this restore, as far as the archive has them to be held against.
        last: the greatest offset of all of this restore, by partition of the archive.
        later: how many of this restore lie behind the archive's end.
        expired: how many of this restore have expired in the archive since.
        others: records that are not of this restore.
    """

    ours: Tally = field(default_factory=Tally)
    last: dict[int, int] = field(default_factory=dict)
    later: int = 0
    expired: int = 0
    others: int = 0


class Run:
    """One try, from the first look at the target to the last.

    Args:
        archived: what is restored.
        surveyed: the same, as its chain says.
        target: where to.
        opened: the same, open for this try.
        say: told how far it is.
        must_be: raises where the target is no longer what it was.
        placement: into which partitions records go.
        append: also behind records of others.
        any_incarnation: nobody has named the incarnation that is restored.
    """

    def __init__(
        self,
        archived: ArchivedTopic,
        surveyed: Surveyed,
        target: ObservedTopic,
        opened: Target,
        say: Callable[[Phase, int], object],
        must_be: Callable[[], None],
        *,
        placement: Placement,
        append: bool,
        any_incarnation: bool,
    ) -> None:
        self.source = surveyed.source
        self.target = target
        self.selection = selection_id(archived.selection, placement, target.partitions)
        self.already_found = 0
        self.restored = 0
        self._archived_topic = archived
        self._surveyed = surveyed
        self._opened = opened
        self._say = say
        self._must_be = must_be
        self._placement = placement
        self._append = append
        self._any_incarnation = any_incarnation
        self._marker = Marker(self.source, self.selection)
        self._archived = Tally()
        self._found = Found()
        self._resumed: dict[int, int] = {}  # the last offset that an earlier try wrote, by partition
        self._later = 0
        self._already_there = 0

    def glance(self) -> None:
        """See whether the target can be restored into, before an older restore is ended for that.

        Raises:
            RefusedError: the target holds something else.
        """
        if self._any_incarnation or not self._append:  # else everything may lie there
            self._look(Found(), Phase.LOOKING, self._opened.glance())

    def look_first(self) -> None:
        """Learn what earlier tries have written.

        Raises:
            RefusedError: the target holds something else.
        """
        self._must_be()
        self._look(self._found, Phase.LOOKING, self._opened.look())
        self._resumed = dict(self._found.last)
        self._later = self._found.later
        self.already_found = self._found.ours.records

    def restore(self) -> None:
        """Write what is not there."""
        batch: list[Restored] = []
        size = 0
        with closing(self._archived_topic.records(self.source, as_of=self._surveyed.chain)) as records:
            for restored in self._wanting(records):
                batch.append(restored)
                size += restored.size_bytes
                if len(batch) >= TRANSACTION_RECORDS or size >= TRANSACTION_BYTES:
                    self._write(batch)
                    batch, size = [], 0
        if batch:
            self._write(batch)
        self._archived_topic.tell_left_out()

    def _wanting(self, records: Iterator[tuple[int, ArchivedRecord]]) -> Iterator[Restored]:
        """The records that the target has not, as it gets them."""
        misplaced = 0
        for partition, record in records:
            if record.offset <= self._archived.last(partition):
                misplaced += 1
                continue
            content = content_hash(record.timestamp_ms, record.key, record.value, record.headers)
            self._archived.add(partition, record.offset, content)
            if record.offset <= self._resumed.get(partition, -1):
                self._already_there += 1
                if self._already_there % _BETWEEN_PROGRESS == 0:
                    self._say(Phase.RESTORING, self._already_there + self.restored)
                continue
            number = place(self._placement, partition, record.key, self.target.partitions)
            headers = self._marker.marked(partition, record)
            yield Restored(number, record.timestamp_ms, record.key, record.value, headers)
        if misplaced:
            what = f"objects overlap: {misplaced} records came twice or after greater offsets"
            self._archived_topic.tell_problem(f"{what}, and were left out")

    def _write(self, batch: list[Restored]) -> None:
        self._must_be()
        if not self._opened.takes(batch):
            self._must_be_alone()  # else the change of clients would end whoever has taken over
            self._opened.become_exact()
            self._must_be_alone()
            self._must_be()
        self._opened.write(batch)
        self.restored += len(batch)
        self._say(Phase.RESTORING, self._already_there + self.restored)

    def _must_be_alone(self) -> None:
        """See that what came into the target is what this try wrote."""
        found = self._found
        self._look(found, Phase.VERIFYING, self._opened.look())
        if (found.ours.records, found.later) != (self.already_found + self.restored, self._later):
            raise self._opened.taken_over()

    def verified(self) -> RestoreReport:
        """Read all that the target has of this restore, and hold it against what the archive gave.

        Raises:
            FencedError: another restore has written what came into the archive later.
        """
        self._must_be()
        found = Found()
        self._look(found, Phase.VERIFYING, self._opened.look(anew=True))
        self._must_be()
        if found.later > self._later:
            raise self._opened.taken_over()
        if found.expired:
            said = "records of the target have expired in the archive since their restore"
            self._archived_topic.tell(f"{found.expired} {said}: they are not compared")
        wrong = list(differences(self._archived, found.ours))
        if found.later:
            wrong.append(f"{found.later} records of this restore lie behind the end of the archive")
        return RestoreReport(
            topic=self.source.topic,
            topic_id=self.source.topic_id,
            into=self.target.name,
            into_topic_id=self.target.topic_id,
            selection=self.selection,
            restored=self.restored,
            already_there=self._already_there,
            verified=found.ours.records,
            others=found.others,
            problems=self._archived_topic.problems,
            differences=tuple(wrong),
        )

    def _look(self, found: Found, phase: Phase, records: Iterator[TopicRecord]) -> None:
        """Take in what a look at the target shows."""
        for count, record in enumerate(records, 1):
            if came_from := self._marker.place_of(record.headers):
                self._count(found, record, *came_from)
            else:
                found.others += 1
                if phase is Phase.LOOKING:
                    self._must_fit(record)
            if count % _BETWEEN_PROGRESS == 0:
                self._say(phase, count)

    def _count(self, found: Found, record: TopicRecord, partition: int, offset: int) -> None:
        """Take in a record of this restore."""
        found.last[partition] = max(offset, found.last.get(partition, -1))
        if self._surveyed.comes_later(partition, offset):
            found.later += 1
        elif self._surveyed.has_expired(partition, offset):
            found.expired += 1
        else:
            found.ours.add(partition, offset, content_of(record), lane=record.partition)

    def _must_fit(self, record: TopicRecord) -> None:
        """Refuse a target for a record that is not of this restore, unless it may lie there."""
        other = incarnation_of(record.headers)
        if self._any_incarnation and other and other.topic == self.source.topic and other != self.source:
            raise RefusedError(
                f"the topic holds restored records of topic id {other.topic_id}, and this restore reads topic id "
                f"{self.source.topic_id}",
                where=self.target.name,
                next_step=f"give --topic-id {other.topic_id} to resume that restore, or --topic-id "
                f"{self.source.topic_id} --append to write behind it",
                code=Code.WRONG_TARGET,
            )
        if not self._append:
            raise self._not_empty(record)

    def _not_empty(self, record: TopicRecord) -> RefusedError:
        where = f"partition {record.partition}, offset {record.offset}"
        if is_restored(record.headers):
            return RefusedError(
                f"the topic holds records of another restore, with another archive, selection or placement ({where})",
                where=self.target.name,
                next_step="give the options of that restore to resume it, or another topic, or --append to write "
                "behind the present records",
                code=Code.WRONG_TARGET,
            )
        return RefusedError(
            f"the topic is not empty: its first record lies in {where}",
            where=self.target.name,
            next_step="name an empty topic, or give --append to write behind the present records",
            code=Code.WRONG_TARGET,
        )
