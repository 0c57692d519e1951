"""Capabilities of a stream's sink, required: a use case that needs one refuses the streams whose sink lacks it."""

from __future__ import annotations

from millrace.domain.declaration.pipeline import PostgresSink, S3Sink, Stream
from millrace.domain.sinks.capabilities import Capability
from millrace.errors import Code, RefusedError


def require(stream: Stream, capability: Capability) -> None:
    """Refuse a stream whose sink lacks a capability.

    Raises:
        RefusedError: it does; the error says why, and the way out.
    """
    if (lack := stream.lack(capability)) is not None:
        raise RefusedError(lack.reason, where=stream.qualified_name, next_step=lack.next_step, code=Code.UNSUPPORTED)


def table_of(stream: Stream, capability: Capability = Capability.TABLE) -> PostgresSink:
    """Return the table that a stream writes.

    Args:
        stream: as declared.
        capability: what is asked of the table.

    Raises:
        RefusedError: its sink lacks the capability.
    """
    require(stream, capability)
    table = stream.sink.as_table
    assert table is not None, f"{stream.sink.kind} is able to {capability}, and has no table"
    return table


def dataset_of(stream: Stream) -> S3Sink:
    """Return the dataset that a stream writes.

    Raises:
        RefusedError: it writes none.
    """
    require(stream, Capability.FILES)
    dataset = stream.sink.as_dataset
    assert dataset is not None, f"{stream.sink.kind} has files, and no dataset"
    return dataset
