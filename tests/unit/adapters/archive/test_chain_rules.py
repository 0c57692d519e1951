"""The chain's rules one by one: who may write, and what a reader makes of what lies there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from millrace.adapters.archive.audits.inspection import inspect
from millrace.adapters.archive.chain import read_on
from millrace.adapters.archive.summaries import put_summary, resume
from millrace.adapters.archive.writer import ArchiveWriter
from millrace.adapters.chain.documents import decode, encode
from millrace.domain.archive.chain import ReadRanges, follow, next_ranges
from millrace.domain.archive.manifest import Kind, Manifest, ObjectEntry, PartitionSpan
from millrace.domain.archive.proof.coverage import Verdict
from millrace.domain.archive.proof.summary import Summary
from millrace.domain.archive.proof.tiling import ObservedLog, Tiling
from millrace.domain.chain.head import Writer
from millrace.errors import CorruptArchiveError, ObjectExistsError, RefusedError, UnreachableError
from millrace.ports.objects import ObjectInfo
from support.archive.chains import GONE, HERE, Losing, chain_of, entry, log, read, started, what_is_wrong
from support.fakes.objects import MemoryStore

# Who may write: beside these, tests/unit/adapters/chain/test_writer.py holds this chain to the rules of all chains


def test_what_an_older_epoch_wrote_before_the_takeover_is_followed() -> None:
    """It takes the place that the newer one wanted, which reads on and looks at the log anew."""
    store = MemoryStore()
    older = started(store, 1)
    looks: list[ObservedLog] = []

    def look() -> ObservedLog:
        if not looks:  # while the newer one looks, the older one writes
            older.append(Kind.DATA, log((0, 10)), objects=[entry(0, 10)])
        looks.append(log((0, 20)))
        return looks[-1]

    newer = ArchiveWriter.take_over(store, Tiling(HERE), Writer(2, "two"), look)
    assert len(looks) == 2
    assert next_ranges(newer.tiling, log((0, 20))) == ReadRanges((PartitionSpan(0, 10, 20),))
    assert read(store).problems.total == 0


def test_two_instances_of_one_epoch_never_write_the_same_bytes() -> None:
    """Both look at the same log at the same time; a store would take equal bytes for one's own."""
    one, two = (encode(follow(Tiling(HERE), Writer(1, name), Kind.TAKEOVER, log((0, 10)))) for name in ("one", "two"))
    assert one != two


@pytest.mark.parametrize(("lost", "written"), [(2, True), (-2, False)])
def test_a_manifest_whose_answer_was_lost_is_settled_before_the_next(lost: int, written: bool) -> None:
    store = Losing(lost)
    writer = started(store)
    with pytest.raises(UnreachableError):
        writer.append(Kind.DATA, log((0, 10)), objects=[entry(0, 10)])
    with pytest.raises(RefusedError):
        writer.append(Kind.DATA, log((0, 10)), objects=[entry(0, 10)])
    assert writer.settle() is written
    plan = next_ranges(writer.tiling, log((0, 10)))
    assert plan == ReadRanges(() if written else (PartitionSpan(0, 0, 10),))


def test_a_request_that_comes_through_after_it_was_given_up_is_ones_own() -> None:
    store = Losing(-2)
    writer = started(store)
    late = encode(follow(writer.tiling, Writer(1, "one"), Kind.DATA, log((0, 7)), objects=[entry(0, 7)]))
    with pytest.raises(UnreachableError):
        writer.append(Kind.DATA, log((0, 7)), objects=[entry(0, 7)])
    assert writer.settle() is False
    store.objects[HERE.manifest_key(1)] = late
    with pytest.raises(ObjectExistsError):
        writer.append(Kind.DATA, log((0, 10)), objects=[entry(0, 10)])
    assert next_ranges(writer.tiling, log((0, 10))) == ReadRanges((PartitionSpan(0, 7, 10),))
    writer.append(Kind.DATA, log((0, 10)), objects=[entry(7, 10)])
    assert read(store).problems.total == 0


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: b"{}",
        lambda data: data.replace(b'"version":1', b'"version":2'),
        lambda data: data.replace(b'"sequence":1', b'"sequence":7'),
        lambda data: data.replace(b"CCCC", b"DDDD"),
    ],
)
def test_nothing_is_written_behind_a_head_that_says_nothing(spoil: Callable[[bytes], bytes]) -> None:
    store = MemoryStore()
    writer = started(store)
    writer.append(Kind.DATA, log((0, 10)), objects=[entry(0, 10)])
    key = HERE.manifest_key(1)
    store.objects[key] = spoil(store.objects[key])
    with pytest.raises(CorruptArchiveError, match="no manifest can follow the chain's last manifest, 1"):
        started(store, 2, "two")
    assert len(store.objects) == 2


