"""The chain's rules one by one: who may write, what a reader makes of what lies there, and what comes next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from millrace.adapters.archive.chain import ChainWriter, put_summary, read_on, resume
from millrace.adapters.archive.documents import decode, encode, sha256_of
from millrace.domain.archive.chain import Diverged, ReadRanges, Recreated, Writer, follow, next_ranges
from millrace.domain.archive.coverage import Verdict
from millrace.domain.archive.manifest import Kind, Manifest, ObjectEntry, PartitionSpan
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.partition import Cause, Label, Tile
from millrace.domain.archive.records import Digest
from millrace.domain.archive.summary import Summary
from millrace.domain.archive.tiling import ObservedLog, Tiling
from millrace.domain.position import LogBounds
from millrace.errors import CorruptArchiveError, FencedError, ObjectExistsError, RefusedError, UnreachableError
from millrace.ports import Creation, ObjectInfo
from support.fakes_objects import MemoryStore

HERE = Incarnation("shop.purchases", "C" * 22)
AT = datetime(2026, 11, 24, 12, tzinfo=UTC)


def log(*bounds: tuple[int, int], at: datetime = AT, retention_ms: int | None = None) -> ObservedLog:
    """The log of as many partitions."""
    return ObservedLog(at, HERE.topic_id, {n: LogBounds(*each) for n, each in enumerate(bounds)}, retention_ms)


GONE = ObservedLog(AT, None, {})


def entry(first: int, next_: int, partition: int = 0, holes: tuple[tuple[int, int], ...] = ()) -> ObjectEntry:
    """An object that nobody reads."""
    count = next_ - first - sum(end - begin for begin, end in holes)
    stamps = (0, 0) if count else (None, None)
    return ObjectEntry(
        partition, first, next_, count, holes, *stamps, size_bytes=9, sha256=sha256_of(b"x"), digest=Digest()
    )


def started(
    store: MemoryStore, epoch: int = 1, instance: str = "one", bounds: tuple[int, int] = (0, 10)
) -> ChainWriter:
    return ChainWriter.take_over(store, Tiling(HERE), Writer(epoch, instance), lambda: log(bounds))


def read(store: MemoryStore) -> Tiling:
    tiling = Tiling(HERE)
    read_on(store, tiling)
    return tiling


class Losing(MemoryStore):
    """Loses the answers of the creations whose numbers are named, or (negative) the requests."""

    def __init__(self, *numbers: int) -> None:
        super().__init__()
        self._numbers = numbers
        self._number = 0

    def create(self, key: str, data: bytes) -> Creation:
        self._number += 1
        if -self._number in self._numbers:
            raise UnreachableError("lost")
        done = super().create(key, data)
        if self._number in self._numbers:
            raise UnreachableError("lost")
        return done


# Who may write


def test_an_older_epoch_ends_at_its_next_manifest() -> None:
    store = MemoryStore()
    older = started(store, 1)
    newer = started(store, 2, "two")
    with pytest.raises(FencedError, match="epoch 2"):
        older.append(Kind.DATA, log((0, 10)), objects=[entry(0, 10)])
    newer.append(Kind.DATA, log((0, 10)), objects=[entry(0, 10)])
    found = read(store)
    assert (found.problems.total, found.head.epoch, found.head.sequence) == (0, 2, 2)


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

    newer = ChainWriter.take_over(store, Tiling(HERE), Writer(2, "two"), look)
    assert len(looks) == 2
    assert next_ranges(newer.tiling, log((0, 20))) == ReadRanges((PartitionSpan(0, 10, 20),))
    assert read(store).problems.total == 0


@pytest.mark.parametrize(("epoch", "instance"), [(2, "other"), (1, "one")])
def test_an_epoch_that_the_chain_has_already_does_not_begin(epoch: int, instance: str) -> None:
    store = MemoryStore()
    started(store, 2, "two")
    with pytest.raises(FencedError):
        started(store, epoch, instance)
    assert len(store.objects) == 1


def test_two_instances_of_one_epoch_never_write_the_same_bytes() -> None:
    """Both look at the same log at the same time; a store would take equal bytes for one's own."""
    one, two = (encode(follow(Tiling(HERE), Writer(1, name), Kind.TAKEOVER, log((0, 10)))) for name in ("one", "two"))
    assert one != two


