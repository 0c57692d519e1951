"""Archives that are restored into topics of the real broker, and what any consumer then finds there."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millrace.adapters.archive.columns import to_batch
from millrace.adapters.archive.objects import write_object
from millrace.adapters.archive.writer import ArchiveWriter
from millrace.domain.archive.manifest import Kind, ObjectEntry
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.proof.tiling import ObservedLog, Tiling
from millrace.domain.archive.records import ArchivedRecord, TimestampType
from millrace.domain.archive.restore.records import MARKS
from millrace.domain.archive.selection import Selection
from millrace.domain.chain.head import Writer
from millrace.domain.streams.position import LogBounds
from millrace.domain.topics.offsets import OffsetRange, TopicPartition
from millrace.ports.objects import ObjectStore
from millrace.ports.platform import Platform
from millrace.settings import open_settings
from millrace.usecases.archive.restore import Request, Restore, RestoreProgress
from millrace.usecases.archive.restore_run import RestoreReport
from millrace.wiring import open_platform
from support.topics.plain_consumer import PlainRecord, read_topic

if TYPE_CHECKING:
    from support.archive.tees import Topics

AT = datetime(2026, 11, 24, 12, tzinfo=UTC)
BEGAN_MS = 1_700_000_000_000
NOT_LOGGED = "the action log lacks this restore"

Object = tuple[int, Sequence[ArchivedRecord]]
"""A partition and its records, which begin where the partition's last object ended."""


def new_incarnation() -> Incarnation:
    """A topic that no cluster has, or has any more."""
    return Incarnation(f"t{uuid.uuid4().hex[:8]}.gone", uuid.uuid4().hex[:22])


def plain_records(first: int, count: int, **more: Any) -> list[ArchivedRecord]:
    """Records of so many offsets, all different."""
    return [
        ArchivedRecord(
            offset,
            more.get("timestamp_ms", BEGAN_MS + offset),
            TimestampType.CREATE_TIME,
            f"key {offset % 7}".encode(),
            f"value {offset}".encode(),
            (("trace", str(offset).encode()),),
        )
        for offset in range(first, first + count)
    ]


def archive(
    store: ObjectStore, here: Incarnation, partitions: int, objects: Iterable[Object], *, gap_at: int | None = None
) -> list[ObjectEntry]:
    """An archive of these objects, a manifest each; with `gap_at` offsets below it in partition 0 are lost."""
    ends = dict.fromkeys(range(partitions), 0)
    starts = dict.fromkeys(range(partitions), 0)

    def log() -> ObservedLog:
        bounds = {number: LogBounds(starts[number], ends[number]) for number in ends}
        return ObservedLog(AT, here.topic_id, bounds)

    chain = ArchiveWriter.take_over(store, Tiling(here), Writer(1, "one"), log)
    entries = []
    for partition, records in objects:
        first, next_ = ends[partition], records[-1].offset + 1
        if gap_at is not None and partition == 0 and first < gap_at <= records[0].offset:
            first = starts[0] = gap_at
        of = TopicPartition(here.topic, here.topic_id, partition)
        written = write_object(OffsetRange(of, first, next_), [to_batch(records)])
        store.create(here.object_key(written.entry.name), written.data)
        ends[partition] = next_
        chain.append(Kind.DATA, log(), objects=[written.entry])
        entries.append(written.entry)
    return entries


class Restores:
    """Restores of one archive, each as a process would do it.

    Attributes:
        topics: of the test; None in a child, which makes none.
        told: what was said, but for an action log that is away: a single test has no control database.
    """

    def __init__(self, topics: Topics | None, here: Incarnation, platform: Platform | None = None) -> None:
        self._topics = topics
        self.here = here
        self.platform = platform or self.topics.platform
        self.told: list[str] = []

    @property
    def topics(self) -> Topics:
        assert self._topics is not None
        return self._topics

    @property
    def root(self) -> Path:
        return self.platform.settings.root

    @property
    def store(self) -> ObjectStore:
        return self.platform.objects.store()

    def target(self, suffix: str = "back", *, partitions: int = 2, **config: str) -> str:
        """A topic that keeps what it is given."""
        return self.topics.make(suffix, partitions=partitions, **{"retention_ms": "-1"} | config)

    def restore(
        self,
        into: str,
        selection: Selection | None = None,
        *,
        at: Callable[[RestoreProgress], object] = lambda progress: None,
        **more: Any,
    ) -> RestoreReport:
        """One try."""
        request = Request(self.here.topic, into, selection or Selection(), "cli:test", "a test", **more)
        return Restore(self.platform, request, self._tell, at).run()

    def _tell(self, text: str) -> None:
        if not text.startswith(NOT_LOGGED):
            self.told.append(text)

    def there(self, into: str) -> list[PlainRecord]:
        """What any consumer finds in the target."""
        return read_topic(self.topics.kafka.librdkafka, into).records


def platform_of(root: Path | str) -> Platform:
    """What another process of the same stack works with."""
    return open_platform(open_settings(Path(root)))


def original(record: PlainRecord) -> tuple[int, ArchivedRecord]:
    """What a restored record says it was: partition and record, its content as it lies in the target."""
    own, marks = record.headers[: -len(MARKS)], record.headers[-len(MARKS) :]
    assert tuple(name for name, _ in marks) == MARKS
    said = {name.removeprefix("millrace.restored."): (value or b"").decode() for name, value in marks}
    kind = TimestampType[said["timestamp_type"].upper()]
    assert record.timestamp_ms == int(said["timestamp_ms"])
    return int(said["partition"]), ArchivedRecord(
        int(said["offset"]), record.timestamp_ms, kind, record.key, record.value, own
    )


def originals(found: Iterable[PlainRecord]) -> list[tuple[int, ArchivedRecord]]:
    """What restored records say they were, in the order in which they lie in the target's partitions."""
    return [original(record) for record in found]


def meant(objects: Iterable[Object]) -> list[tuple[int, ArchivedRecord]]:
    """The records of an archive by partition and offset."""
    all_of_them = [(partition, record) for partition, records in objects for record in records]
    return sorted(all_of_them, key=lambda each: (each[0], each[1].offset))
