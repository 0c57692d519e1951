"""Faults put into a real archive by hand: each is named, with the object or manifest and the offsets it is about."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from millrace.adapters.archive.chain import put_summary, resume
from millrace.adapters.archive.documents import encode, sha256_of
from millrace.domain.archive.coverage import Verdict
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.tiling import Tiling
from millrace.embedded.stack import Stack
from millrace.ports import ObjectStore
from millrace.settings import S3Settings, open_settings
from millrace.wiring import open_platform
from support.archives import OFFSETS, ROUNDS, Archive, records
from support.faulty_proxy import plain_client


@lru_cache(maxsize=1)
def store_and_raw_client(settings: S3Settings, root: Path) -> tuple[ObjectStore, Any]:
    """Made once for all tests: a client takes longer to make than an archive."""
    return open_platform(open_settings(root)).object_store(), plain_client(settings)


@pytest.fixture
def archive(s3: Stack) -> Archive:
    bucket = s3.settings().s3()
    store, raw = store_and_raw_client(bucket, s3.root)
    incarnation = Incarnation(f"t{uuid.uuid4().hex[:8]}", uuid.uuid4().hex[:22])
    return Archive(store, incarnation, bucket.bucket, raw).build()


@dataclass(frozen=True)
class Told:
    """What an inspection has to name: the key (or its end), and the offsets; by the deep one alone where bytes tell."""

    key: str
    about: str
    deep_only: bool = False
    stray: bool = False
    also: str = ""
    other: str = "\0"  # a second object that may be named


def dropped(archive: Archive) -> Told:
    left = [record for record in records(0, OFFSETS) if record.offset != 13]
    archive.overwrite(archive.key(1, 0), archive.written(left, 0, OFFSETS).data)
    return Told(archive.key(1, 0), "[13, 14) of partition 0", deep_only=True)


def doubled(archive: Archive) -> Told:
    """A record comes once more, in the place of the one after it."""
    twice = [replace(r, key=b"0/0") if r.offset == 13 else r for r in records(0, OFFSETS)]
    twice = [replace(twice[3], offset=r.offset) if r.offset == 14 else r for r in twice]
    archive.overwrite(archive.key(1, 0), archive.written(twice, 0, OFFSETS).data)
    return Told(archive.key(1, 0), "[10, 20) of partition 0", deep_only=True)


def swapped(archive: Archive) -> Told:
    """Two objects change places; that one says so of the other is enough."""
    one, other = archive.bytes_of(archive.key(0, 0)), archive.bytes_of(archive.key(2, 0))
    archive.overwrite(archive.key(0, 0), other)
    archive.overwrite(archive.key(2, 0), one)
    return Told(archive.key(2, 0), "[20, 30) of partition 0", deep_only=True, other=archive.key(0, 0))


def exchanged(archive: Archive) -> Told:
    """Two records of an object change places: the object is as large as before, and holds the same records."""
    given = records(1, 0)
    given[2], given[3] = replace(given[3], offset=2), replace(given[2], offset=3)
    archive.overwrite(archive.key(0, 1), archive.written(given, 1, 0).data)
    return Told(archive.key(0, 1), "[0, 10) of partition 1", deep_only=True)


def truncated(archive: Archive) -> Told:
    archive.overwrite(archive.key(1, 1), archive.bytes_of(archive.key(1, 1))[:-20])
    return Told(archive.key(1, 1), "[10, 20) of partition 1")


def flipped(archive: Archive) -> Told:
    data = bytearray(archive.bytes_of(archive.key(3, 1)))
    data[len(data) // 3] ^= 4
    archive.overwrite(archive.key(3, 1), bytes(data))
    return Told(archive.key(3, 1), "[30, 40) of partition 1", deep_only=True)


def overlapping(archive: Archive) -> Told:
    entry = archive.put(records(0, 25), 0, 25)
    sequence = archive.append(objects=(entry,))
    return Told(f"manifest {sequence}", "[25, 35) of partition 0")


def stale(archive: Archive) -> Told:
    """The chain's second half is of another history: a copy from before, with another object in it."""
    third = archive.manifests[2]
    other = archive.put(records(1, 2 * OFFSETS)[:-1], 1, 2 * OFFSETS, 3 * OFFSETS - 1)
    key = archive.incarnation.manifest_key(third.sequence)
    archive.overwrite(key, encode(replace(third, objects=(third.objects[0], other))))
    return Told(f"manifest {third.sequence + 1}", "", also="partition 1 [29, 30) is lost")


def missing_manifest(archive: Archive) -> Told:
    third = archive.manifests[2]
    archive.delete(archive.incarnation.manifest_key(third.sequence))
    return Told(f"manifest {third.sequence}: it is missing", "", also="partition 1 [20, 30) is lost")


