"""What a reader of a stream's dataset reads: the objects that hold rows that count."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING

from millrace.domain.declaration.pipeline import S3Sink
from millrace.domain.sinks.dataset.names import NO_DATE
from millrace.errors import Code, RefusedError, UsageError
from millrace.usecases.declaration.lookup import declared_stream
from millrace.usecases.sinks.required import dataset_of

if TYPE_CHECKING:
    from millrace.ports.platform import Platform


@dataclass(frozen=True, slots=True)
class DatasetObject:
    """An object with rows that count.

    Attributes:
        uri: s3://BUCKET/KEY.
        event_date: of its rows; None: they have none.
        rows: how many it holds, those among them that do not count.
        size_bytes: of the object.
        timeline: the one it was written on.
        where: the rows that count, as a condition in SQL; empty where all of them do.
    """

    uri: str
    event_date: date | None
    rows: int
    size_bytes: int
    timeline: int
    where: str


@dataclass(frozen=True, slots=True)
class Day:
    """The objects of one event date.

    Attributes:
        event_date: None: their rows have none.
        objects: how many have rows that count.
        rows: how many these hold, those among them that do not count.
        size_bytes: of all of them.
        partly: how many have rows that do not count.
    """

    event_date: date | None
    objects: int
    rows: int
    size_bytes: int
    partly: int


@dataclass(frozen=True, slots=True)
class DatasetObjects:
    """A stream's dataset as one manifest left it.

    Attributes:
        stream: whose it is.
        uri: s3://BUCKET/PREFIX/, what the URI of each object begins with.
        manifest: the sequence of that manifest; None: no stream has ever written there.
        timeline: the newest; 0: none was opened.
        objects: those with rows that count, by event date, those without one at the end; of the dates asked for.
    """

    stream: str
    uri: str
    manifest: int | None
    timeline: int
    objects: tuple[DatasetObject, ...]

    def days(self) -> list[Day]:
        """The objects by event date, in their order."""
        of_each: dict[date | None, list[DatasetObject]] = {}
        for one in self.objects:
            of_each.setdefault(one.event_date, []).append(one)
        return [
            Day(
                event_date,
                len(listed),
                sum(one.rows for one in listed),
                sum(one.size_bytes for one in listed),
                sum(bool(one.where) for one in listed),
            )
            for event_date, listed in of_each.items()
        ]


def dataset_objects(
    platform: Platform, stream: str, first: date | None = None, last: date | None = None
) -> DatasetObjects:
    """The objects that hold the rows of a stream that count now.

    Args:
        platform: the adapters.
        stream: PIPELINE.STREAM.
        first: the first event date; None: from the beginning.
        last: the last one; None: to the end. With either of them rows without a date are left out.

    Raises:
        UsageError: no declaration names the stream, or the first date is after the last one.
        RefusedError: it writes no dataset; or what lies under its prefix is another stream's.
        InvalidDeclarationError: its declaration is wrong.
        CorruptArchiveError: a manifest is missing, or is not what it was.
        UnreachableError: the object store does not answer.
    """
    if first is not None and last is not None and first > last:
        raise UsageError(
            f"the dates {first} to {last} are in the wrong order",
            next_step="give the earlier date first",
            code=Code.WRONG_TIME,
        )
    sink = _dataset_of(platform, stream)
    at = f"s3://{platform.settings.s3(sink.store).bucket}/"
    found = platform.sinks.dataset(sink).snapshot(first, last)
    if found is None:
        return DatasetObjects(stream, f"{at}{sink.prefix}/", None, 0, ())
    if found.history.stream != stream:
        raise RefusedError(
            f"the dataset {sink.prefix} belongs to the stream {found.history.stream}",
            where=f"stream {stream}",
            next_step="declare another `prefix`: a dataset has one stream",
            code=Code.INVALID_DECLARATION,
        )
    objects = (
        DatasetObject(
            f"{at}{file.key}",
            None if file.written.date == NO_DATE else date.fromisoformat(file.written.date),
            file.written.rows,
            file.written.size_bytes,
            file.timeline,
            file.where,
        )
        for file in found.files
    )
    in_order = sorted(objects, key=lambda one: (one.event_date or date.max, one.event_date is None, one.uri))
    history = found.history
    return DatasetObjects(stream, f"{at}{sink.prefix}/", history.head.sequence, history.timeline, tuple(in_order))


def _dataset_of(platform: Platform, stream: str) -> S3Sink:
    found = declared_stream(
        platform.settings.root,
        stream,
        backup="is a backup: it writes an archive, not a dataset",
        step="read it with `millrace backup cat` or `millrace backup restore`",
    )
    return dataset_of(found.stream)
