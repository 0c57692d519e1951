"""A restore whose broker is killed on the way, again and again, writes each record once."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import pytest

from millrace.embedded.stack import Stack
from millrace.errors import RefusedError, UnreachableError
from millrace.usecases.archive import restore_run
from millrace.usecases.archive.restore import RestoreProgress
from millrace.usecases.archive.restore_run import Phase, RestoreReport
from support.archive.restores.real import (
    BEGAN_MS,
    Object,
    Restores,
    archive,
    meant,
    new_incarnation,
    originals,
    plain_records,
)
from support.archive.tees import Topics
from support.drills.crashes import kill_part
from support.stack import embedded as runs
from support.streams.project import tool_environment
from support.waiting import Deadline, eventually

KILLED_AFTER = (1, 3, 8)  # transactions


def abort_hanging(kafka: Stack, error: RefusedError) -> None:
    """Do what the error says: a broker that is killed may forget the markers of a transaction that it committed."""
    found = re.search(r"stays open from offset (\d+)$", error.what)
    if found is None:
        raise error
    topic, _, partition = error.where.rpartition("/")
    tool = kafka.layout.tools / "kafka-transactions"
    server = kafka.settings().kafka().bootstrap_servers
    where = ["--topic", topic, "--partition", partition, "--start-offset", found[1]]
    done = subprocess.run(
        [str(tool), "--bootstrap-server", server, "abort", *where],
        env=tool_environment(kafka),
        capture_output=True,
        text=True,
        timeout=Deadline.COMMAND.seconds,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def restores(kafka: Stack, s3: Stack) -> Iterator[Restores]:
    yield Restores(Topics(kafka), new_incarnation())
    runs.start(kafka, "kafka")


@pytest.mark.full
@pytest.mark.parametrize("stamp", [BEGAN_MS, 0], ids=["librdkafka", "exact"])
def test_a_restore_whose_broker_is_killed_writes_each_record_once(
    restores: Restores, kafka: Stack, monkeypatch: pytest.MonkeyPatch, stamp: int
) -> None:
    monkeypatch.setattr(restore_run, "TRANSACTION_RECORDS", 20)
    objects: list[Object] = [(p, plain_records(at, 50, timestamp_ms=stamp)) for at in range(0, 200, 50) for p in (0, 1)]
    archive(restores.store, restores.here, 2, objects)
    into = restores.target()
    written = [0]

    def at(progress: RestoreProgress) -> None:
        if progress.phase is Phase.RESTORING and progress.records:
            written[0] += 1
            if written[0] in KILLED_AFTER:
                kill_part(kafka, "kafka")

    def tried() -> RestoreReport | None:
        """What came of a try; None where the broker was away for too long, or was not back yet."""
        try:
            return restores.restore(into, at=at)
        except UnreachableError:
            runs.start(kafka, "kafka")
            return None
        except RefusedError as error:
            abort_hanging(kafka, error)
            return None

    report = eventually(tried, within=Deadline.LONG, what="a restore to come to its end")
    assert written[0] >= KILLED_AFTER[-1]
    assert report.is_whole
    assert originals(restores.there(into)) == meant(objects)
