"""`millrace backup cat` against the real store: by itself, with as few requests as there can be, and through faults."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.adapters.archive.reading import ArchiveReader
from millrace.adapters.s3.store import S3Store
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.selection import Selection
from millrace.embedded.stack import Stack
from millrace.errors import UnreachableError
from millrace.settings import STATE_FOLDER, S3Settings, read_environment_file, variable_name
from millrace.usecases.archive.cat import Cat
from support.archive.small_archive import OFFSETS, PARTITIONS, ROUNDS, Archive
from support.fakes.platform import PartsPlatform
from support.stack.faulty_proxy import Fault, FaultyProxy, plain_client
from support.waiting import Deadline

PACKAGES = Path(__file__).resolve().parents[4] / "include"
RECORDS = PARTITIONS * ROUNDS * (OFFSETS - 1)
MANIFESTS = ROUNDS + 1
S3 = variable_name("millrace_s3")


@pytest.fixture(scope="module")
def archive(s3_settings: S3Settings) -> Archive:
    incarnation = Incarnation(f"t{uuid.uuid4().hex[:8]}", uuid.uuid4().hex[:22])
    raw = plain_client(s3_settings)
    return Archive(S3Store(s3_settings), incarnation, s3_settings.bucket, raw).build()


def read(store: S3Store, archive: Archive, selection: Selection | None = None, **how: Any) -> list[tuple[int, int]]:
    told: list[str] = []
    platform: Any = PartsPlatform(archive_reader=lambda connection: ArchiveReader(store))
    cat = Cat(platform, archive.incarnation.topic, selection or Selection(), told.append, **how)
    found = [json.loads(line) for line in cat.lines()]
    assert told == []
    return [(line["partition"], line["offset"]) for line in found]


@pytest.mark.parametrize(
    ("selection", "records", "objects"),
    [
        (Selection(), RECORDS, PARTITIONS * ROUNDS),
        (Selection(1), RECORDS // PARTITIONS, ROUNDS),
        (Selection(0, 18, 21), 2, 2),  # 18 is a marker
        (Selection(0, 18, 19), 0, 0),
        (Selection(from_ms=1_700_000_000_030), 2 * (OFFSETS - 1), PARTITIONS),
        (Selection(to_ms=1_700_000_000_000), 0, 0),
        (Selection(1, from_ms=1_700_000_000_012, to_ms=1_700_000_000_014), 2, 1),
    ],
)
def test_only_objects_that_fit_are_fetched(
    archive: Archive, store: S3Store, proxy: FaultyProxy, selection: Selection, records: int, objects: int
) -> None:
    assert len(read(store, archive, selection)) == records
    assert proxy.requests["GetObject"] == MANIFESTS + 1 + objects  # and one where the next manifest will be
    assert set(proxy.requests) == {"GetObject", "ListObjectsV2"}


def test_a_limit_stops_the_fetching(archive: Archive, store: S3Store, proxy: FaultyProxy) -> None:
    assert read(store, archive, limit=1) == [(0, 0)]
    assert proxy.requests["GetObject"] <= MANIFESTS + 1 + 3


def test_answers_that_are_lost_or_cut_off_change_nothing(
    archive: Archive, store: S3Store, proxy: FaultyProxy, disturbed: None
) -> None:
    assert sorted(read(store, archive)) == sorted(read(archive.store, archive))  # type: ignore[arg-type]
    assert proxy.happened(Fault.LOST, "GetObject")
    assert proxy.happened(Fault.CUT_OFF, "GetObject")


@pytest.fixture
def disturbed(proxy: FaultyProxy) -> Iterator[None]:
    proxy.disturbed = True
    yield
    proxy.disturbed = False


def test_a_store_that_fails_is_no_verdict(archive: Archive, proxy: FaultyProxy) -> None:
    proxy.answer("GetObject", 500, "InternalError", times=1_000)
    with pytest.raises(UnreachableError):
        read(S3Store(proxy.settings, attempts=2), archive)


def call(archive: Archive, tmp_path: Path, connection: str, *arguments: str, **how: Any) -> subprocess.CompletedProcess:
    """The command in a project that knows no other connection than that to the bucket."""
    return subprocess.run(
        [sys.executable, "-m", "millrace.cli.main", "backup", "cat", archive.incarnation.topic, *arguments],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(PACKAGES), "MILLRACE_ROOT": str(tmp_path), S3: connection},
        stderr=subprocess.PIPE,
        timeout=Deadline.COMMAND.seconds,
        check=False,
        **{"stdout": subprocess.PIPE} | how,
    )


@pytest.fixture
def connection(s3: Stack) -> str:
    return read_environment_file(s3.root / STATE_FOLDER / "env")[S3]


def test_the_command_needs_nothing_but_the_bucket(archive: Archive, tmp_path: Path, connection: str) -> None:
    whole = call(archive, tmp_path, connection)
    assert (whole.returncode, whole.stderr) == (0, b"")
    assert len({(line["partition"], line["offset"]) for line in map(json.loads, whole.stdout.splitlines())}) == RECORDS
    few = call(archive, tmp_path, connection, "--from", "2023-11-14 23:13:20.012 Europe/Berlin", "--limit", "3")
    assert [json.loads(line)["timestamp_ms"] % 1_000 for line in few.stdout.splitlines()] == [12, 13, 14]


def test_a_pipe_that_is_closed_ends_it_quietly(archive: Archive, tmp_path: Path, connection: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = call(archive, tmp_path, connection, stdout=writing)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_store_that_is_away_ends_it_with_3(archive: Archive, tmp_path: Path, connection: str) -> None:
    said = json.loads(connection)
    extra = said["extra"] if isinstance(said["extra"], dict) else json.loads(said["extra"])
    away = json.dumps({**said, "extra": {**extra, "endpoint_url": "http://127.0.0.1:1"}})
    done = call(archive, tmp_path, away)
    assert (done.returncode, done.stdout) == (3, b"")
    assert b"next:" in done.stderr
    assert said["password"].encode() not in done.stderr