def test_a_takeover_whose_answer_was_lost_is_known_again() -> None:
    store = Losing(1)
    with pytest.raises(UnreachableError):
        started(store)
    assert started(store).append(Kind.DATA, log((0, 10)), objects=[entry(0, 10)]).sequence == 1
    assert read(store).problems.total == 0


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
    with pytest.raises(CorruptArchiveError, match="last manifest says nothing"):
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
    with pytest.raises(CorruptArchiveError, match="has none of this number"):
        started(store)


def test_a_chain_is_read_to_its_head_by_a_store_whose_listings_leave_things_out() -> None:
    class Forgetful(MemoryStore):
        def list(self, prefix: str, *, after: str = "", page_size: int = 1000) -> Iterator[ObjectInfo]:
            return (info for info in super().list(prefix, after=after) if info.key[-6] in "13")

    store = Forgetful()
    writer = chain_of(store, 6)
    found = read(store)
    assert (found.head, found.problems.total) == (writer.tiling.head, 0)


# What a reader makes of what lies there


def chain_of(store: MemoryStore, manifests: int) -> ChainWriter:
    writer = started(store, bounds=(0, 0))
    for number in range(manifests):
        writer.append(Kind.DATA, log((0, number * 10 + 10)), objects=[entry(number * 10, number * 10 + 10)])
    return writer


def told(store: MemoryStore, end: int) -> list[str]:
    coverage = read(store).end(log((0, end)))
    assert coverage.verdict is Verdict.BROKEN
    return list(coverage.breaches())


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
    assert told(store, 20) == ["manifest 3: it says it is manifest 1"]


def test_a_second_instance_of_an_epoch_shows_in_the_chain() -> None:
    store = MemoryStore()
    writer = chain_of(store, 1)
    other = follow(writer.tiling, Writer(1, "other"), Kind.DATA, log((0, 20)), objects=[entry(10, 20)])
    store.objects[HERE.manifest_key(2)] = encode(other)
    assert told(store, 20) == ["manifest 2: another instance of epoch 1 wrote than the one that had taken over"]


