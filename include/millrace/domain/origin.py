"""Where a record that a stream wrote to Kafka comes from: five headers, as text that any client can read.

| header              | value                                        |
|---------------------|----------------------------------------------|
| `millrace.stream`   | PIPELINE.STREAM                              |
| `millrace.source`   | TOPIC_ID/PARTITION/OFFSET of the input record |
| `millrace.ordinal`  | which row of that record it is, from 0       |
| `millrace.timeline` | the stream's timeline                        |
| `millrace.epoch`    | the stream's epoch                           |
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from millrace.domain.offsets import Source

STREAM = "millrace.stream"
SOURCE = "millrace.source"
ORDINAL = "millrace.ordinal"
TIMELINE = "millrace.timeline"
EPOCH = "millrace.epoch"
HEADERS = (STREAM, SOURCE, ORDINAL, TIMELINE, EPOCH)
MOST_BYTES = 256
"""What the five take of a record at most, beside the stream's name."""

Header = tuple[str, bytes | None]


@dataclass(frozen=True, slots=True)
class Origin:
    """What the headers of one record say.

    Attributes:
        stream: who wrote it, PIPELINE.STREAM.
        source: topic id, partition and offset of its input record.
        ordinal: which of the rows that came of that record it is.
        timeline: the stream's history between two rewinds that it belongs to.
        epoch: the number of the start that wrote it.
    """

    stream: str
    source: Source
    ordinal: int
    timeline: int
    epoch: int

    def headers(self) -> list[tuple[str, bytes]]:
        """As a record carries it."""
        topic_id, partition, offset = self.source
        values = (self.stream, f"{topic_id}/{partition}/{offset}", self.ordinal, self.timeline, self.epoch)
        return [(name, str(value).encode()) for name, value in zip(HEADERS, values, strict=True)]

    @classmethod
    def of(cls, headers: Iterable[Header] | None) -> Origin | None:
        """What a record's headers say; None where it is of no stream, or they are not whole.

        Where a header is there twice, as of a record that was copied with its headers, the last counts.
        """
        found = dict(headers or ())
        try:
            stream, source, *numbers = (_text(found[name]) for name in HEADERS)
            topic_id, partition, offset = source.split("/")
            place = (topic_id, _number(partition), _number(offset))
            return cls(stream, place, *map(_number, numbers))
        except (KeyError, ValueError):
            return None


def _text(value: bytes | None) -> str:
    if not value:
        raise ValueError("an empty header")
    return value.decode()


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"no number: {text!r}")
    return int(text)
