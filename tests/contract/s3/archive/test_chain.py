"""Writers of one chain on a real store, against one another and through answers that are lost."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from millrace.adapters.archive.chain import read_on
from millrace.adapters.archive.writer import ArchiveWriter
from millrace.adapters.chain.documents import decode
from millrace.adapters.chain.links import links
from millrace.adapters.s3.store import S3Store
from millrace.domain.archive.chain import ReadRanges, next_ranges
from millrace.domain.archive.manifest import Kind, Manifest
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.proof.coverage import Verdict
from millrace.domain.archive.proof.tiling import ObservedLog, Tiling
from millrace.domain.chain.head import Writer
from millrace.domain.streams.position import LogBounds
from millrace.embedded.stack import Stack
from millrace.errors import FencedError
from millrace.ports.objects import Creation, ObjectStore
from millrace.wiring import open_platform
from support.archive.small_archive import Archive, records
from support.stack.faulty_proxy import Fault, FaultyProxy, faulty_proxy
from support.waiting import Deadline, at_once

EPOCHS = 8
LOG_END = 10_000


@pytest.fixture
def archive(s3: Stack) -> Archive:
    incarnation = Incarnation(f"t{uuid.uuid4().hex[:8]}", uuid.uuid4().hex[:22])
    return Archive(open_platform(s3.settings()).objects.store(), incarnation, "", None)


def log_of(archive: Archive) -> ObservedLog:
    return ObservedLog(datetime.now(UTC), archive.incarnation.topic_id, {0: LogBounds(0, LOG_END)})


def backup(archive: Archive, store: ObjectStore, writer: Writer, loops: int) -> str:
    """Take over, and archive ten offsets of one partition a loop, until that is done or somebody else goes on."""

    def look() -> ObservedLog:
        return log_of(archive)

    try:
        chain = ArchiveWriter.take_over(store, Tiling(archive.incarnation), writer, look)
        for _ in range(loops):
            plan = next_ranges(chain.tiling, look())
            assert isinstance(plan, ReadRanges)
            (rest,) = plan.read
            chain.append(Kind.DATA, look(), objects=[archive.put(records(0, rest.first), 0, rest.first)])
    except FencedError:
        return "fenced"
    return "done"


def test_of_many_epochs_at_once_the_highest_goes_on(archive: Archive) -> None:
    """Each writes while the next takes over; whatever comes of it is one chain."""
    calls: list[Callable[[], str]] = [
        lambda epoch=epoch: backup(archive, archive.store, Writer(epoch, str(epoch)), 6)  # type: ignore[misc]
        for epoch in range(1, EPOCHS + 1)
    ]
    ends = at_once(calls, within=Deadline.SERVER, what="eight epochs that take over from one another")
    assert ends[-1] == "done"

    tiling = Tiling(archive.incarnation)
    read_on(archive.store, tiling)
    end = tiling.partitions[0].next
    assert tiling.problems.total == 0
    assert tiling.partitions[0].records == end * 9 // 10
    assert tiling.end(log_of(archive)).verdict is Verdict.PENDING
    writers = [decode(link.data, Manifest, link.key).epoch for link in links(archive.store, archive.incarnation)]  # type: ignore[union-attr,arg-type]
    assert writers == sorted(writers)
    assert writers[-1] == EPOCHS


class Disturbed(S3Store):
    """Of every two manifests that are written, the answer of one is lost, and the request of the other."""

    def __init__(self, proxy: FaultyProxy) -> None:
        super().__init__(proxy.settings)
        self._proxy = proxy
        self._faults = itertools.cycle((Fault.LOST, Fault.RESET))

    def create(self, key: str, data: bytes) -> Creation:
        self._proxy.plan(next(self._faults), "PutObject")
        return super().create(key, data)


def test_answers_that_are_lost_leave_one_chain_and_no_fence(archive: Archive, s3: Stack) -> None:
    with faulty_proxy(s3.settings().s3()) as proxy:
        for epoch in range(1, 4):
            assert backup(archive, Disturbed(proxy), Writer(epoch, "one"), 3) == "done"
        assert [proxy.happened(fault, "PutObject") for fault in (Fault.LOST, Fault.RESET)] == [6, 6]
    tiling = Tiling(archive.incarnation)
    read_on(archive.store, tiling)
    assert (tiling.problems.total, tiling.partitions[0].next, tiling.head.sequence) == (0, 90, 3 * 4 - 1)
