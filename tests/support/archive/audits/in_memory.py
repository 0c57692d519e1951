"""Audits of an archive in memory, one after the other: each finds the evidence of those before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from millrace.adapters.archive.audits.auditor import Auditor
from millrace.adapters.archive.audits.evidence import EvidenceStore
from millrace.domain.archive.audits.acknowledgement import Known
from millrace.domain.archive.audits.findings import Audit, Depth
from millrace.domain.archive.audits.memory import Claim
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.proof.tiling import ObservedLog
from millrace.domain.streams.position import LogBounds
from millrace.domain.topics.sources import TopicRecord
from millrace.usecases.archive.audit_page import page_of
from support.archive.small_archive import PARTITIONS, ROUNDS, Archive, records
from support.fakes.objects import MemoryStore

HERE = Incarnation("shop.purchases", "A" * 22)
NOON = datetime(2026, 11, 24, 12, tzinfo=UTC)
END = ROUNDS * 10


@dataclass
class Audits:
    """An archive, the log and who else knows something of it; the clock goes on an hour an audit."""

    archive: Archive = field(default_factory=lambda: Archive(MemoryStore(), HERE, "", None).build())
    ends: tuple[int, ...] = (END,) * PARTITIONS
    starts: tuple[int, ...] = (0,) * PARTITIONS
    gone: bool = False
    claims: list[Claim] = field(default_factory=list)
    known: Known = field(default_factory=Known)
    now: datetime = NOON
    in_log: dict[tuple[int, int], TopicRecord] = field(default_factory=dict)
    max_lag: timedelta = timedelta(minutes=10)

    def __post_init__(self) -> None:
        for partition in range(PARTITIONS):
            for first in range(0, END, 10):
                for one in records(partition, first):
                    record = TopicRecord(
                        partition, one.offset, one.key, one.value, one.headers, one.timestamp_ms, False
                    )
                    self.in_log[partition, one.offset] = record

    @property
    def objects(self) -> dict[str, bytes]:
        """What the store holds, to be spoilt."""
        store = self.archive.store
        assert isinstance(store, MemoryStore)
        return store.objects

    def auditor(self) -> Auditor:
        return Auditor(
            "shop.backup",
            self.archive.store,
            lambda topic: self.log(),
            self.read,
            lambda here: self.claims,
            lambda here, positions: timedelta(hours=2),
            lambda: self.now,
        )

    def audit(self, depth: Depth = Depth.SHALLOW) -> Audit:
        found = self.auditor().audit(HERE, depth, self.max_lag, self.known)
        EvidenceStore(self.archive.store).put(found, page_of(found))
        self.now += timedelta(hours=1)
        return found

    def log(self) -> ObservedLog:
        if self.gone:
            return ObservedLog(self.now, None, {})
        bounds = {n: LogBounds(start, end) for n, (start, end) in enumerate(zip(self.starts, self.ends, strict=True))}
        return ObservedLog(self.now, HERE.topic_id, bounds)

    def read(self, topic: str, partition: int, first: int, next_: int) -> Iterator[TopicRecord]:
        return iter(
            [record for (n, at), record in sorted(self.in_log.items()) if n == partition and first <= at < next_]
        )


def said(audit: Audit) -> Sequence[str]:
    """What is wrong, in words."""
    return [breach.text for breach in audit.breaches]
