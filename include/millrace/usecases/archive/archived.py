"""The archive of one topic, as commands read it back: which incarnation, which records, what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING

from millrace.domain.archive.manifest import ObjectEntry
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.proof.coverage import Problem
from millrace.domain.archive.proof.tiling import Tiling
from millrace.domain.archive.records import ArchivedRecord
from millrace.domain.archive.selection import NO_TIMESTAMP, Selection
from millrace.domain.formats.printable import printable
from millrace.errors import Code, MillraceError, UsageError

if TYPE_CHECKING:
    from millrace.ports.platform import Platform

_NAMED = 20  # topics, where what was asked for is not there


@dataclass(slots=True)
class ArchivedTopic:
    """The records of one topic's archive that are asked for.

    Attributes:
        platform: gives the bucket; Kafka and the control database are not asked.
        topic: whose records.
        selection: which of them.
        tell: told, a line each, what is wrong, and what a reader should know.
        topic_id: of which incarnation of the topic; None: the one whose chain began last.
        connection: the `aws` Connection that leads to the bucket.
        problems: how much was wrong.
    """

    platform: Platform
    topic: str
    selection: Selection
    tell: Callable[[str], object]
    topic_id: str | None = None
    connection: str = "millrace_s3"
    problems: int = 0
    _timeless: int = field(default=0, init=False)
    _unread: int = field(default=0, init=False)  # objects that may hold records without a timestamp as well

    def records(
        self, here: Incarnation, *, as_of: Tiling | None = None
    ) -> Generator[tuple[int, ArchivedRecord], None, None]:
        """Partition and record of all that is asked for: in the order of the chain, so of each partition by offset.

        Args:
            here: the incarnation.
            as_of: the chain as it was looked through: nothing that had expired by then, and nothing that came later.

        Raises:
            UnreachableError: the bucket cannot be reached; what came until then is right.
        """
        reader = self.platform.archive.reader(self.connection)
        objects = reader.read(here, self._fits, self.tell_problem, as_of=as_of)
        with closing(objects):
            for held in objects:
                partition = held.range.partition.partition
                for record in held.records():
                    if self._takes(record):
                        yield partition, record

    def tell_left_out(self) -> None:
        """Say how much has no timestamp, where times select."""
        if self._timeless:
            self.tell(f"{self._timeless} records without a timestamp were left out")
        if self._unread:
            self.tell(f"{self._unread} unread objects may also hold records without a timestamp")

    def tell_problem(self, problem: Problem | str) -> None:
        """Count something that is wrong, and say it."""
        self.problems += 1
        self.tell(printable(str(problem)))

    def _takes(self, record: ArchivedRecord) -> bool:
        if not self.selection.may_take(record):
            return False
        if not self.selection.is_by_time:
            return True
        if record.timestamp_ms == NO_TIMESTAMP:
            self._timeless += 1
            return False
        return self.selection.is_in_time(record.timestamp_ms)

    def _fits(self, entry: ObjectEntry) -> bool:
        fits, low, high = self.selection.may_hold(entry), entry.min_timestamp_ms, entry.max_timestamp_ms
        if fits or low is None or high is None or not self.selection.has_offsets_of(entry):
            return fits
        if low == high == NO_TIMESTAMP and self.selection.key is None:
            self._timeless += entry.count
        elif low <= NO_TIMESTAMP <= high:
            self._unread += 1
        return False

    def incarnation(self) -> Incarnation:
        """Which incarnation to read; the others are named.

        Raises:
            UsageError: there can be no such topic, or no such id.
            MillraceError: there is no such archive.
        """
        reader, asked = self.platform.archive.reader(self.connection), self._asked()
        found = reader.incarnations(self.topic)
        if asked and (asked in found or reader.began(asked)):  # a listing may leave one out
            return asked
        if asked or not found:
            raise self._not_there(found, islice(reader.topics(), _NAMED + 1))
        if len(found) == 1:
            return found[0]
        begun = {each: reader.began(each) for each in found}
        latest = max(found, key=lambda each: (begun[each] or datetime.min.replace(tzinfo=UTC), each.topic_id))
        for each in found:
            if each != latest:
                at = begun[each]
                began = f"with an archive since {at:%Y-%m-%d %H:%M:%S} UTC" if at else "with an unreadable chain"
                self.tell(f"not read: topic id {each.topic_id}, {began}; read it with --topic-id {each.topic_id}")
        return latest

    def _asked(self) -> Incarnation | None:
        """The incarnation that was named.

        Raises:
            UsageError: no cluster can have a topic of this name or id.
        """
        try:
            named = Incarnation(self.topic, "0" * 22 if self.topic_id is None else self.topic_id)
        except ValueError as error:
            raise UsageError(
                printable(str(error)),
                next_step="write the topic, and its id of 22 characters, as Kafka's tools print them",
            ) from error
        return None if self.topic_id is None else named

    def _not_there(self, found: list[Incarnation], topics: Iterator[str]) -> MillraceError:
        if found:
            ids = ", ".join(each.topic_id for each in found)
            return MillraceError(
                f"topic id {self.topic_id} has no archive",
                where=f"topic {self.topic}, connection {self.connection}",
                next_step=f"choose one of the topic ids {ids}",
                code=Code.NO_ARCHIVE,
            )
        names = [printable(name) for name in topics]
        more = ", and more" if len(names) > _NAMED else ""
        return MillraceError(
            f"topic {self.topic} has no archive",
            where=f"connection {self.connection}",
            next_step=f"choose a topic with an archive: {', '.join(names[:_NAMED]) or 'none'}{more}",
            code=Code.NO_ARCHIVE,
        )
