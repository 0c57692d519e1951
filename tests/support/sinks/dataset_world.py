"""A stream's dataset in the object store, with its quarantine in the control database, as a `World`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from millrace.adapters.s3.store import S3Store
from millrace.adapters.sinks.aside import Aside
from millrace.adapters.sinks.s3.reading import DatasetReader
from millrace.adapters.sinks.s3.sink import S3Sink
from millrace.domain.declaration import pipeline as declaration
from millrace.domain.sinks.dataset.names import Dataset
from millrace.domain.sinks.dataset.snapshot import DatasetSnapshot
from millrace.domain.topics.offsets import TopicPartition
from millrace.ports.objects import ObjectStore
from millrace.settings import S3Settings
from support.sinks.aside_world import AsideWorld
from support.sinks.worlds import TOPIC_ID, Commit, Row, appended, at_second

if TYPE_CHECKING:
    from millrace.embedded.stack import Stack


class ProvedOnce(S3Store):
    """A store that is proved by the first takeover only: a proof takes half a second, and a test has many takeovers."""

    proved = False

    def prove_create_only(self) -> None:
        if not self.proved:
            super().prove_create_only()
        self.proved = True


@cache
def plain_store(settings: S3Settings) -> ProvedOnce:
    """Return the one store of all worlds on a server: opening its client takes longer than a test's requests."""
    return ProvedOnce(settings)


class DatasetWorld(AsideWorld):
    """A dataset of one stream's.

    Args:
        stack: with the object store and PostgreSQL.
        name: of the world.
        event_date: the column whose date names the folders.
        store: the bucket, where it is not to be the plain one.
    """

    at_once = False

    def __init__(
        self, stack: Stack, name: str, *, event_date: str | None = None, store: ObjectStore | None = None
    ) -> None:
        self.settings = stack.settings().s3()
        self.control = stack.settings().postgres("millrace_control")
        self.stream, self.secret = f"{name}.s", self.settings.secret_key
        self.declared = declaration.S3Sink("millrace_s3", f"test/{name}", event_date)
        self.dataset = Dataset(self.declared.prefix)
        self.plain = plain_store(self.settings)
        self.store = store or self.plain
        self.reader = DatasetReader(self.plain, self.dataset)

    def sink(self, epoch: int, instance: str = "") -> S3Sink:
        identity = self.identity(epoch, instance)
        aside = Aside(self.control, identity)
        return S3Sink(self.settings, identity, self.declared, store=self.store, aside=aside)

    def commit_group(self, epoch: int, timeline: int, positions: Mapping[TopicPartition, int]) -> None:
        """The group says nothing of the work."""

    def snapshot(self) -> DatasetSnapshot:
        """What a reader sees now."""
        found = self.reader.snapshot()
        assert found is not None
        return found

    def rows(self) -> list[dict[str, Any]]:
        """Every row that counts."""
        snapshot = self.reader.snapshot()
        return [row for table in self.reader.rows(snapshot) for row in table.to_pylist()] if snapshot else []

    def contents(self) -> list[tuple[int, Row]]:
        found = []
        for row in self.rows():
            assert row["_topic_id"] == TOPIC_ID
            second = int((row["_timestamp"] - at_second(0)).total_seconds())
            place = row["_partition"], row["_offset"], row["_ordinal"]
            found.append((row["_timeline"], Row(*place, row["customer"], row["amount"], second)))
        return sorted(found, key=lambda one: (one[1].partition, one[1].offset, one[1].ordinal))

    def expected(self, history: Iterable[Commit]) -> list[tuple[int, Row]]:
        return appended(history)

    def objects(self) -> set[str]:
        """The key of every data object, whether it counts or not."""
        return {info.key for info in self.plain.list(self.dataset.data)}

    def manifests(self) -> int:
        """How many the chain has."""
        return sum(1 for _ in self.plain.list(self.dataset.manifests))

    def lose(self, sink: S3Sink) -> None:
        snapshot = self.reader.snapshot()
        counts = {file.key for file in snapshot.files} if snapshot else set()
        assert not self.plain.delete(self.objects() - counts)