@pytest.mark.parametrize(
    ("epoch", "what"), [(1, "epoch 1 wrote after epoch 2 had taken over"), (3, "epoch 3 after epoch 2")]
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
    assert told(store, 20) == ["manifest 2: it names another manifest than 1 as the one before it"]


def test_a_chain_that_was_cut_off_shows_by_its_summary() -> None:
    store = MemoryStore()
    writer = chain_of(store, 3)
    put_summary(store, writer.tiling)
    assert resume(store, HERE).head == writer.tiling.head
    del store.objects[HERE.manifest_key(3)]
    cut = resume(store, HERE)
    read_on(store, cut)
    assert "sums up the chain to manifest 3, which is missing" in next(iter(cut.end(log((0, 20))).breaches()))


def test_nothing_is_written_into_the_place_of_manifests_that_a_summary_knows_of() -> None:
    store = MemoryStore()
    put_summary(store, chain_of(store, 3).tiling)
    del store.objects[HERE.manifest_key(3)]
    with pytest.raises(CorruptArchiveError, match="a summary knows of 3"):
        ChainWriter.take_over(store, resume(store, HERE), Writer(2, "two"), lambda: log((0, 30)))
    assert HERE.manifest_key(3) not in store.objects


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


# What comes next


def test_what_is_gone_before_it_was_read_is_named_and_passed_over() -> None:
    writer = started(MemoryStore(), bounds=(0, 10))
    plan = next_ranges(writer.tiling, log((6, 10)))
    assert plan == ReadRanges((PartitionSpan(0, 6, 10),), (Tile(0, 0, 6, Label.LOST, Cause.UNREAD),))


def test_a_new_partition_is_read_from_offset_0_also_where_that_is_gone() -> None:
    writer = started(MemoryStore(), bounds=(5, 10))
    plan = next_ranges(writer.tiling, log((5, 10), (3, 8)))
    assert plan == ReadRanges(
        (PartitionSpan(0, 5, 10), PartitionSpan(1, 3, 8)), (Tile(1, 0, 3, Label.LOST, Cause.UNREAD),)
    )


@pytest.mark.parametrize("now", [GONE, replace(log((0, 3)), topic_id="D" * 22)])
def test_a_topic_that_was_deleted_loses_what_was_seen_of_it(now: ObservedLog) -> None:
    writer = started(MemoryStore(), bounds=(0, 10))
    writer.append(Kind.DATA, log((0, 12)), objects=[entry(0, 4)])
    assert next_ranges(writer.tiling, now) == Recreated((Tile(0, 4, 12, Label.LOST, Cause.RECREATED),))


def test_a_log_that_ends_below_the_archive_stops_it_until_somebody_knows() -> None:
    store = MemoryStore()
    writer = started(store)
    writer.append(Kind.DATA, log((0, 10)), objects=[entry(0, 10)])
    assert next_ranges(writer.tiling, log((0, 7))) == Diverged((Tile(0, 7, 10, Label.DIVERGED),))

    again = started(store, 2, "two", bounds=(0, 7))  # its takeover says so for good, whatever the log has by then
    assert next_ranges(again.tiling, log((0, 30))) == Diverged((Tile(0, 7, 10, Label.DIVERGED),))
    again.append(Kind.ACKNOWLEDGEMENT, log((0, 30)), acknowledged=[PartitionSpan(0, 7, 10)], by="me", reason="known")
    assert next_ranges(again.tiling, log((0, 30))) == ReadRanges((PartitionSpan(0, 10, 30),))
    coverage = again.tiling.end(log((0, 30)))
    assert coverage.verdict is Verdict.PENDING
    assert coverage.partitions[0].tiles == (Tile(0, 7, 10, Label.DIVERGED), Tile(0, 10, 30, Label.PENDING))


def test_an_acknowledgement_of_everything_excuses_nothing_that_comes_later() -> None:
    writer = started(MemoryStore(), bounds=(0, 10))
    wide = [PartitionSpan(0, 0, 10**15)]
    writer.append(Kind.ACKNOWLEDGEMENT, log((3, 10)), acknowledged=wide, by="me", reason="known")
    assert writer.tiling.end(log((3, 10))).verdict is Verdict.PENDING
    assert list(writer.tiling.end(log((5, 10))).breaches()) == [
        "partition 0 [3, 5) is lost: deleted before it was read"
    ]


def test_of_a_partition_without_a_leader_nothing_is_read_and_nothing_is_proven() -> None:
    writer = ChainWriter.take_over(MemoryStore(), Tiling(HERE), Writer(1, "one"), lambda: log((0, 10), (0, 10)))
    leaderless = replace(log((0, 20)), partitions=2)
    assert next_ranges(writer.tiling, leaderless) == ReadRanges((PartitionSpan(0, 0, 20),))
    writer.append(Kind.DATA, leaderless, objects=[entry(0, 20)])
    coverage = writer.tiling.end(leaderless)
    assert (coverage.verdict, coverage.unseen) == (Verdict.PENDING, (1,))


def test_a_partition_that_had_no_leader_at_first_has_not_come_later() -> None:
    store = MemoryStore()
    leaderless = replace(log((0, 10)), partitions=2)
    writer = ChainWriter.take_over(store, Tiling(HERE), Writer(1, "one"), lambda: leaderless)
    assert next_ranges(writer.tiling, log((0, 10), (500, 600))) == ReadRanges(
        (PartitionSpan(0, 0, 10), PartitionSpan(1, 500, 600))
    )


def test_nothing_begins_for_a_topic_that_is_not_there() -> None:
    store = MemoryStore()
    with pytest.raises(RefusedError, match="is not there"):
        ChainWriter.take_over(store, Tiling(HERE), Writer(1, "one"), lambda: GONE)
    assert not store.objects


def test_a_fenced_writer_stays_fenced() -> None:
    store = MemoryStore()
    older = started(store, 1)
    newer = started(store, 2, "two")
    for _ in range(3):
        with pytest.raises(RefusedError):
            older.append(Kind.DATA, log((0, 10)), objects=[entry(0, 10)])
    with pytest.raises(FencedError):
        for _ in range(2):  # even where it believes that all is settled
            older.settle()
            older.append(Kind.DATA, log((0, 10)), objects=[entry(0, 10)])
    newer.append(Kind.DATA, log((0, 10)), objects=[entry(0, 10)])
    assert (read(store).problems.total, len(store.objects)) == (0, 3)


def test_what_expired_has_diverged_too_where_the_log_ends_below_it() -> None:
    store = MemoryStore()
    writer = started(store)
    writer.append(Kind.DATA, log((0, 10)), objects=[entry(0, 10)])
    writer.append(Kind.EXPIRY, log((0, 10)), objects=[entry(0, 10)], by="keep", reason="old")
    assert next_ranges(writer.tiling, log((0, 6))) == Diverged((Tile(0, 6, 10, Label.DIVERGED),))
    again = started(store, 2, "two", bounds=(0, 6))
    assert next_ranges(again.tiling, log((0, 60))) == Diverged((Tile(0, 6, 10, Label.DIVERGED),))
    with pytest.raises(ValueError, match="loss in partitions"):
        put_summary(store, again.tiling)


def test_an_expiry_acknowledges_nothing() -> None:
    writer = started(MemoryStore())
    writer.append(Kind.DATA, log((0, 10)), objects=[entry(0, 10)])
    writer.append(Kind.EXPIRY, log((0, 6)), objects=[entry(0, 10)], by="keep", reason="old")
    assert isinstance(next_ranges(writer.tiling, log((0, 60))), Diverged)


def test_an_election_that_cuts_off_what_was_seen_and_not_read_is_told_until_somebody_knows() -> None:
    """The writer goes on: what it has archived is as the log is."""
    writer = started(MemoryStore(), bounds=(0, 20))
    writer.append(Kind.DATA, log((0, 20)), objects=[entry(0, 10)])
    assert next_ranges(writer.tiling, log((0, 15))) == ReadRanges((PartitionSpan(0, 10, 15),))
    writer.append(Kind.DATA, log((0, 15)), objects=[entry(10, 15)])
    writer.append(Kind.DATA, log((0, 30)), objects=[entry(15, 30)])
    assert list(writer.tiling.end(log((0, 30))).breaches()) == [
        "partition 0 [15, 20) is diverged: seen in the log, and cut off it by an unclean election before it was read"
    ]
    writer.append(Kind.ACKNOWLEDGEMENT, log((0, 30)), acknowledged=[PartitionSpan(0, 15, 20)], by="me", reason="known")
    assert writer.tiling.end(log((0, 30))).verdict is Verdict.PROVEN


def test_a_log_start_that_the_chain_has_seen_is_not_forgotten() -> None:
    """A new leader's log may begin lower than the former one's, from which was read."""
    store = MemoryStore()
    writer = started(store, bounds=(0, 50))
    writer.append(Kind.DATA, log((0, 50)), objects=[entry(0, 50)])
    again = started(store, 2, "two", bounds=(100, 150))
    again.append(Kind.DATA, log((50, 150)), objects=[entry(50, 150, holes=((50, 100),))])
    assert again.tiling.end(log((50, 150))).partitions[0].tiles == (Tile(0, 50, 100, Label.LOST, Cause.TRIMMED),)


def test_the_cause_of_a_gap_is_the_log_start_as_far_as_that_reaches() -> None:
    writer = started(MemoryStore(), bounds=(0, 30))
    writer.append(Kind.DATA, log((4, 30)), objects=[entry(10, 20)])
    assert writer.tiling.end(log((4, 20))).partitions[0].tiles[:2] == (
        Tile(0, 0, 4, Label.LOST, Cause.UNREAD),
        Tile(0, 4, 10, Label.LOST, Cause.UNEXPLAINED),
    )


@pytest.mark.parametrize("look", [replace(log((0, 0)), bounds={}), GONE])
def test_an_acknowledgement_while_nobody_could_look_excuses_nothing_that_comes_later(look: ObservedLog) -> None:
    """No leader for a moment, or a broker that does not know the topic yet."""
    writer = started(MemoryStore(), bounds=(0, 10))
    wide = [PartitionSpan(0, 0, 10**15)]
    writer.append(Kind.ACKNOWLEDGEMENT, look, acknowledged=wide, by="me", reason="known")
    later = log((10, 12))
    writer.append(Kind.DATA, later, objects=[entry(10, 12)])
    assert list(writer.tiling.end(later).breaches()) == ["partition 0 [0, 10) is lost: deleted before it was read"]


def test_of_a_topic_that_is_gone_what_was_not_read_can_be_acknowledged() -> None:
    writer = started(MemoryStore(), bounds=(0, 10))
    writer.append(Kind.ACKNOWLEDGEMENT, GONE, acknowledged=[PartitionSpan(0, 0, 10)], by="me", reason="known")
    assert writer.tiling.end(GONE).verdict is Verdict.PROVEN


def test_many_acknowledgements_are_taken_at_once() -> None:
    writer = started(MemoryStore(), bounds=(0, 10**6))
    for first in range(1, 40_000, 20):
        writer.append(Kind.DATA, log((first, 10**6)), objects=[entry(first, first + 10)])
    lost = [PartitionSpan(tile.partition, tile.first, tile.next) for tile in unknown_of(writer)]
    assert len(lost) == 2_000
    now = log((39_990, 10**6))
    writer.append(Kind.ACKNOWLEDGEMENT, now, acknowledged=lost, by="me", reason="known")
    assert not unknown_of(writer)


def unknown_of(writer: ChainWriter) -> tuple[Tile, ...]:
    return writer.tiling.end(log((writer.tiling.partitions[0].next, 10**6))).partitions[0].unacknowledged


@pytest.mark.parametrize(
    ("retention_ms", "later", "late"),
    [
        (None, timedelta(days=9), ()),
        (86_400_000, timedelta(hours=20), ()),
        (86_400_000, timedelta(days=2), ((10, 20),)),
    ],
)
def test_a_hole_that_is_read_late_may_hide_a_tombstone(
    retention_ms: int | None, later: timedelta, late: tuple[tuple[int, int], ...]
) -> None:
    """What lay beyond the end at the look before was written after it."""
    store = MemoryStore()
    seen = log((0, 10), retention_ms=retention_ms)
    writer = ChainWriter.take_over(
        store, Tiling(HERE), Writer(1, "one"), lambda: replace(seen, bounds={0: LogBounds(0, 0)})
    )
    writer.append(Kind.DATA, seen, objects=[entry(0, 10)])
    after = log((0, 20), at=AT + later, retention_ms=retention_ms)
    writer.append(Kind.DATA, after, objects=[entry(10, 20, holes=((12, 14),))])
    assert writer.tiling.end(after).partitions[0].late == late


DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("before_ms", "after_ms", "passed", "is_late"),
    [
        (DAY_MS, DAY_MS // 2, timedelta(hours=20), True),  # the shorter time counts
        (DAY_MS // 2, DAY_MS, timedelta(hours=20), True),
        (None, DAY_MS, timedelta(days=2), True),  # compacted at one of the looks
        (DAY_MS, None, timedelta(days=2), True),
        (DAY_MS, DAY_MS, timedelta(hours=-2), True),  # a clock went back: nobody knows
        (DAY_MS, DAY_MS, timedelta(hours=2), False),
        (2**63 - 1, 2**63 - 1, timedelta(days=9000), False),  # Kafka allows any number
        (0, 0, timedelta(seconds=1), True),
    ],
)
def test_what_is_late_follows_from_both_looks(
    before_ms: int | None, after_ms: int | None, passed: timedelta, is_late: bool
) -> None:
    store = MemoryStore()
    first = log((0, 10), retention_ms=before_ms)
    empty = replace(first, bounds={0: LogBounds(0, 0)})
    writer = ChainWriter.take_over(store, Tiling(HERE), Writer(1, "one"), lambda: empty)
    writer.append(Kind.DATA, first, objects=[entry(0, 10)])
    after = log((0, 20), at=AT + passed, retention_ms=after_ms)
    writer.append(Kind.DATA, after, objects=[entry(10, 20, holes=((12, 14),))])
    assert any(begin <= 12 < end for begin, end in writer.tiling.end(after).partitions[0].late) is is_late
    assert read(store).head == writer.tiling.head


def test_partitions_without_objects_are_looked_at_hourly() -> None:
    store = MemoryStore()
    writer = ChainWriter.take_over(store, Tiling(HERE), Writer(1, "one"), lambda: log((0, 10), (0, 0)))
    for minutes, seen in ((1, 1), (59, 1), (60, 2), (61, 1)):
        now = log((0, 100), (0, 0), at=AT + timedelta(minutes=minutes))
        begin = writer.tiling.partitions[0].next
        assert len(writer.append(Kind.DATA, now, objects=[entry(begin, begin + 1)]).seen) == seen
