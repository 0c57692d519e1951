"""A dataset as its readers see it: as one manifest left it."""

from __future__ import annotations

from dataclasses import dataclass

from millrace.domain.sinks.dataset.coverage import Covered
from millrace.domain.sinks.dataset.history import History
from millrace.domain.sinks.dataset.manifest import DataObject
from millrace.domain.sinks.dataset.names import Dataset


@dataclass(frozen=True, slots=True)
class DataFile:
    """An object with rows that count.

    Attributes:
        key: in the bucket.
        timeline: the one it was written on.
        written: what its manifest says of it.
        covered: rows of it that do not count, because a newer timeline has done their offsets again; in order.
    """

    key: str
    timeline: int
    written: DataObject
    covered: tuple[Covered, ...] = ()

    @property
    def where(self) -> str:
        """The condition in SQL of the rows that count; empty where all of them do."""
        return " AND ".join(
            f"NOT (_topic_id = '{one.topic_id}' AND _partition = {one.partition} "
            f"AND _offset >= {one.first} AND _offset < {one.next})"
            for one in self.covered
        )


@dataclass(frozen=True, slots=True)
class DatasetSnapshot:
    """A dataset as one manifest left it.

    Attributes:
        dataset: which.
        history: its chain up to that manifest.
        files: the objects with rows that count, by event date; in the range of dates that was asked for.
    """

    dataset: Dataset
    history: History
    files: tuple[DataFile, ...]
