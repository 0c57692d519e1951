"""The look at an archive while it is written to, and what it says of what lies there beside the chain's objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from millrace.adapters.archive.audits import inspection
from millrace.adapters.archive.audits.inspection import Inspection, inspect
from millrace.adapters.archive.chain import read_on
from millrace.adapters.archive.summaries import put_summary, resume
from millrace.adapters.archive.writer import ArchiveWriter
from millrace.domain.archive.manifest import Kind, ObjectEntry
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.proof.coverage import Verdict
from millrace.domain.archive.proof.tiling import ObservedLog, Tiling
from millrace.domain.chain.head import Writer
from millrace.domain.streams.position import LogBounds
from millrace.errors import UnreachableError
from millrace.ports.objects import ObjectInfo
from support.archive.chains import what_is_wrong
from support.archive.small_archive import OFFSETS, PARTITIONS, ROUNDS, Archive, records
from support.fakes.objects import MemoryStore

HERE = Incarnation("shop.purchases", "E" * 22)


def built(store: MemoryStore) -> Archive:
    return Archive(store, HERE, "", None).build()


def following(archive: Archive) -> ArchiveWriter:
    """A writer that takes the archive's chain over."""
    tiling = Tiling(HERE)
    read_on(archive.store, tiling)
    return ArchiveWriter.take_over(archive.store, tiling, Writer(2, "two"), archive.log)


def said(found: Inspection) -> tuple[Verdict, list[str], list[str]]:
    return (
        found.coverage.verdict,
        what_is_wrong(found.coverage),
        [str(stray) for strays in (found.orphans, found.foreign) for stray in strays.found],
    )


FINE = (Verdict.PROVEN, [], [])


def expire(archive: Archive, entries: list[ObjectEntry], *, delete: bool) -> None:
    following(archive).append(Kind.EXPIRY, archive.log(), objects=entries, by="keep", reason="older than 10 years")
    if delete:
        archive.store.delete([HERE.object_key(entry.name) for entry in entries])


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("delete", [False, True])
def test_what_expired_may_be_there_or_not(deep: bool, delete: bool) -> None:
    archive = built(MemoryStore())
    expire(archive, [archive.entry(0, 0), archive.entry(1, 0), archive.entry(0, 1)], delete=delete)
    found = archive.inspect(deep=deep)
    assert said(found) == FINE
    assert [part.records for part in found.coverage.partitions] == [18, 27]


