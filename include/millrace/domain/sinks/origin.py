"""Where a record that a stream wrote to Kafka comes from: five headers, as text that any client can read.

| header              | value                                         |
|---------------------|-----------------------------------------------|
| `millrace.stream`   | PIPELINE.STREAM                               |
| `millrace.source`   | TOPIC_ID/PARTITION/OFFSET of the input record |
| `millrace.ordinal`  | which row of that record it is, from 0        |
| `millrace.timeline` | the stream's timeline                         |
| `millrace.epoch`    | the stream's epoch                            |
| `millrace.order`    | `none`, see below                             |

The sixth is there only where the rows of a source partition do not come in the order of offset and ordinal, as where
the transform shuffles, joins, sorts or reads an input twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from millrace.domain.topics.offsets import Source

STREAM = "millrace.stream"
SOURCE = "millrace.source"
ORDINAL = "millrace.ordinal"
TIMELINE = "millrace.timeline"
EPOCH = "millrace.epoch"
HEADERS = (STREAM, SOURCE, ORDINAL, TIMELINE, EPOCH)
"""Those that are always there."""
ORDER = "millrace.order"
MOST_BYTES = 256
"""What all six take of a record at most, beside the stream's name."""

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
        in_order: whether rows of one source partition come in the order of offset and ordinal, in each output
            partition and in each try of a batch.
    """

    stream: str
    source: Source
    ordinal: int
    timeline: int
    epoch: int
    in_order: bool = True

    def headers(self) -> list[tuple[str, bytes]]:
        """As a record carries it."""
        topic_id, partition, offset = self.source
        values = (self.stream, f"{topic_id}/{partition}/{offset}", self.ordinal, self.timeline, self.epoch)
        found = [(name, str(value).encode()) for name, value in zip(HEADERS, values, strict=True)]
        return found if self.in_order else [*found, (ORDER, b"none")]

    @classmethod
    def of(cls, headers: Iterable[Header] | None) -> Origin | None:
        """What a record's headers say; None where it is of no stream, or they are not whole.

        Where a header is there twice, as of a record that was copied with its headers, the last counts. `ORDER` says
        that there is no order by being there, whatever its value: one that this does not know promises nothing.
        """
        found = dict(headers or ())
        try:
            stream, source, *numbers = (_text(found[name]) for name in HEADERS)
            topic_id, partition, offset = source.split("/")
            place = (topic_id, _number(partition), _number(offset))
            ordinal, timeline, epoch = map(_number, numbers)
            return cls(stream, place, ordinal, timeline, epoch, in_order=ORDER not in found)
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