def foreign(archive: Archive) -> Told:
    key = archive.key(1, 0).replace(archive.entry(1, 0).sha256, sha256_of(b"something else"))
    archive.overwrite(key, b"something else")
    return Told(key, "[10, 20) of partition 0", stray=True)


def of_another_topic(archive: Archive) -> Told:
    """A manifest that follows, and is of the topic as it was before it was made again."""
    sequence = archive.append(topic_id="A" * 22)
    return Told(f"manifest {sequence}", f"it is of {archive.incarnation.topic} ({'A' * 22})")


def shifted(archive: Archive) -> Told:
    """A manifest that says of an object what it holds, an offset too far: nothing but the object can tell."""
    written = archive.written(records(0, ROUNDS * OFFSETS + 1), 0, ROUNDS * OFFSETS + 1)
    first = ROUNDS * OFFSETS
    holes = tuple((begin - 1, end - 1) for begin, end in written.entry.holes)
    entry = replace(written.entry, first=first, next=first + OFFSETS, holes=holes)
    archive.overwrite(archive.incarnation.object_key(entry.name), written.data)
    seen = tuple(replace(look, end=first + OFFSETS + 1) for look in archive.manifests[-1].seen)
    archive.append(objects=(entry,), seen=seen)
    return Told(archive.incarnation.object_key(entry.name), "[40, 41) of partition 0", deep_only=True)


def deleted(archive: Archive) -> Told:
    key = archive.key(2, 1)
    archive.delete(key)
    return Told(key, "[20, 30) of partition 1")


FAULTS = [
    dropped,
    doubled,
    swapped,
    exchanged,
    truncated,
    flipped,
    overlapping,
    stale,
    missing_manifest,
    foreign,
    of_another_topic,
    shifted,
    deleted,
]


@pytest.mark.parametrize("spoil", FAULTS)
def test_a_fault_is_named_with_its_object_and_offsets(archive: Archive, spoil: Callable[[Archive], Told]) -> None:
    told = spoil(archive)
    end = max(ROUNDS * OFFSETS, 51 if spoil is shifted else 0)
    for deep in (False, True):
        found = archive.inspect(deep=deep, end=end)
        breaches = list(found.coverage.breaches())
        named = [str(stray) for stray in found.strays.found] if told.stray else breaches
        fitting = [line for line in named if told.key in line and told.about in line]
        if deep or not told.deep_only:  # where only the bytes tell, the sizes may tell too
            assert fitting, f"deep={deep}: {told} is not in {named}"
            assert not told.also or any(told.also in line for line in breaches), breaches
            assert found.coverage.verdict is (Verdict.PROVEN if told.stray else Verdict.BROKEN)
        assert all(line.startswith(("manifest", "partition")) for line in breaches)
        assert told.also or all(told.key in line or told.other in line for line in breaches), "others are accused"


def test_a_whole_archive_is_proven(archive: Archive) -> None:
    for deep in (False, True):
        found = archive.inspect(deep=deep)
        assert found.coverage.verdict is Verdict.PROVEN
        assert (list(found.coverage.breaches()), found.strays.total) == ([], 0)
        assert (found.counts.objects, found.counts.checked) == (8, 8 if deep else 0)
        assert [(part.records, part.holes) for part in found.coverage.partitions] == [(36, 4), (36, 4)]


def test_the_next_look_begins_at_the_summary(archive: Archive) -> None:
    tiling = Tiling(archive.incarnation)
    whole = archive.inspect(deep=False)
    from_start = resume(archive.store, archive.incarnation)
    assert from_start.head == tiling.head
    for link in archive.read_manifests():
        tiling.add(link, sha256_of(encode(link)))
    put_summary(archive.store, tiling)

    resumed = resume(archive.store, archive.incarnation)
    assert resumed.head == tiling.head
    assert resumed.end(archive.log()).partitions == whole.coverage.partitions
    archive.delete(archive.incarnation.manifest_key(resumed.head.sequence))
    cut_off = resume(archive.store, archive.incarnation)
    assert (cut_off.head.sequence, cut_off.problems.total) == (-1, 1)
    assert "manifest 4, which is missing: the chain was cut off" in str(cut_off.problems.found[0])


def test_a_summary_of_other_bytes_is_named_and_one_that_says_nothing_left_aside(archive: Archive) -> None:
    tiling = Tiling(archive.incarnation)
    for manifest in archive.read_manifests():
        tiling.add(manifest, sha256_of(encode(manifest)))
    key = put_summary(archive.store, tiling)
    last = archive.manifests[-1]
    archive.overwrite(archive.incarnation.manifest_key(last.sequence), encode(replace(last, epoch=2)))
    assert "which has other bytes now" in str(resume(archive.store, archive.incarnation).problems.found[0])
    archive.overwrite(key, b"{}")
    aside = resume(archive.store, archive.incarnation)
    assert (aside.head.sequence, aside.problems.total) == (-1, 0)
