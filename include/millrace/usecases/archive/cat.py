"""Records out of an archive, as lines of JSON: by time or by offset, with nothing but the bucket."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING

from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.records import ArchivedRecord
from millrace.domain.archive.selection import NO_TIMESTAMP, Selection
from millrace.usecases.archive.archived import ArchivedTopic

if TYPE_CHECKING:
    from millrace.ports.platform import Platform

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
# What breaks a line for some readers, or speaks to a terminal; all of it can stand in JSON only inside a text.
_UNSAFE = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


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
        tell: told, a line each, what is wrong, and what a reader should know.
        topic_id: of which incarnation of the topic; None: the one whose chain began last.
        connection: the `aws` Connection that leads to the bucket.
        limit: how many records at most; None: all.
    """

    platform: Platform
    topic: str
    selection: Selection
    tell: Callable[[str], object]
    topic_id: str | None = None
    connection: str = "millrace_s3"
    limit: int | None = None
    _archived: ArchivedTopic = field(init=False)

    def __post_init__(self) -> None:
        self._archived = ArchivedTopic(
            self.platform, self.topic, self.selection, self.tell, self.topic_id, self.connection
        )

    @property
    def problems(self) -> int:
        """How much was wrong."""
        return self._archived.problems

    def lines(self) -> Generator[str, None, None]:
        """The records, a line of JSON each: in the order of the chain, so of each partition by offset.

        Raises:
            UsageError: there can be no such topic, or no such id.
            MillraceError: there is no such archive.
            UnreachableError: the bucket cannot be reached; what came until then is right.
        """
        here = self._archived.incarnation()
        with closing(self._archived.records(here)) as records:
            for partition, record in islice(records, self.limit):
                yield line_of(here, partition, record)
        self._archived.tell_left_out()