def test_what_is_gone_is_told_from_what_expired_however_much_that_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are kept of a few objects only; of the others their ranges are told."""
    monkeypatch.setattr(inspection, "_NAMED", 4)  # an object with its hole counts twice
    monkeypatch.setattr(inspection, "_TOLD", 3)  # two of which will have expired
    archive = built(MemoryStore())
    expire(archive, [archive.entry(0, 0), archive.entry(1, 0)], delete=True)
    archive.store.delete([archive.key(round_, 1) for round_ in range(3)])
    verdict, breaches, _ = said(archive.inspect(deep=False))
    assert verdict is Verdict.BROKEN
    assert breaches == [
        f"manifest 1: {archive.key(0, 1)}: the object is gone [0, 10) of partition 1",
        "objects are gone, or not what they should be [10, 30) of partition 1",
    ]


class Growing(MemoryStore):
    """A manifest and its objects come after the objects were listed."""

    archive: Archive
    grown = False

    def list(self, prefix: str, *, after: str = "", page_size: int = 1000) -> Iterator[ObjectInfo]:
        page = list(super().list(prefix, after=after))
        if prefix == HERE.partition(1) and not self.grown:
            self.grown = True
            last = ROUNDS * OFFSETS
            objects = [self.archive.put(records(p, last), p, last) for p in range(PARTITIONS)]
            following(self.archive).append(Kind.DATA, self.archive.log(last + OFFSETS), objects=objects)
        yield from page


@pytest.mark.parametrize("deep", [False, True])
def test_what_comes_during_the_look_is_looked_at_too(deep: bool) -> None:
    store = Growing()
    store.archive = built(store)
    found = store.archive.inspect(deep=deep, end=(ROUNDS + 1) * OFFSETS)
    assert store.grown
    assert said(found) == FINE
    assert (found.counts.objects, found.counts.checked) == (10, 10 if deep else 0)


def test_what_no_manifest_names_is_told_from_what_is_on_its_way() -> None:
    archive = built(MemoryStore())
    left_behind = archive.written(records(0, 5)[:4], 0, 5, 9)
    ahead = archive.written(records(0, 40), 0, 40)
    misnamed = archive.written(records(1, 10), 1, 10)
    objects = archive.store.objects  # type: ignore[attr-defined]
    objects[HERE.object_key(left_behind.entry.name)] = left_behind.data
    objects[HERE.object_key(ahead.entry.name)] = ahead.data
    other_key = HERE.object_key(misnamed.entry.name).replace(misnamed.entry.sha256, "0" * 64)
    objects[other_key] = misnamed.data
    objects[f"{HERE.prefix}1/notes.txt"] = objects[f"{HERE.prefix}tmp/x"] = b"hello"
    found = archive.inspect(deep=True)
    assert said(found) == (
        Verdict.PROVEN,
        [],
        [
            f"{HERE.object_key(left_behind.entry.name)}: no manifest names it: a writer that died may have left it"
            " [5, 9) of partition 0",
            f"{other_key}: no manifest names it, and its bytes are not what its name says [10, 20) of partition 1",
            f"{HERE.prefix}tmp/x: the object does not belong to the archive, but lies in its folder",
            f"{HERE.prefix}1/notes.txt: the object does not belong to the archive, but lies in its folder",
        ],
    )
    assert found.counts.ahead == 1
    assert said(archive.inspect(deep=False))[0] is Verdict.PROVEN


def test_a_look_from_a_summary_looks_for_later_objects_alone() -> None:
    archive = built(MemoryStore())
    tiling = Tiling(HERE)
    read_on(archive.store, tiling)
    put_summary(archive.store, tiling)
    last = ROUNDS * OFFSETS
    chain = following(archive)
    chain.append(Kind.DATA, archive.log(last + OFFSETS), objects=[archive.put(records(0, last), 0, last)])
    archive.store.delete([archive.key(0, 0), HERE.object_key(archive.put(records(0, last), 0, last).name)])
    found = inspect(archive.store, resume(archive.store, HERE), lambda: archive.log(last + OFFSETS))
    assert found.counts.objects == 1
    verdict, breaches, _ = said(found)
    assert verdict is Verdict.BROKEN
    assert len(breaches) == 1
    assert "the object is gone [40, 50) of partition 0" in breaches[0]


class Meanwhile(MemoryStore):
    """Something happens right after the first answer about a key that is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.when: tuple[str, str] = ("", "")
        self.then: Callable[[], None] = lambda: None

    def head(self, key: str) -> ObjectInfo | None:
        found = super().head(key)
        self._happen("head", key)
        return found

    def get(self, key: str) -> bytes | None:
        self._happen("get", key)  # while the request waits in a queue
        return super().get(key)

    def _happen(self, call: str, key: str) -> None:
        if self.when == (call, key):
            self.when = ("", "")
            self.then()


@pytest.mark.parametrize("expires", [True, False])
@pytest.mark.parametrize("call", ["head", "get"])
def test_what_vanishes_under_the_look_has_expired_or_is_gone(call: str, expires: bool) -> None:
    """By a collector that follows an expiry it is fine, otherwise it is told, and never passed over."""
    store = Meanwhile()
    archive = built(store)
    entry = archive.entry(3, 1)
    key = HERE.object_key(entry.name)

    def vanish() -> None:
        if expires:
            expire(archive, [entry], delete=False)
        store.delete([key])

    store.when, store.then = (call, key), vanish
    if call == "head":  # only what a listing left out is asked for by itself
        listed = store.list
        store.list = lambda prefix, **more: (i for i in listed(prefix, **more) if i.key != key)  # type: ignore[method-assign]
    found = archive.inspect(deep=True)
    assert store.when == ("", "")
    verdict, breaches, _ = said(found)
    assert verdict is (Verdict.PROVEN if expires else Verdict.BROKEN)
    assert breaches == ([] if expires else [f"manifest 4: {key}: the object is gone [30, 40) of partition 1"])


def test_a_damaged_object_that_has_expired_is_nobodys_fault() -> None:
    archive = built(MemoryStore())
    archive.store.objects[archive.key(0, 0)] = b"x"  # type: ignore[attr-defined]
    expire(archive, [archive.entry(0, 0)], delete=False)
    for deep in (False, True):
        assert said(archive.inspect(deep=deep)) == FINE


