"""A backup whose JVM, workers, driver, broker or store is killed at any point archives every record once."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator

import pytest

from millrace.adapters.apps.processes import send
from millrace.domain.archive.manifest import Kind
from millrace.domain.declaration.pipeline import Resources
from millrace.domain.streams.supervision import ExitReason
from millrace.embedded.stack import Stack
from support.drills.backup import (
    S3_VARIABLE,
    BackupDrill,
    Point,
    connection_through,
    kill_driver,
    kill_jvm,
    kill_workers,
    manifests,
    pss_bytes,
    takeovers,
)
from support.drills.crashes import kill_part
from support.drills.plain_table import table
from support.stack import embedded as runs
from support.stack.faulty_proxy import faulty_proxy
from support.waiting import Deadline, eventually, exit_code_of

SERVERS = ("kafka", "s3", "postgres")
POINTS = tuple(Point)
AWAY_SECONDS, FAILED_ROUNDS = 60.0, 3
WARM_UP_ROUNDS = 2
MOST_GROWTH = 64 << 20
JVM_BESIDE_ITS_HEAP = 384 << 20


@pytest.fixture
def drill(kafka: Stack, s3: Stack, postgres: Stack, monkeypatch: pytest.MonkeyPatch) -> Iterator[BackupDrill]:
    direct = kafka.settings().s3()
    with faulty_proxy(direct) as proxy:
        monkeypatch.setenv(S3_VARIABLE, connection_through(kafka, proxy))
        made = BackupDrill(kafka, direct, proxy)
        yield made
        runs.start(kafka, *SERVERS)  # a drill that failed may have left one killed
        made.close()


def kill_broker(drill: BackupDrill) -> None:
    kill_part(drill.stack, "kafka")


def kill_store(drill: BackupDrill) -> None:
    kill_part(drill.stack, "s3")


@pytest.mark.full
@pytest.mark.parametrize(
    ("kill", "epochs"),
    [
        pytest.param(kill_jvm, {1 + len(POINTS)}, id="jvm"),
        pytest.param(kill_workers, {1}, id="workers"),
        pytest.param(kill_driver, {1 + len(POINTS)}, id="driver"),
        pytest.param(kill_broker, set(range(1, 2 + len(POINTS))), id="broker"),  # a member may be lost, or live on
        pytest.param(kill_store, {1}, id="store"),
    ],
)
def test_whatever_is_killed_every_record_is_archived_once(
    drill: BackupDrill, kill: Callable[[BackupDrill], None], epochs: set[int], capsys: pytest.CaptureFixture[str]
) -> None:
    began = time.monotonic()
    lines = []
    with drill.busy():
        for point in POINTS:
            drill.strike(point, kill)
            lines.append((point.value, drill.app.epoch, drill.ended[-1:] or "", f"{time.monotonic() - began:.0f}"))
    drill.fill()  # whoever is dead and did not notice does now
    wrong = drill.wrong()
    with capsys.disabled():
        print(table(kill.__name__, ("struck", "epoch afterwards", "ended with", "seconds"), lines))
    assert wrong == []
    assert drill.app.epoch in epochs, drill.ended


@pytest.mark.full
def test_a_driver_that_was_stopped_before_its_manifest_and_taken_over_writes_none(drill: BackupDrill) -> None:
    with drill.busy():
        drill.held(Point.MANIFEST)
        old = drill.driver
        stopped = drill.processes()
        for one in stopped:
            send(one, signal.SIGSTOP)
        drill.begin()
        drill.until_archived()
        for one in stopped:
            send(one, signal.SIGCONT)
        drill.gate.open()  # what was on its way reaches the store only now
        assert exit_code_of(old, within=Deadline.STREAM, what="the end of the older driver") == ExitReason.FENCED
    assert drill.wrong() == []
    for name in drill.names:
        found = manifests(drill.world, name)
        assert takeovers(found) == [1, 2]
        assert {manifest.epoch for manifest in found if manifest.kind is Kind.DATA} == {2}
    assert drill.ended == []


@pytest.mark.full
def test_while_the_store_is_away_the_driver_lives_on_and_does_not_grow(
    drill: BackupDrill, capsys: pytest.CaptureFixture[str]
) -> None:
    with drill.busy():
        for _ in range(WARM_UP_ROUNDS):
            drill.fill()
            drill.until_archived()
        before = pss_bytes(drill)
        drill.stack.supervisor.stop_programs(["s3"])
        drill.fill()
        began, seen = time.monotonic(), [before]

        def long_enough() -> bool:
            seen.append(pss_bytes(drill))
            assert drill.driver.poll() is None, drill.app.log()
            failed = drill.app.log().count("event=round_failed")
            return failed >= FAILED_ROUNDS and time.monotonic() > began + AWAY_SECONDS

        eventually(long_enough, within=Deadline.STREAM, what=f"{FAILED_ROUNDS} rounds to fail")
        drill.stack.supervisor.start_program("s3")
        drill.until_archived()
    with capsys.disabled():
        lines = [(role, before[role] >> 20, max(one[role] for one in seen) >> 20) for role in before]
        print(table("PSS in MiB", ("process", "before", "at most while the store was away"), lines))
    assert drill.wrong() == []
    assert drill.app.epoch == 1
    assert max(one["driver"] + one["workers"] for one in seen) <= before["driver"] + before["workers"] + MOST_GROWTH
    # A JVM gives back nothing of the heap that it has come to need once: for it only the declared bound says something.
    assert max(one["JVM"] for one in seen) <= Resources().memory_bytes + JVM_BESIDE_ITS_HEAP