def test_a_store_that_refuses_and_shows_nothing_is_not_asked_for_ever() -> None:
    class Blind(MemoryStore):
        def get(self, key: str) -> bytes | None:
            return None

        def list(self, prefix: str, *, after: str = "", page_size: int = 1000) -> Iterator[ObjectInfo]:
            return iter(())

    store = Blind()
    store.objects[HERE.manifest_key(0)] = b"{}"
    with pytest.raises(CorruptArchiveError, match="has no manifest of this number"):
        started(store)


def test_a_chain_is_read_to_its_head_by_a_store_whose_listings_leave_things_out() -> None:
    class Forgetful(MemoryStore):
        def list(self, prefix: str, *, after: str = "", page_size: int = 1000) -> Iterator[ObjectInfo]:
            return (info for info in super().list(prefix, after=after) if info.key[-6] in "13")

    store = Forgetful()
    writer = chain_of(store, 6)
    found = read(store)
    assert (found.head, found.problems.total) == (writer.tiling.head, 0)


def test_nothing_begins_for_a_topic_that_is_not_there() -> None:
    store = MemoryStore()
    with pytest.raises(RefusedError, match="does not exist in Kafka"):
        ArchiveWriter.take_over(store, Tiling(HERE), Writer(1, "one"), lambda: GONE)
    assert not store.objects


def test_a_settling_that_was_cut_short_does_not_forget_that_the_chain_has_grown() -> None:
    class CutShort(Losing):
        left = 0

        def get(self, key: str) -> bytes | None:
            if self.left and key == HERE.manifest_key(2):
                self.left -= 1
                raise UnreachableError("lost")
            return super().get(key)

    store = CutShort(2)
    writer = started(store)
    with pytest.raises(UnreachableError):
        writer.append(Kind.DATA, log((0, 10)), objects=[entry(0, 10)])
    store.left = 1
    with pytest.raises(UnreachableError):
        writer.settle()
    assert writer.settle() is True
    assert next_ranges(writer.tiling, log((0, 10))) == ReadRanges(())


@pytest.mark.parametrize(
    ("kind", "objects", "now", "why"),
    [
        (Kind.DATA, [entry(5, 15)], log((0, 20)), "overlaps with what is archived to 10"),
        (Kind.DATA, [entry(10, 20)], log((0, 15)), "reaches beyond the log"),
        (Kind.EXPIRY, [entry(5, 15)], log((0, 20)), "nothing there to expire"),
        (Kind.EXPIRY, [entry(0, 10, partition=1)], log((0, 20), (0, 20)), "nothing there to expire"),
    ],
)
def test_what_would_be_wrong_for_ever_is_not_written(
    kind: Kind, objects: list[ObjectEntry], now: ObservedLog, why: str
) -> None:
    store = MemoryStore()
    writer = chain_of(store, 1)
    by = {"by": "keep", "reason": "old"} if kind is Kind.EXPIRY else {}
    with pytest.raises(ValueError, match=why):
        writer.append(kind, now, objects=objects, **by)
    assert len(store.objects) == 2


# What a reader makes of what lies there


def told(store: MemoryStore, end: int) -> list[str]:
    coverage = read(store).end(log((0, end)))
    assert coverage.verdict is Verdict.BROKEN
    return what_is_wrong(coverage)


def test_missing_manifests_are_named_and_what_they_brought_is_not_archived() -> None:
    store = MemoryStore()
    chain_of(store, 6)
    for sequence in (2, 3, 5):
        del store.objects[HERE.manifest_key(sequence)]
    assert told(store, 60) == [
        "manifest 2: it is missing",
        "manifest 3: it is missing",
        "manifest 5: it is missing",
        "partition 0 [10, 30) is lost: left out, and nothing in the chain says why",
        "partition 0 [40, 50) is lost: left out, and nothing in the chain says why",
    ]


def test_a_sequence_far_away_is_not_counted_up_to() -> None:
    store = MemoryStore()
    chain_of(store, 1)
    store.objects[HERE.manifest_key(10**18)] = b"{}"
    lines = told(store, 10)
    assert f"manifest {10**18 - 1}: manifests 102 to {10**18 - 1} are missing" in lines
    assert len(lines) == 102


def test_a_manifest_under_another_number_is_named_and_a_stranger_passed_over() -> None:
    store = MemoryStore()
    chain_of(store, 2)
    store.objects[HERE.manifest_key(3)] = store.objects[HERE.manifest_key(1)]
    store.objects[f"{HERE.manifests}notes.txt"] = b"hello"
    assert told(store, 20) == ["manifest 3: its content is manifest 1"]


def test_a_second_instance_of_an_epoch_shows_in_the_chain() -> None:
    store = MemoryStore()
    writer = chain_of(store, 1)
    other = follow(writer.tiling, Writer(1, "other"), Kind.DATA, log((0, 20)), objects=[entry(10, 20)])
    store.objects[HERE.manifest_key(2)] = encode(other)
    assert told(store, 20) == ["manifest 2: an instance of epoch 1 wrote after another instance took over"]


