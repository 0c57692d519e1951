"""`millrace backup cat` on archives in memory: what is asked for comes, and what is wrong is told."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from typer.testing import CliRunner

from millrace.adapters.archive.reading import ArchiveReader
from millrace.adapters.chain.documents import decode, encode, sha256_of
from millrace.cli.archive import commands as command
from millrace.domain.archive.manifest import Manifest
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.selection import Selection
from millrace.errors import MillraceError, UsageError
from support.archive.read_back import BEGAN_MS, HERE, CountingStore, MemoryArchive, Printed, all_offsets, made
from support.archive.small_archive import OFFSETS, PARTITIONS, ROUNDS, records
from support.commands import use_platform
from support.fakes.platform import PartsPlatform


@pytest.fixture
def archive() -> MemoryArchive:
    return made(CountingStore(), HERE)


def test_everything_comes_once_and_each_partition_in_the_order_of_its_offsets(archive: MemoryArchive) -> None:
    found = Printed(archive.store)
    assert (set(found.at), found.told, found.cat.problems) == (all_offsets(), [], 0)
    assert len(found.at) == len(set(found.at))
    for partition in range(PARTITIONS):
        offsets = [offset for number, offset in found.at if number == partition]
        assert offsets == sorted(offsets)


def test_a_record_is_a_line_of_all_its_fields(archive: MemoryArchive) -> None:
    (line,) = Printed(archive.store, selection=Selection(1, 12, 13)).lines
    assert list(line.items()) == [
        ("topic", HERE.topic),
        ("topic_id", HERE.topic_id),
        ("partition", 1),
        ("offset", 12),
        ("timestamp_ms", BEGAN_MS + 12),
        ("timestamp_type", "create_time"),
        ("timestamp", "2023-11-14T22:13:20.012Z"),
        ("key", "1/0"),
        ("value", "value 12" * 20),
        ("headers", [{"name": "trace", "value": "12"}, {"name": "trace", "value": None}]),
    ]


def gone(archive: MemoryArchive) -> str:
    archive.delete(archive.key(1, 0))
    return archive.key(1, 0)


def flipped(archive: MemoryArchive) -> str:
    data = bytearray(archive.bytes_of(archive.key(1, 0)))
    data[len(data) // 3] ^= 4
    archive.overwrite(archive.key(1, 0), bytes(data))
    return archive.key(1, 0)


def cut_off(archive: MemoryArchive) -> str:
    archive.overwrite(archive.key(1, 0), archive.bytes_of(archive.key(1, 0))[:-20])
    return archive.key(1, 0)


def another(archive: MemoryArchive) -> str:
    archive.overwrite(archive.key(1, 0), archive.bytes_of(archive.key(2, 0)))
    return archive.key(1, 0)


def replaced(archive: MemoryArchive) -> str:
    """A sound object of the same offsets with other records: only the SHA-256 tells."""
    other = [replace(record, value=b"another") for record in records(0, OFFSETS)]
    archive.overwrite(archive.key(1, 0), archive.written(other, 0, OFFSETS).data)
    return archive.key(1, 0)


@pytest.mark.parametrize("spoil", [gone, flipped, cut_off, another, replaced])
def test_an_object_that_is_not_what_it_was_is_told_and_the_rest_printed(
    archive: MemoryArchive, spoil: Callable[[MemoryArchive], str]
) -> None:
    key = spoil(archive)
    found = Printed(archive.store)
    missing = {(0, record.offset) for record in records(0, OFFSETS)}
    assert set(found.at) == all_offsets() - missing
    assert found.cat.problems == 1
    (told,) = found.told
    assert key in told
    assert "[10, 20) of partition 0" in told
    assert Printed(archive.store, selection=Selection(1)).told == []  # nobody asked for it


def test_an_object_of_another_range_than_its_manifest_says_is_told(archive: MemoryArchive) -> None:
    """Its bytes are what the chain says: whoever wrote that was wrong."""
    wrong = archive.written(records(1, 40), 1, 40)
    entry = replace(wrong.entry, partition=0)
    archive.overwrite(archive.incarnation.object_key(entry.name), wrong.data)
    seen = (replace(archive.manifests[-1].seen[0], end=50),)
    archive.append(objects=(entry,), seen=seen)
    found = Printed(archive.store)
    assert set(found.at) == all_offsets()
    assert "the object names another range: shop.purchases" in found.said


def test_an_object_that_is_no_parquet_is_told(archive: MemoryArchive) -> None:
    entry = archive.entry(-1, 0)
    data = b"no parquet"
    other = replace(entry, first=40, next=50, holes=((48, 49),), sha256=sha256_of(data), size_bytes=len(data))
    archive.overwrite(archive.incarnation.object_key(other.name), data)
    archive.append(objects=(other,), seen=(replace(archive.manifests[-1].seen[0], end=50),))
    found = Printed(archive.store)
    assert set(found.at) == all_offsets()
    assert "not an object of an archive" in found.said
    assert "[40, 50) of partition 0" in found.said


def test_a_missing_manifest_is_told_with_the_offsets_that_nobody_brings(archive: MemoryArchive) -> None:
    sequence = archive.manifests[1].sequence
    archive.delete(archive.incarnation.manifest_key(sequence))
    found = Printed(archive.store)
    lost = {(p, record.offset) for p in range(PARTITIONS) for record in records(p, OFFSETS)}
    assert set(found.at) == all_offsets() - lost
    assert f"{archive.incarnation.manifest_key(sequence)}: it is missing" in found.said
    for partition in range(PARTITIONS):
        assert f"manifest has these offsets [10, 20) of partition {partition}" in found.said
    assert found.cat.problems == 3


def test_a_broken_link_is_told_and_what_it_brings_printed(archive: MemoryArchive) -> None:
    second = archive.manifests[1]
    key = archive.incarnation.manifest_key(second.sequence)
    archive.overwrite(key, encode(replace(second, at=second.at + timedelta(seconds=1))))
    found = Printed(archive.store)
    assert set(found.at) == all_offsets()
    assert archive.incarnation.manifest_key(second.sequence + 1) in found.said
    assert found.cat.problems == 1


def test_where_objects_overlap_it_is_told_and_both_are_printed(archive: MemoryArchive) -> None:
    entry = archive.put(records(0, 25), 0, 25)
    archive.append(objects=(entry,), seen=archive.manifests[-1].seen)
    found = Printed(archive.store)
    assert sorted(found.at) == sorted([*all_offsets(), *((0, record.offset) for record in records(0, 25))])
    assert "[25, 35) of partition 0" in found.said


@pytest.mark.parametrize("data", [b"", b"{}\n", b"\xff" * 40])
def test_a_manifest_that_says_nothing_is_told(archive: MemoryArchive, data: bytes) -> None:
    key = archive.incarnation.manifest_key(archive.manifests[1].sequence)
    archive.overwrite(key, data)
    found = Printed(archive.store)
    assert len(found.at) == len(all_offsets()) - 2 * (OFFSETS - 1)
    assert f"{key}: the object is not a valid manifest" in found.said


def test_a_manifest_of_another_topic_brings_nothing(archive: MemoryArchive) -> None:
    second = archive.manifests[1]
    archive.overwrite(archive.incarnation.manifest_key(second.sequence), encode(replace(second, topic="other")))
    found = Printed(archive.store)
    assert len(found.at) == len(all_offsets()) - 2 * (OFFSETS - 1)
    assert "it belongs to other" in found.said


def test_a_chain_that_was_cut_off_below_its_summary_is_told(archive: MemoryArchive) -> None:
    archive.sum_up()
    archive.delete(archive.incarnation.manifest_key(archive.manifests[-1].sequence))
    found = Printed(archive.store)
    assert len(found.at) == len(all_offsets()) - 2 * (OFFSETS - 1)
    assert "a summary names manifest" in found.said
    assert found.cat.problems == 1


def test_thousands_of_faults_are_not_told_one_by_one(archive: MemoryArchive) -> None:
    last = archive.manifests[-1].sequence
    for number in range(1200):
        archive.overwrite(archive.incarnation.manifest_key(last + 1 + number), b"{}\n")
    found = Printed(archive.store)
    assert set(found.at) == all_offsets()
    assert "200 more faults like these" in found.said


@pytest.mark.parametrize("summed_up", [False, True])
def test_what_has_expired_and_is_gone_is_no_fault(archive: MemoryArchive, summed_up: bool) -> None:
    archive.expire(archive.entry(0, 0), archive.entry(1, 0))
    if summed_up:
        archive.sum_up()
    for round_ in (0, 1):
        archive.delete(archive.key(round_, 0))
    found = Printed(archive.store)
    gone = {(0, record.offset) for round_ in (0, 1) for record in records(0, round_ * OFFSETS)}
    assert (set(found.at), found.told) == (all_offsets() - gone, [])
    archive.delete(archive.key(2, 0))  # this one has not expired
    assert archive.key(2, 0) in Printed(archive.store).said


def test_what_expires_while_it_is_read_is_no_fault(archive: MemoryArchive) -> None:
    """The chain is at its end, and the object still wanted, when it expires and is deleted."""

    class Expiring(CountingStore):
        def get(self, key: str) -> bytes | None:
            if key == archive.key(3, 1) and key in self.objects:
                archive.expire(archive.entry(3, 1))
                archive.delete(key)
            return super().get(key)

    store = Expiring()
    store.objects = archive.store.objects
    found = Printed(store)
    assert (found.told, (1, 30) in found.at, (0, 30) in found.at) == ([], False, True)


def test_of_several_incarnations_the_latest_is_read_and_the_others_are_named(archive: MemoryArchive) -> None:
    newer = Incarnation(HERE.topic, "A" * 22)  # first by its id, last by its time
    later = made(CountingStore(), newer)
    objects = later.store.objects
    for sequence in range(ROUNDS + 1):
        key = newer.manifest_key(sequence)
        at = decode(objects[key], Manifest, key).at + timedelta(days=1)
        objects[key] = encode(replace(decode(objects[key], Manifest, key), at=at))
    archive.store.objects |= objects
    found = Printed(archive.store)
    assert {line["topic_id"] for line in found.lines} == {newer.topic_id}
    assert f"--topic-id {HERE.topic_id}" in found.told[0]
    assert "since 2026-11-24 12:00:00 UTC" in found.told[0]
    older = Printed(archive.store, topic_id=HERE.topic_id)
    assert ({line["topic_id"] for line in older.lines}, older.told) == ({HERE.topic_id}, [])

    archive.store.objects[newer.manifest_key(0)] = b"spoilt"  # then its second manifest says when it began
    assert {line["topic_id"] for line in Printed(archive.store).lines} == {newer.topic_id}
    for sequence in range(ROUNDS + 1):
        del archive.store.objects[newer.manifest_key(sequence)]
    left = Printed(archive.store)
    assert {line["topic_id"] for line in left.lines} == {HERE.topic_id}
    assert "unreadable chain" in left.told[0]


def test_a_topic_without_an_archive_names_those_that_have_one(archive: MemoryArchive) -> None:
    with pytest.raises(MillraceError) as refused:
        Printed(archive.store, "shop.refunds")
    assert (refused.value.exit_code, HERE.topic in refused.value.next_step) == (1, True)
    with pytest.raises(MillraceError) as refused:
        Printed(CountingStore(), HERE.topic)
    assert refused.value.next_step == "choose a topic with an archive: none"


def test_an_id_without_an_archive_names_those_of_the_topic(archive: MemoryArchive) -> None:
    with pytest.raises(MillraceError) as refused:
        Printed(archive.store, topic_id="X" * 22)
    assert (refused.value.exit_code, HERE.topic_id in refused.value.next_step) == (1, True)


@pytest.mark.parametrize(("topic", "topic_id"), [("a/b", None), ("", None), ("..", None), (HERE.topic, "short")])
def test_a_name_that_no_topic_has_is_refused(archive: MemoryArchive, topic: str, topic_id: str | None) -> None:
    with pytest.raises(UsageError):
        Printed(archive.store, topic, topic_id=topic_id)


def test_an_archive_whose_manifests_are_gone_is_told(archive: MemoryArchive) -> None:
    for sequence in range(ROUNDS + 1):
        archive.delete(archive.incarnation.manifest_key(sequence))
    found = Printed(archive.store)
    assert (found.lines, found.cat.problems, "the chain has no manifest" in found.said) == ([], 1, True)


@pytest.fixture
def called(archive: MemoryArchive, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    platform = PartsPlatform(archive_reader=lambda connection: ArchiveReader(archive.store))
    use_platform(monkeypatch, platform, command)
    return lambda *arguments: CliRunner().invoke(command.app, ["cat", *arguments])


def test_the_command_prints_lines_and_what_is_wrong_beside_them(
    archive: MemoryArchive, called: Callable[..., Any]
) -> None:
    whole = called(HERE.topic)
    assert (whole.exit_code, whole.stderr, len(whole.stdout.splitlines())) == (0, "", len(all_offsets()))
    asked = called(HERE.topic, "--partition", "1", "--from", "3", "--to", "7", "--key", "1/0")
    assert [json.loads(line)["offset"] for line in asked.stdout.splitlines()] == [3, 6]
    assert called(HERE.topic, "--key-base64", "MS8w", "--limit", "2").stdout.count("\n") == 2
    gone(archive)
    spoilt = called(HERE.topic)
    assert (spoilt.exit_code, len(spoilt.stdout.splitlines())) == (1, len(all_offsets()) - OFFSETS + 1)
    assert spoilt.stderr.startswith("millrace: manifest 2: ")


def test_the_command_ends_with_the_code_of_what_went_wrong(archive: MemoryArchive, called: Callable[..., Any]) -> None:
    assert called(HERE.topic, "--from", "3").exception.exit_code == 2
    assert called(HERE.topic, "--limit", "0").exit_code == 2
    assert called("other").exception.exit_code == 1
    archive.store.away_for = archive.key(2, 0)
    away = called(HERE.topic)
    assert away.exception.exit_code == 3
    assert len(away.stdout.splitlines()) == 4 * (OFFSETS - 1)  # what came until then stays


def test_a_reader_that_has_enough_ends_it_quietly(
    archive: MemoryArchive, called: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w", encoding="ascii") as closed:  # a locale that knows no umlaut changes nothing either
        monkeypatch.setattr(sys, "stdout", closed)
        command._print(line for line in ["ä"] * 100_000)
        closed.write("what Python still holds")  # goes nowhere, and is no error
