"""Records out of an archive, as lines of JSON: by time or by offset, with nothing but the bucket."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING

from millrace.domain.archive.coverage import Problem
from millrace.domain.archive.manifest import MOST, ObjectEntry
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.records import ArchivedRecord
from millrace.domain.time_travel import WrongTimeError, parse_time
from millrace.errors import MillraceError, UsageError
from millrace.spec.findings import printable

if TYPE_CHECKING:
    from millrace.wiring import Platform

NO_TIMESTAMP = -1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_MOMENT = datetime.max.replace(tzinfo=UTC)  # producers write any timestamp, so a bound may lie in the future
_MILLISECOND = timedelta(milliseconds=1)
_NAMED = 20  # topics, where what was asked for is not there
# What breaks a line for some readers, or speaks to a terminal; all of it can stand in JSON only inside a text.
_UNSAFE = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


@dataclass(frozen=True, slots=True)
class Selection:
    """Which records are asked for; everything where nothing is said.

    Attributes:
        partition: the only one.
        first: offsets from here on, and below `next`.
        from_ms: timestamps from here on, in milliseconds since 1970.
        to_ms: timestamps below this.
        key: the record's key is these bytes.
    """

    partition: int | None = None
    first: int = 0
    next: int = MOST
    from_ms: int | None = None
    to_ms: int | None = None
    key: bytes | None = None

    @property
    def is_by_time(self) -> bool:
        """Whether timestamps select: records that have none then are left out."""
        return self.from_ms is not None or self.to_ms is not None

    def has_offsets_of(self, entry: ObjectEntry) -> bool:
        """Whether an object holds records of the partition and the offsets that are asked for."""
        if self.partition not in (None, entry.partition):
            return False
        first, next_ = max(self.first, entry.first), min(self.next, entry.next)
        return first < next_ and not any(low <= first and next_ <= high for low, high in entry.holes)

    def may_hold(self, entry: ObjectEntry) -> bool:
        """Whether an object may hold what is asked for, as far as its manifest says."""
        low, high = entry.min_timestamp_ms, entry.max_timestamp_ms
        if low is None or high is None or not self.has_offsets_of(entry):
            return False
        return (self.to_ms is None or low < self.to_ms) and (self.from_ms is None or high >= self.from_ms)

    def may_take(self, record: ArchivedRecord) -> bool:
        """Whether a record of the partition that is asked for is selected but for its timestamp."""
        return self.first <= record.offset < self.next and self.key in (None, record.key)

    def is_in_time(self, timestamp_ms: int) -> bool:
        """Whether a timestamp, which is one, is selected."""
        return (self.from_ms is None or timestamp_ms >= self.from_ms) and (
            self.to_ms is None or timestamp_ms < self.to_ms
        )


def selection_of(
    from_: str | None,
    to: str | None,
    *,
    partition: int | None = None,
    key: str | None = None,
    key_base64: str | None = None,
) -> Selection:
    """What the options of the command ask for.

    Raises:
        UsageError: a bound is neither a time with its zone nor an offset, one is a time and the other an offset, an
            offset comes without a partition, the bounds leave nothing, or the key is given twice or is no bytes.
    """
    low, high = _bound(from_, "--from"), _bound(to, "--to")
    kinds = {type(bound) for bound in (low, high) if bound is not None}
    if len(kinds) > 1:
        raise UsageError("one of --from and --to is a time and the other an offset", next_step="give two of a kind")
    if low is not None and high is not None and _number(low) >= _number(high):
        raise UsageError(
            "nothing lies between --from and --to", next_step="let --from lie before --to, which is not taken itself"
        )
    wanted = _key(key, key_base64)
    first, next_ = (None if bound is None else _number(bound) for bound in (low, high))
    if int not in kinds:
        return Selection(partition, from_ms=first, to_ms=next_, key=wanted)
    if partition is None:
        raise UsageError("an offset is one of a partition", next_step="name it with --partition, or give times")
    return Selection(partition, first or 0, MOST if next_ is None else next_, key=wanted)


def _bound(text: str | None, option: str) -> int | datetime | None:
    """An offset, or a moment."""
    if text is None:
        return None
    if re.fullmatch("[0-9]{1,19}", text):
        return int(text)
    try:
        return parse_time(text, _LAST_MOMENT)
    except WrongTimeError as error:
        raise UsageError(
            printable(str(error)),
            where=option,
            next_step="give a time with its zone, or an offset (a whole number) and --partition",
        ) from error


def _number(bound: int | datetime) -> int:
    """An offset as it is; of a moment the first millisecond that is not before it."""
    return bound if isinstance(bound, int) else -((_EPOCH - bound) // _MILLISECOND)


def _key(text: str | None, in_base64: str | None) -> bytes | None:
    if text is not None and in_base64 is not None:
        raise UsageError("the key is given twice", next_step="give --key or --key-base64")
    try:
        if in_base64 is not None:
            return base64.b64decode(in_base64, validate=True)
        return None if text is None else text.encode()
    except (binascii.Error, ValueError) as error:
        option = "--key" if in_base64 is None else "--key-base64"
        raise UsageError(
            "that is no UTF-8" if in_base64 is None else "that is no base64",
            where=option,
            next_step="give bytes that are no text as --key-base64, with its padding",
        ) from error


def line_of(incarnation: Incarnation, partition: int, record: ArchivedRecord) -> str:
    """A record as one line of JSON without its end: bytes as text where that gives the same bytes, else in base64."""
    said = {
        "topic": incarnation.topic,
        "topic_id": incarnation.topic_id,
        "partition": partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "timestamp_type": record.timestamp_type.name.lower(),
        "timestamp": _iso(record.timestamp_ms),
        **_bytes("key", record.key),
        **_bytes("value", record.value),
        "headers": [{"name": name, **_bytes("value", value)} for name, value in record.headers],
    }
    line = json.dumps(said, ensure_ascii=False, separators=(",", ":"))
    return line if line.isascii() and "\x7f" not in line else _UNSAFE.sub(_escaped, line)


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


def _bytes(name: str, data: bytes | None) -> dict[str, str | None]:
    """Bytes under a name, or under `NAME_base64` where they are not UTF-8. Strict decoding loses nothing."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode("ascii")}


