"""What the partitions of a topic hold, and the keys of the fullest, asked of a real broker."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from millrace.cli.topics import commands as cli
from millrace.cli.topics import skew as command
from millrace.domain.archive.restore.records import Placement, place
from millrace.embedded.stack import Stack
from millrace.errors import UsageError
from millrace.settings import KAFKA
from millrace.usecases.retention.skew import Skew, find_skew
from millrace.wiring.platform import Adapters
from support.archive.tees import Topics


@pytest.fixture
def topics(kafka: Stack) -> Topics:
    return Topics(kafka)


def skew(topics: Topics, name: str, records: int = 20_000) -> Skew:
    return find_skew(topics.platform, KAFKA, name, records)


def key_of(partition: int, partitions: int, word: str) -> bytes:
    """A key that murmur2 puts into this partition."""
    numbered = (f"{word}-{number}".encode() for number in range(1000))
    return next(key for key in numbered if place(Placement.KEY, 0, key, partitions) == partition)


def test_the_fullest_partition_and_its_keys(topics: Topics) -> None:
    name = topics.make(partitions=3)
    often, rarely = key_of(2, 3, "often"), key_of(2, 3, "rarely")
    topics.produce(name, 0, [b"x"] * 20, key=key_of(0, 3, "other"))
    topics.produce(name, 2, [b"x"] * 30, key=rarely)
    topics.produce(name, 2, [b"x"] * 90, key=often)
    topics.produce(name, 2, [b"x"] * 10)

    found = skew(topics, name)
    newest = skew(topics, name, 100).sample

    assert [each.records for each in found.load.partitions] == [20, 0, 130]
    assert [bool(each.size_bytes) for each in found.load.partitions] == [True, False, True]
    assert found.sample is not None
    assert [(each.key, each.records) for each in found.sample.top] == [(often.decode(), 90), (rarely.decode(), 30)]
    assert (found.sample.partition, found.sample.without_key, found.sample.by_murmur2) == (2, 10, True)
    assert newest is not None
    assert (newest.first, newest.next, newest.records, newest.keys) == (30, 130, 100, 1)


def test_keys_that_a_producer_has_put_elsewhere(topics: Topics) -> None:
    name = topics.make(partitions=2)
    topics.produce(name, 0, [b"x"], key=key_of(0, 2, "right"))
    topics.produce(name, 0, [b"x"], key=key_of(1, 2, "wrong"))

    sample = skew(topics, name).sample

    assert sample is not None
    assert (sample.by_murmur2, sample.hashed, sample.elsewhere) == (False, 2, 1)


def test_markers_aborted_and_open_transactions_and_a_trimmed_start(topics: Topics) -> None:
    name = topics.make(partitions=1)
    topics.produce(name, 0, [b"x"] * 5, key=b"old")
    topics.transaction(name, 0, [b"x"] * 4, commit=True)
    topics.transaction(name, 0, [b"x"] * 3, commit=False)
    topics.trim(name, 0, 2)
    producer = topics.open_transaction(name, 0, [b"x"] * 2)
    try:
        found = skew(topics, name)
    finally:
        producer.abort_transaction(30)

    assert [each.records for each in found.load.partitions] == [14]
    assert found.sample is not None
    assert (found.sample.first, found.sample.next) == (2, 14)
    assert (found.sample.records, found.sample.without_key, found.sample.keys) == (7, 4, 1)
    assert found.sample.by_murmur2 is None


def test_a_topic_of_markers_alone_an_empty_one_and_none(topics: Topics) -> None:
    aborted, empty = topics.make("aborted", partitions=1), topics.make("empty", partitions=2)
    topics.transaction(aborted, 0, [b"x"], commit=False)

    sample = skew(topics, aborted).sample
    nothing = skew(topics, empty)

    assert sample is not None
    assert (sample.records, sample.top) == (0, ())
    assert (nothing.load.records, nothing.load.hottest, nothing.sample) == (0, None, None)
    with pytest.raises(UsageError):
        skew(topics, topics.name("not_there"))


def test_the_command_needs_no_control_database(topics: Topics, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    name = topics.make(partitions=2)
    topics.produce(name, 1, [b"x"] * 3, key=b"\x00\x01")
    (tmp_path / "include/pipelines").mkdir(parents=True)
    settings = replace(topics.settings, root=tmp_path)
    monkeypatch.setattr(command, "open_settings", lambda: settings)
    monkeypatch.setattr(Adapters, "control", None)

    done = CliRunner().invoke(cli.app, ["skew", name, "--json"])

    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["hottest"]["partition"] == 1
    assert [(each["key"], each["records"]) for each in document["sample"]["top"]] == [("0001", 3)]
