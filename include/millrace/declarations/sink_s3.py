"""`writes: {s3: ...}`: a dataset of Parquet objects in a bucket."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta

from millrace.declarations.fields import Prefix
from millrace.declarations.findings import Finding, Severity, finding
from millrace.declarations.shapes import ConnectionName, Document, FieldName
from millrace.declarations.sink_kind import Claim, Read, SinkKind, StreamPart
from millrace.declarations.spelling import spell_duration
from millrace.domain.declaration.pipeline import S3Sink

SMALL_OBJECTS_UNDER = timedelta(seconds=10)
"""Datasets written more often than this are told to have small objects."""


class S3Document(Document):
    """A dataset of Parquet objects in a bucket, partitioned by a date."""

    connection: ConnectionName = "millrace_s3"
    prefix: Prefix
    event_date: FieldName | None = None


class S3Kind(SinkKind[S3Document, S3Sink]):
    """A dataset: no two streams share objects, so prefixes must not overlap."""

    word = "s3"
    document = S3Document
    example = "{prefix: lake/purchases}"
    service = "S3"
    examples = {"prefix": "lake/purchases"}  # noqa: RUF012

    def build(self, document: S3Document) -> S3Sink:
        """Return the value."""
        return S3Sink(document.connection, document.prefix, document.event_date)

    def show(self, sink: S3Sink) -> Iterator[tuple[str, str]]:
        """Return bucket, prefix, and which date partitions the rows."""
        yield "connection", sink.store
        yield "prefix", sink.prefix
        yield "event_date", sink.event_date or "the timestamp of each record"

    def claims(self, document: S3Document) -> Iterator[Claim]:
        """Return the prefix, with all that lies inside it."""
        owner = document.prefix.replace("/", ".")
        yield Claim("prefix", document.connection, document.prefix, nests=True, owner=owner)

    def advice(self, stream: StreamPart, document: S3Document, reads: Sequence[Read]) -> Iterator[Finding]:
        """Return a warning of small objects."""
        trigger = stream.document.trigger
        if trigger < SMALL_OBJECTS_UNDER:
            what = (
                "each batch writes an object for each task and date, and a manifest: a trigger of "
                f"{spell_duration(trigger)} makes many small objects, which are slow to read"
            )
            step = (
                "declare `trigger: 60s` or longer; above `max_records_per_batch` / `trigger` records a second also "
                "raise `max_records_per_batch`: a full batch does not wait"
            )
            yield finding(stream.place("trigger"), what, step, Severity.WARNING)