def _iso(timestamp_ms: int) -> str | None:
    """A timestamp in UTC with milliseconds; None where there is none, or its year is not one of 1 to 9999."""
    if timestamp_ms == NO_TIMESTAMP:
        return None
    try:
        moment = _EPOCH + timestamp_ms * _MILLISECOND
    except OverflowError:
        return None
    return f"{moment.replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"


@dataclass(slots=True)
class Cat:
    """The records of one topic that are asked for, and what there is to say of them.

    Attributes:
        platform: gives the bucket; Kafka and the control database are not asked.
        topic: whose records.
        selection: which of them.
        topic_id: of which incarnation of the topic; None: the one whose chain began last.
        connection: the `aws` Connection that leads to the bucket.
        limit: how many records at most; None: all.
        tell: told, a line each, what is wrong, and what a reader should know.
        problems: how much was wrong.
    """

    platform: Platform
    topic: str
    selection: Selection
    tell: Callable[[str], object]
    topic_id: str | None = None
    connection: str = "millrace_s3"
    limit: int | None = None
    problems: int = 0
    _timeless: int = field(default=0, init=False)
    _unread: int = field(default=0, init=False)  # objects that may hold records without a timestamp as well

    def lines(self) -> Generator[str, None, None]:
        """The records, a line of JSON each: in the order of the chain, so of each partition by offset.

        Raises:
            UsageError: there can be no such topic, or no such id.
            MillraceError: there is no such archive.
            UnreachableError: the bucket cannot be reached; what came until then is right.
        """
        here = self._incarnation()
        with closing(self._selected(here)) as selected:
            yield from islice(selected, self.limit)
        if self._timeless:
            self.tell(f"{self._timeless} records without a timestamp were left out")
        if self._unread:
            self.tell(f"{self._unread} objects that were not read may hold records without a timestamp, too")

    def _selected(self, here: Incarnation) -> Generator[str, None, None]:
        reader = self.platform.archive_reader(self.connection)
        with closing(reader.read(here, self._fits, self._tell_problem)) as objects:
            for held in objects:
                partition = held.range.partition.partition
                for record in held.records():
                    if self._takes(record):
                        yield line_of(here, partition, record)

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

    def _tell_problem(self, problem: Problem) -> None:
        self.problems += 1
        self.tell(printable(str(problem)))

    def _incarnation(self) -> Incarnation:
        """Which incarnation to read; the others are named."""
        reader, asked = self.platform.archive_reader(self.connection), self._asked()
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
                began = f"whose archive began at {at:%Y-%m-%d %H:%M:%S} UTC" if at else "whose chain cannot be read"
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
                printable(str(error)), next_step="write the topic, and its id of 22 characters, as Kafka's tools do"
            ) from error
        return None if self.topic_id is None else named

    def _not_there(self, found: list[Incarnation], topics: Iterator[str]) -> MillraceError:
        if found:
            ids = ", ".join(each.topic_id for each in found)
            return MillraceError(
                f"there is no archive of topic id {self.topic_id}",
                where=f"topic {self.topic}, connection {self.connection}",
                next_step=f"those of this topic have the ids {ids}",
            )
        names = [printable(name) for name in topics]
        more = ", and more" if len(names) > _NAMED else ""
        return MillraceError(
            f"there is no archive of {self.topic}",
            where=f"connection {self.connection}",
            next_step=f"topics that have one: {', '.join(names[:_NAMED]) or 'none'}{more}",
        )
