"""`millrace topics skew`: what partitions hold and the keys of the fullest, as found and as called."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from hypothesis import given
from hypothesis import strategies as some
from typer.testing import CliRunner

from millrace.cli.topics import commands as topics
from millrace.cli.topics import skew
from millrace.domain.archive.restore.records import Placement, place
from millrace.domain.groups.snapshots import LogSeen, Snapshot, TopicSeen
from millrace.domain.retention.skew import MOST_SAMPLED_BYTES, load_of, newest, sample_of
from millrace.domain.topics.sources import TopicRecord
from millrace.errors import DataLossError, UnreachableError, UsageError
from millrace.settings import Settings, project_root
from millrace.usecases.retention.skew import Skew, find_skew
from support.commands import use_platform
from support.declarations import example_project
from support.fakes.groups import FakeCluster
from support.fakes.platform import PartsPlatform

NAME = "shop.purchases"
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
KIB = 1024


class FakeReader:
    """A `TopicReader` over keys by offset of one partition; what has no key there is a marker or an aborted record."""

    def __init__(self, keys: dict[int, bytes | None], *, expires: int = 0) -> None:
        self.keys, self.expires = keys, expires
        self.reads: list[tuple[str, int, int, int]] = []

    def between(self, topic: str, partition: int, first: int, end: int) -> Iterator[TopicRecord]:
        self.reads.append((topic, partition, first, end))
        if len(self.reads) <= self.expires:
            raise DataLossError("records expired before they were read", where=topic)
        for offset, key in sorted(self.keys.items()):
            if first <= offset < end:
                yield TopicRecord(partition, offset, key, b"value")


def log(records: int, *, start: int = 0, open_from: int | None = None, size: int | None = None) -> LogSeen:
    end = start + records
    return LogSeen(start, end, end if open_from is None else open_from, None, size)


def world(*logs: LogSeen | None, reader: FakeReader | None = None, faults: tuple[str, ...] = ()) -> Any:
    snapshot = Snapshot(AT, "cluster-1", {NAME: TopicSeen("id", logs)}, {}, faults=faults)
    return PartsPlatform(
        kafka_cluster=lambda kafka: FakeCluster(snapshot), kafka_records=lambda kafka: reader or FakeReader({})
    )


def found(*logs: LogSeen | None, reader: FakeReader | None = None, records: int = 20_000) -> Skew:
    return find_skew(world(*logs, reader=reader), "main_kafka", NAME, records)


def keys_of(partition: int, partitions: int, count: int) -> list[bytes]:
    """Keys that murmur2 puts into this partition."""
    numbered = (f"customer-{number}".encode() for number in range(100 * count * partitions))
    right = (key for key in numbered if place(Placement.KEY, 0, key, partitions) == partition)
    return [next(right) for _ in range(count)]


def test_the_fullest_partition_is_told_with_its_share_and_against_the_mean() -> None:
    load = found(log(10, start=5), log(60), log(20), log(10)).load

    assert [each.records for each in load.partitions] == [10, 60, 20, 10]
    assert load.hottest is not None
    assert (load.hottest.partition, load.share(load.hottest)) == (1, 0.6)
    assert load.against_mean(load.hottest) == pytest.approx(2.4)
    assert (load.records, load.mean, load.size_bytes) == (100, 25, None)


def test_bytes_are_told_where_the_brokers_tell_them() -> None:
    assert found(log(1, size=100), log(1, size=20)).load.size_bytes == 120
    assert [each.size_bytes for each in found(log(1, size=100), log(1)).load.partitions] == [100, None]


def test_an_empty_topic_has_no_hottest_partition_and_no_sample() -> None:
    nothing = found(log(0, start=7), log(0))

    assert (nothing.load.hottest, nothing.sample, nothing.load.mean) == (None, None, 0)
    assert nothing.load.share(nothing.load.partitions[0]) is None


def test_the_newest_keys_of_the_fullest_partition_are_counted() -> None:
    often, rarely = keys_of(1, 2, 2)
    keys = {offset: often if offset % 4 else rarely for offset in range(100)} | {98: None, 99: None}
    reader = FakeReader(keys)

    sample = found(log(3), log(100), reader=reader, records=40).sample

    assert reader.reads == [(NAME, 1, 60, 100)]
    assert sample is not None
    assert (sample.records, sample.without_key, sample.keys) == (40, 2, 2)
    assert [(each.key, each.records) for each in sample.top] == [(often.decode(), 28), (rarely.decode(), 10)]
    assert (sample.by_murmur2, sample.elsewhere, sample.hashed) == (True, 0, 2)


def test_keys_that_murmur2_would_put_elsewhere_are_told() -> None:
    here, there = keys_of(0, 2, 1)[0], keys_of(1, 2, 1)[0]

    sample = found(log(4), log(1), reader=FakeReader(dict.fromkeys(range(3), here) | {3: there})).sample

    assert sample is not None
    assert (sample.by_murmur2, sample.elsewhere, sample.hashed) == (False, 1, 2)


def test_of_one_partition_and_of_records_without_keys_nothing_is_told_of_murmur2() -> None:
    alone = found(log(2), reader=FakeReader({0: b"a", 1: b"b"})).sample
    keyless = found(log(2), log(1), reader=FakeReader({0: None, 1: None})).sample

    assert alone is not None
    assert keyless is not None
    assert (alone.by_murmur2, alone.elsewhere, alone.hashed) == (None, None, 2)
    assert (keyless.by_murmur2, keyless.keys, keyless.without_key) == (None, 0, 2)


def test_markers_and_what_is_open_are_not_counted() -> None:
    reader = FakeReader(dict.fromkeys((0, 1, 2, 4, 5), b"a"))

    sample = found(log(8, open_from=5), reader=reader).sample

    assert sample is not None
    assert (sample.first, sample.next, sample.records) == (0, 5, 4)


def test_a_partition_of_markers_alone_has_an_empty_sample() -> None:
    sample = found(log(3), reader=FakeReader({})).sample
    undecided = found(log(3, open_from=0), reader=FakeReader({})).sample

    assert sample is not None
    assert undecided is not None
    assert (sample.records, sample.top, sample.by_murmur2) == (0, (), None)
    assert (undecided.first, undecided.next, undecided.records) == (0, 0, 0)


def test_a_topic_with_a_thousand_partitions() -> None:
    reader = FakeReader({0: b"a"})

    skewed = found(*(log(1 + number % 7) for number in range(1000)), reader=reader)

    assert skewed.load.hottest is not None
    assert (skewed.load.hottest.partition, len(skewed.load.partitions)) == (6, 1000)
    assert reader.reads == [(NAME, 6, 0, 7)]


def test_what_retention_deletes_meanwhile_is_looked_at_again_a_few_times() -> None:
    twice, always = FakeReader({9: b"a"}, expires=2), FakeReader({9: b"a"}, expires=100)

    assert found(log(10), reader=twice).sample is not None
    with pytest.raises(DataLossError):
        found(log(10), reader=always)
    assert len(always.reads) == 3


def test_partitions_without_an_answer_are_unknown_and_not_empty() -> None:
    skewed = found(log(10), None, log(30))

    assert (skewed.load.unknown, skewed.load.records, skewed.load.mean) == ((1,), 40, 20)
    with pytest.raises(UnreachableError) as caught:
        find_skew(world(None, None, faults=("broker 2: dead",)), "main_kafka", NAME, 1)
    assert caught.value.next_step == "broker 2: dead"


def test_no_such_topic() -> None:
    with pytest.raises(UsageError) as caught:
        find_skew(world(log(1)), "main_kafka", "shop.purchase", 1)

    assert caught.value.next_step == f"did you mean `{NAME}`?"


@given(some.integers(0, 10**12), some.integers(0, 10**9), some.integers(0, 10**9), some.integers(1, 10**6))
def test_a_sample_lies_in_the_log_and_is_bounded(start: int, records: int, unstable: int, most: int) -> None:
    seen = LogSeen(start, start + records, start + max(0, records - unstable), None, records * 100 * KIB)

    first, end = newest(seen, most)

    assert start <= first <= end == seen.stable
    assert end - first <= most
    assert (end - first) * 100 * KIB <= MOST_SAMPLED_BYTES


def test_a_sample_of_large_records_is_smaller_and_never_nothing() -> None:
    assert newest(log(1000, size=1000 * 2**20), 20_000) == (744, 1000)
    assert newest(log(10, size=10 * 2**40), 20_000) == (9, 10)


@pytest.mark.parametrize(
    ("key", "shown", "is_text", "is_cut"),
    [
        (b"customer-17", "customer-17", True, False),
        ("käse".encode(), "käse", True, False),
        (b"", "", True, False),
        (b"\xff\x00", "ff00", False, False),
        ((42).to_bytes(8, "big"), "000000000000002a", False, False),
        (b"two\nlines", b"two\nlines".hex(), False, False),
        (b"x" * 80, "x" * 80, True, False),
        (b"x" * 81, "x" * 80, True, True),
        ("ü".encode() * 1000, "ü" * 80, True, True),
        (b"a" + "🎉".encode() * 1000, "a" + "🎉" * 79, True, True),
        (b"\xff" * 41, "ff" * 40, False, True),
        (b"ok" * 500 + b"\xff", b"ok".hex() * 20, False, True),
    ],
)
def test_keys_are_shown_as_text_or_else_in_hexadecimal_digits(
    key: bytes, shown: str, is_text: bool, is_cut: bool
) -> None:
    (top,) = sample_of(0, (0, 1), [key], 1).top

    assert (top.key, top.is_text, top.is_cut, top.size_bytes) == (shown, is_text, is_cut, len(key))


def test_ten_keys_are_named_and_huge_ones_are_hashed_only_in_part() -> None:
    many = sample_of(0, (0, 200), [str(number % 100).encode() for number in range(200)], 4)
    huge = sample_of(0, (0, 5), [bytes([number]) * 2 * 2**20 for number in range(5)], 4)

    assert (len(many.top), many.keys, many.hashed) == (10, 100, 100)
    assert (huge.keys, huge.hashed) == (5, 2)


def test_an_answer_without_any_partition_is_no_load() -> None:
    assert load_of(TopicSeen("id", ())).hottest is None


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("MILLRACE_ROOT", str(example_project(tmp_path / "project")))
    monkeypatch.setenv("MILLRACE_ENVIRONMENT", "embedded")
    return monkeypatch


def call(patch: pytest.MonkeyPatch, platform: Any, *arguments: str) -> Result:
    use_platform(patch, platform, skew, settings=Settings(project_root(), lambda name: None))
    return CliRunner().invoke(topics.app, ["skew", *arguments])


def test_the_command_draws_bars_and_names_keys(project: pytest.MonkeyPatch) -> None:
    often, rarely = keys_of(1, 3, 2)
    keys: dict[int, bytes | None] = {offset: often if offset % 4 else rarely for offset in range(100)} | {99: None}
    platform = world(log(25, size=3 * KIB), log(100, size=9 * KIB), None, reader=FakeReader(keys))

    done = call(project, platform, NAME)

    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[0] == f"{NAME} on millrace_kafka at 2026-01-02 03:04:05 UTC: 125 records in 3 partitions"
    assert [line.count("█") for line in lines[1:4]] == [10, 40, 0]
    assert lines[2].split()[2:] == ["100", "records", "80.0%", "9.0", "KiB"]
    assert "not known: 1 partitions, whose leaders did not answer" in lines
    assert "hottest: partition 1 with 80.0% of the records, 1.60 times the mean" in lines
    assert "its newest 100 committed records (offsets 0 to 100) have 2 different keys" in lines
    assert any(line.split() == [f"`{often.decode()}`", "74", "records", "74.0%"] for line in lines)
    assert any(line.split() == ["without", "a", "key", "1", "records", "1.0%"] for line in lines)
    assert lines[-1] == "keys are partitioned by murmur2: all of 2 belong here"


def test_the_command_prints_one_document(project: pytest.MonkeyPatch) -> None:
    platform = world(log(1, size=10), log(3, size=30), reader=FakeReader({0: b"\xff", 1: None, 2: b"\xff"}))

    document = json.loads(call(project, platform, NAME, "--json", "--records", "2").stdout)

    assert document == {
        "schema": "millrace.topics.skew/1",
        "topic": NAME,
        "kafka": "millrace_kafka",
        "cluster_id": "cluster-1",
        "at": "2026-01-02T03:04:05+00:00",
        "records": 4,
        "size_bytes": 40,
        "partitions": [
            {"partition": 0, "records": 1, "size_bytes": 10, "share": 0.25},
            {"partition": 1, "records": 3, "size_bytes": 30, "share": 0.75},
        ],
        "hottest": {"partition": 1, "records": 3, "size_bytes": 30, "share": 0.75, "against_mean": 1.5},
        "sample": {
            "partition": 1,
            "first": 1,
            "next": 3,
            "records": 2,
            "without_key": 1,
            "keys": 1,
            "top": [{"key": "ff", "is_text": False, "is_cut": False, "size_bytes": 1, "records": 1, "share": 0.5}],
            "hashed": 1,
            "elsewhere": 1 if place(Placement.KEY, 0, b"\xff", 2) == 0 else 0,
            "by_murmur2": place(Placement.KEY, 0, b"\xff", 2) == 1,
        },
    }


def test_the_command_shows_the_fullest_fifty_of_a_thousand_partitions(project: pytest.MonkeyPatch) -> None:
    platform = world(*(log(number) for number in range(1000)), reader=FakeReader({}))

    text = call(project, platform, NAME).stdout
    document = json.loads(call(project, platform, NAME, "--json").stdout)

    assert "and 950 more partitions with 949 records at most" in text
    assert len(document["partitions"]) == 1000
    assert "no record is committed among its newest ones (offsets 0 to 999)" in text


def test_the_command_of_an_empty_topic_and_of_none(project: pytest.MonkeyPatch) -> None:
    empty = call(project, world(log(0), log(0)), NAME)
    document = json.loads(call(project, world(log(0)), NAME, "--json").stdout)
    none = call(project, world(log(0)), "elsewhere")

    assert empty.exit_code == 0
    assert ": 0 records in 2 partitions" in empty.stdout
    assert (document["hottest"], document["sample"]) == (None, None)
    assert isinstance(none.exception, UsageError)
    assert none.exception.exit_code == 2


def test_another_cluster_is_named_with_an_option(project: pytest.MonkeyPatch) -> None:
    document = json.loads(call(project, world(log(0)), NAME, "--kafka", "other_kafka", "--json").stdout)

    assert document["kafka"] == "other_kafka"
