"""A pipeline of a test's own whose stream writes a dataset."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.dataset as arrow
from pyarrow import fs

from millrace.adapters.s3.store import S3Store
from millrace.adapters.sinks.s3.reading import DatasetReader
from millrace.domain.sinks.dataset.names import Dataset
from millrace.embedded.stack import Stack
from support.streams.apps import App
from support.waiting import Deadline

BY_DATE = arrow.partitioning(pa.schema([("event_date", pa.date32())]), flavor="hive")


class DatasetApp(App):
    """A stream whose sink is a dataset.

    Args:
        stack: the run's stack, with Kafka, PostgreSQL and the S3 server running.
        event_date: the column that gives a row its date; by default the record's timestamp does.
        more: as `App` takes it.
    """

    keeps = "millrace_control"

    def __init__(self, stack: Stack, *, event_date: str | None = None, **more: Any) -> None:
        self._event_date = event_date
        super().__init__(stack, **more)
        self.reader = DatasetReader(S3Store(self.settings.s3()), self.dataset)

    @property
    def dataset(self) -> Dataset:
        return Dataset(f"lake/{self.pipeline}")

    @property
    def writes(self) -> str:
        event_date = f", event_date: {self._event_date}" if self._event_date else ""
        return f"{{s3: {{prefix: {self.dataset.prefix}{event_date}}}}}"

    def done(self) -> int:
        """Return how many offsets are on record."""
        snapshot = self.reader.snapshot()
        return sum(snapshot.history.record().next_offsets.values()) if snapshot else 0

    def rows_by_another_reader(self) -> list[dict[str, Any]]:
        """Return the rows that count as Arrow's own reader finds them in the objects that the snapshot names."""
        settings, snapshot = self.settings.s3(), self.reader.snapshot()
        assert settings.endpoint_url is not None
        assert snapshot is not None
        bucket = fs.S3FileSystem(
            access_key=settings.access_key,
            secret_key=settings.secret_key,
            endpoint_override=settings.endpoint_url,
            region=settings.region or "us-east-1",
            request_timeout=Deadline.COMMAND.seconds,
        )
        found: list[dict[str, Any]] = []
        for file in snapshot.files:
            rows = arrow.dataset(f"{settings.bucket}/{file.key}", filesystem=bucket, partitioning=BY_DATE).to_table()
            covered = [(one.partition, range(one.first, one.next)) for one in file.covered]
            found += [
                row
                for row in rows.to_pylist()
                if not any(row["_partition"] == number and row["_offset"] in offsets for number, offsets in covered)
            ]
        return found
