"""Faults put into a real archive by hand: each is named, with the object or manifest and the offsets it is about."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from millrace.adapters.archive.summaries import put_summary, resume
from millrace.adapters.chain.documents import encode, sha256_of
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.proof.coverage import Verdict
from millrace.domain.archive.proof.tiling import Tiling
from millrace.embedded.stack import Stack
from millrace.ports.objects import ObjectStore
from millrace.settings import S3Settings, open_settings
from millrace.wiring import open_platform
from support.archive.chains import what_is_wrong
from support.archive.faults import FAULTS, Told
from support.archive.small_archive import OFFSETS, ROUNDS, Archive
from support.stack.faulty_proxy import plain_client


@lru_cache(maxsize=1)
def store_and_raw_client(settings: S3Settings, root: Path) -> tuple[ObjectStore, Any]:
    """Made once for all tests: a client takes longer to make than an archive."""
    return open_platform(open_settings(root)).objects.store(), plain_client(settings)


@pytest.fixture
def archive(s3: Stack) -> Archive:
    bucket = s3.settings().s3()
    store, raw = store_and_raw_client(bucket, s3.root)
    incarnation = Incarnation(f"t{uuid.uuid4().hex[:8]}", uuid.uuid4().hex[:22])
    return Archive(store, incarnation, bucket.bucket, raw).build()


@pytest.mark.parametrize("spoil", FAULTS)
def test_a_fault_is_named_with_its_object_and_offsets(archive: Archive, spoil: Callable[[Archive], Told]) -> None:
    told = spoil(archive)
    end = max(ROUNDS * OFFSETS, told.end)
    for deep in (False, True):
        found = archive.inspect(deep=deep, end=end)
        breaches = what_is_wrong(found.coverage)
        named = [str(stray) for stray in found.foreign.found] if told.stray else breaches
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
        assert (what_is_wrong(found.coverage), found.orphans.total, found.foreign.total) == ([], 0, 0)
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
    assert "manifest 4, but that manifest is missing: the chain was cut off" in str(cut_off.problems.found[0])


def test_a_summary_of_other_bytes_is_named_and_one_that_says_nothing_left_aside(archive: Archive) -> None:
    tiling = Tiling(archive.incarnation)
    for manifest in archive.read_manifests():
        tiling.add(manifest, sha256_of(encode(manifest)))
    key = put_summary(archive.store, tiling)
    last = archive.manifests[-1]
    archive.overwrite(archive.incarnation.manifest_key(last.sequence), encode(replace(last, epoch=2)))
    assert "that manifest has other bytes now" in str(resume(archive.store, archive.incarnation).problems.found[0])
    archive.overwrite(key, b"{}")
    aside = resume(archive.store, archive.incarnation)
    assert (aside.head.sequence, aside.problems.total) == (-1, 0)