def test_what_is_archived_and_then_deleted_before_the_log_is_looked_at_is_not_lost() -> None:
    archive = built(MemoryStore())
    last = ROUNDS * OFFSETS
    looks: list[ObservedLog] = []

    def look() -> ObservedLog:
        if not looks:
            objects = [archive.put(records(p, last), p, last) for p in range(PARTITIONS)]
            following(archive).append(Kind.DATA, archive.log(last + OFFSETS), objects=objects)
        trimmed = dict.fromkeys(range(PARTITIONS), LogBounds(last + OFFSETS, last + OFFSETS))
        looks.append(replace(archive.log(), bounds=trimmed))
        return looks[-1]

    found = inspect(archive.store, Tiling(HERE), look)
    assert said(found) == FINE
    assert len(looks) == 2


def test_a_stores_own_file_that_a_listing_shows_is_no_stray() -> None:
    """s3proxy over a folder lists the file that it is just writing."""
    store = MemoryStore()
    archive = built(store)
    listed = store.list

    def with_another(prefix: str, **more: object) -> Iterator[ObjectInfo]:
        yield from listed(prefix, **more)  # type: ignore[arg-type]
        yield ObjectInfo(f"{prefix}~tmp-1", 7)

    store.list = with_another  # type: ignore[method-assign,assignment]
    assert said(archive.inspect(deep=True)) == FINE


def test_a_partition_without_a_leader_is_not_proven() -> None:
    archive = built(MemoryStore())
    log = replace(archive.log(), bounds={0: LogBounds(0, ROUNDS * OFFSETS)}, partitions=PARTITIONS)
    coverage = inspect(archive.store, Tiling(HERE), lambda: log).coverage
    assert (coverage.verdict, coverage.unseen) == (Verdict.PENDING, (1,))


@pytest.mark.parametrize("named", [0, 100_000])
def test_what_a_listing_leaves_out_is_looked_at_as_closely(monkeypatch: pytest.MonkeyPatch, named: int) -> None:
    monkeypatch.setattr(inspection, "_NAMED", named)
    archive = built(MemoryStore())
    key = archive.key(1, 0)
    archive.store.objects[key] = b"x" * archive.entry(1, 0).size_bytes  # type: ignore[attr-defined]
    listed = archive.store.list
    archive.store.list = lambda prefix, **more: (i for i in listed(prefix, **more) if i.key != key)  # type: ignore[method-assign]
    found = archive.inspect(deep=True)
    assert found.counts.checked == 8
    assert all(key in line for line in what_is_wrong(found.coverage))
    assert found.coverage.verdict is Verdict.BROKEN


@pytest.mark.parametrize("named", [0, 100_000])
def test_an_object_of_the_same_offsets_is_not_the_object(monkeypatch: pytest.MonkeyPatch, named: int) -> None:
    monkeypatch.setattr(inspection, "_NAMED", named)
    archive = built(MemoryStore())
    archive.put(records(0, 10)[:-2], 0, 10)  # by a writer that died
    archive.store.delete([archive.key(1, 0)])
    verdict, breaches, strays = said(archive.inspect(deep=False))
    assert verdict is Verdict.BROKEN
    assert breaches == [f"manifest 2: {archive.key(1, 0)}: the object is gone [10, 20) of partition 0"]
    assert len(strays) == 1


def test_many_faults_of_what_expires_later_are_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "_TOLD", 1)
    monkeypatch.setattr(inspection, "_NAMED", 0)
    archive = built(MemoryStore())
    gone = [archive.entry(round_, 0) for round_ in range(3)]
    expire(archive, gone, delete=True)
    assert said(archive.inspect(deep=True)) == FINE


def test_a_chain_that_grows_at_each_look_gives_no_verdict() -> None:
    archive = built(MemoryStore())
    chain = following(archive)

    def look() -> ObservedLog:
        chain.append(Kind.LOOK, archive.log())
        return archive.log()

    with pytest.raises(UnreachableError, match="no verdict"):
        inspect(archive.store, Tiling(HERE), look)


def test_a_chain_that_was_cut_off_shows_in_a_look_from_its_beginning() -> None:
    archive = built(MemoryStore())
    tiling = Tiling(HERE)
    read_on(archive.store, tiling)
    put_summary(archive.store, tiling)
    archive.store.delete([HERE.manifest_key(tiling.head.sequence)])
    verdict, breaches, _ = said(archive.inspect(deep=False))
    assert verdict is Verdict.BROKEN
    assert breaches[0] == "manifest 3: the chain ends here, but a summary names manifest 4"