@pytest.mark.parametrize(
    ("epoch", "what"), [(1, "epoch 1 wrote after epoch 2 took over"), (3, "epoch 3 after epoch 2")]
)
def test_an_epoch_that_writes_out_of_turn_shows_in_the_chain(epoch: int, what: str) -> None:
    store = MemoryStore()
    started(store, 1)
    writer = started(store, 2, "two")
    late = follow(writer.tiling, Writer(epoch, "x"), Kind.DATA, log((0, 10)), objects=[entry(0, 10)])
    store.objects[HERE.manifest_key(2)] = encode(late)
    assert what in told(store, 10)[0]


def test_a_manifest_that_was_changed_is_named_by_the_one_after_it() -> None:
    store = MemoryStore()
    chain_of(store, 2)
    key = HERE.manifest_key(1)
    store.objects[key] = encode(replace(decode(store.objects[key], Manifest, key), reason="because"))
    assert told(store, 20) == ["manifest 2: it does not name manifest 1 as its predecessor"]


def test_a_chain_that_was_cut_off_shows_by_its_summary() -> None:
    store = MemoryStore()
    writer = chain_of(store, 3)
    put_summary(store, writer.tiling)
    assert resume(store, HERE).head == writer.tiling.head
    del store.objects[HERE.manifest_key(3)]
    cut = resume(store, HERE)
    read_on(store, cut)
    assert "covers the chain up to manifest 3, but that manifest is missing" in what_is_wrong(cut.end(log((0, 20))))[0]


@pytest.mark.parametrize(("old", "new"), [(b'"next":30', b'"next":90'), (b'"known":1', b'"known":2'), (b"\n", b"")])
def test_a_summary_that_was_changed_is_left_aside(old: bytes, new: bytes) -> None:
    store = MemoryStore()
    key = put_summary(store, chain_of(store, 3).tiling)
    assert resume(store, HERE).head.sequence == 3
    store.objects[key] = store.objects[key].replace(old, new)
    assert resume(store, HERE).head.sequence == -1


def test_a_chain_in_which_somebody_does_not_know_what_is_lost_is_not_summed_up() -> None:
    store = MemoryStore()
    writer = started(store, bounds=(0, 10))
    writer.append(Kind.DATA, log((4, 10)), objects=[entry(4, 10)])
    with pytest.raises(ValueError, match=r"loss in partitions \[0\]"):
        put_summary(store, writer.tiling)
    writer.append(Kind.ACKNOWLEDGEMENT, log((4, 10)), acknowledged=[PartitionSpan(0, 0, 4)], by="me", reason="known")
    key = put_summary(store, writer.tiling)
    assert decode(store.objects[key], Summary, key).tiling().end(log((4, 10))).verdict is Verdict.PROVEN


def test_a_manifest_that_a_listing_shows_and_nobody_can_get_is_not_there() -> None:
    class Ghostly(MemoryStore):
        def list(self, prefix: str, *, after: str = "", page_size: int = 1000) -> Iterator[ObjectInfo]:
            yield from super().list(prefix, after=after)
            if prefix == HERE.manifests:
                yield ObjectInfo(HERE.manifest_key(3), 1)

    store = Ghostly()
    chain_of(store, 2)
    found = read(store)
    assert (found.head.sequence, found.problems.total) == (2, 0)


class Growing(MemoryStore):
    """After a number of answers that there is no next manifest, one is written, and summed up."""

    after = 0

    def get(self, key: str) -> bytes | None:
        found = super().get(key)
        if self.after and key == HERE.manifest_key(3):
            self.after -= 1
            if not self.after:
                writer = chain_of(there := MemoryStore(), 3)
                self.objects[HERE.manifest_key(3)] = there.get(HERE.manifest_key(3))  # type: ignore[assignment]
                put_summary(self, writer.tiling)
        return found


def test_a_summary_of_what_came_while_the_chain_was_read_promises_nothing() -> None:
    store = Growing()
    chain_of(store, 2)
    store.after = 1
    writer = ArchiveWriter.take_over(store, Tiling(HERE), Writer(2, "two"), lambda: log((0, 30)))
    assert writer.tiling.head.sequence == 4
    assert store.after == 0


def test_a_look_is_not_misled_by_a_summary_of_what_came_after_it() -> None:
    store = Growing()
    chain_of(store, 2)
    store.after = 2  # the chain is read before and after the log is looked at
    problems = [str(each) for each in inspect(store, Tiling(HERE), lambda: log((0, 30))).coverage.problems.found]
    assert store.after == 0
    assert not [each for each in problems if "the object is gone" not in each]
