"""The table that a stream writes: what looks into it, or puts rows there by their source, is refused where none is."""

from __future__ import annotations

from millrace.domain.declaration.pipeline import PostgresSink, S3Sink, Stream
from millrace.errors import RefusedError

NO_PLACE = "its rows have no place by source"
"""Why none of them is found by the record that it came from, where they are in Kafka or in S3."""


def has_table(stream: Stream) -> bool:
    """Whether it writes to a table; else it writes to Kafka or to S3."""
    return isinstance(stream.sink, PostgresSink)


def _written_to(stream: Stream) -> str:
    return "S3" if isinstance(stream.sink, S3Sink) else "Kafka"


def table_of(stream: Stream, lacks: str = "it has no table", next_step: str = "") -> PostgresSink:
    """The table that a stream writes.

    Args:
        stream: as declared.
        lacks: what is missing, for what is asked, where it writes to Kafka or to S3.
        next_step: what to do then; default: look at how far its group is.

    Raises:
        RefusedError: it writes to Kafka or to S3.
    """
    if isinstance(stream.sink, PostgresSink):
        return stream.sink
    name = stream.qualified_name
    raise RefusedError(
        f"{name} writes to {_written_to(stream)}: {lacks}",
        where=name,
        next_step=next_step or f"see how far its group is: `millrace streams show {name}`",
    )


def by_its_group(stream: Stream) -> str:
    """How a stream that writes to Kafka or to S3 is made to read again."""
    return (
        f"stop it, reset its group {stream.group} with kafka-consumer-groups --reset-offsets, start it: that opens a "
        "new timeline"
    )
