"""A backup with a store that fails, other epochs at the same time, and a topic that is never left alone."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from functools import partial

import pytest

from millrace.adapters.s3.store import S3Store
from millrace.domain.archive.manifest import Kind
from millrace.domain.archive.proof.partition import Cause, Label
from millrace.domain.archive.proof.tiling import LogsSeen
from millrace.domain.groups.commits import Committed
from millrace.domain.topics.offsets import TopicPartition
from millrace.embedded.stack import Stack
from millrace.errors import FencedError, MillraceError
from millrace.runtime.backup.tee import Tee
from support.archive.tees import TeeWorld, Topics
from support.drills.backup import Busy, consumed, manifests, out_of_order, takeovers, wrong_with
from support.stack.faulty_proxy import Fault, FaultyProxy
from support.topics.plain_consumer import PlainTopic
from support.waiting import Deadline, at_once, eventually, in_background, result_of

MOST_ROUNDS, MOST_ROUNDS_BESIDE_OTHERS = 2_000, 50_000
EPOCHS_AT_ONCE = 8
BEGAN_MS, HOUR_MS = 1_700_000_000_000, 3_600_000
THROTTLED, FAILED = (503, "SlowDown"), (500, "InternalError")
SURE = (THROTTLED, FAILED, Fault.RESET, Fault.LOST)  # a write's answer has no body that could break
BREAKS = (THROTTLED, FAILED, Fault.RESET, Fault.RESET_IN_BODY, Fault.NO_BODY, Fault.LOST)


@pytest.fixture
def topics(kafka: Stack, s3: Stack) -> Topics:
    return Topics(kafka)


def world_of(topics: Topics, *names: str) -> TeeWorld:
    return TeeWorld(topics, names, topics.platform.objects.store())


def two_topics(topics: Topics, *, partitions: int) -> TeeWorld:
    return world_of(topics, topics.make(partitions=partitions), topics.make("other", partitions=partitions))


def must_be_whole(world: TeeWorld) -> None:
    """Assert that each archive is right, and that no epoch wrote behind a newer one."""
    for name in world.names:
        assert out_of_order(manifests(world, name)) == []
        assert wrong_with(world, name) == []


def as_the_driver(tee: Tee) -> list[MillraceError]:
    """Rounds until nothing waits, each called again where it failed; what they failed by.

    Raises:
        FencedError: this epoch's time is over.
    """
    failures: list[MillraceError] = []
    for _ in range(MOST_ROUNDS):
        try:
            if tee.round().waiting == 0:
                return failures
        except FencedError:
            raise
        except MillraceError as error:
            failures.append(error)
    raise AssertionError(f"not archived after {MOST_ROUNDS} rounds; they failed by {failures[-3:]}")


# The store fails


@pytest.mark.full  # half a minute
def test_a_store_that_fails_at_any_request_of_a_round_loses_and_doubles_nothing(
    topics: Topics, proxy: FaultyProxy
) -> None:
    world = two_topics(topics, partitions=1)
    names = world.names
    through_proxy = S3Store(proxy.settings, attempts=1)  # nobody but the tee tries again
    tee = world.next_epoch(store=through_proxy)
    as_the_driver(tee)
    # Of one round: an object and a manifest of each topic.
    writes = [("PutObject", fault, spared) for fault in BREAKS for spared in range(4)]
    reads = [(operation, fault, 0) for operation in ("GetObject", "ListObjectsV2", "HeadObject") for fault in BREAKS]
    dice, numbers = random.Random(18), itertools.count()
    for operation, fault, spared in [*writes, *reads]:
        for name in names:
            topics.produce(name, 0, [b"%d" % next(numbers), None], key=b"k")
        if operation != "PutObject":
            tee = world.next_epoch(store=through_proxy)  # it reads the chain, and looks for the bytes of what was lost
            proxy.plan(Fault.LOST, "PutObject", spared=len(names) + dice.randrange(len(names)))
        _plan(proxy, fault, operation, spared)
        failures = as_the_driver(tee)
        assert failures or fault not in SURE
        assert not any(planned.left for planned in proxy.planned), f"{fault} did not happen to {operation}"
        proxy.planned.clear()
    must_be_whole(world)
    for fault, operation in itertools.product(BREAKS, ("PutObject", "GetObject", "ListObjectsV2", "HeadObject")):
        assert proxy.happened(fault if isinstance(fault, Fault) else Fault.ANSWERED, operation)


def _plan(proxy: FaultyProxy, fault: Fault | tuple[int, str], operation: str, spared: int) -> None:
    if isinstance(fault, Fault):
        proxy.plan(fault, operation, spared=spared)
    else:
        proxy.answer(operation, *fault, spared=spared)


# Others write


def until_fenced_or(tee: Tee, over: threading.Event) -> bool:
    """Rounds, as the driver has them, until another epoch ends this one; False where `over` was set before.

    Who waits for it has a deadline: rounds that find nothing are quick, and a busy machine makes many of them.
    """
    for _ in range(MOST_ROUNDS_BESIDE_OTHERS):
        if over.is_set():
            return False
        try:
            tee.round()
        except FencedError:
            return True
    raise AssertionError(f"{MOST_ROUNDS_BESIDE_OTHERS} rounds, and neither fenced nor over")


def test_of_two_epochs_at_once_the_older_one_ends_and_leaves_no_manifest(topics: Topics) -> None:
    world, over = two_topics(topics, partitions=2), threading.Event()

    def begin() -> Future[bool]:
        return in_background(partial(until_fenced_or, world.next_epoch(), over))

    with Busy(topics, world.names, 2, most=20_000, pause_seconds=0.02):
        running = begin()
        for epoch in range(1, 5):
            _until_written(world, epoch, 3)
            old, running = running, begin()
            assert result_of(old, within=Deadline.STREAM, what=f"epoch {epoch} to be fenced") is True
        _until_written(world, 5, 3)
        over.set()
        assert result_of(running, within=Deadline.STREAM, what="the newest epoch to end") is False
    world.archive_all(world.next_epoch())
    assert [takeovers(manifests(world, name)) for name in world.names] == [[1, 2, 3, 4, 5, 6]] * 2
    must_be_whole(world)


def _until_written(world: TeeWorld, epoch: int, count: int) -> None:
    """Wait until an epoch has brought so many manifests of each topic."""

    def written() -> bool:
        own = [[m for m in manifests(world, name) if (m.epoch, m.kind) == (epoch, Kind.DATA)] for name in world.names]
        return all(len(found) >= count for found in own)

    eventually(written, within=Deadline.STREAM, what=f"{count} manifests of epoch {epoch}")


def archived_by_an_epoch(topics: Topics) -> tuple[TeeWorld, Callable[[bytes], None]]:
    """Return a topic whose only record an epoch has archived, and a call by which that epoch archives one more."""
    world = world_of(topics, topics.make(partitions=1))
    old = world.next_epoch()

    def archive(value: bytes) -> None:
        topics.produce(world.names[0], 0, [value])
        world.archive_all(old)

    archive(b"a")
    return world, archive


def must_go_on(world: TeeWorld, tee: Tee) -> None:
    """Assert that the tee has halted no topic and reported no breach, and that its archive is whole."""
    assert tee.halted == {}
    assert not any(world.breaches.values())
    must_be_whole(world)


def test_what_an_older_epoch_archives_while_it_is_taken_over_is_not_diverged(topics: Topics) -> None:
    world, archive_by_the_older = archived_by_an_epoch(topics)
    looks = itertools.count()

    def slow_look(names: Collection[str]) -> LogsSeen:
        seen = world.look(names)
        if next(looks) == 0:  # the newer epoch has looked, and has not read the chain yet
            archive_by_the_older(b"b")
            topics.produce(world.names[0], 0, [b"c"])
        return seen

    new = world.next_epoch(look=slow_look)
    world.archive_all(new)
    must_go_on(world, new)


@pytest.mark.parametrize("is_answered", [False, True], ids=["before the answer", "behind the answer"])
def test_what_an_older_epoch_commits_while_the_commits_are_read_halts_nothing(
    topics: Topics, is_answered: bool
) -> None:
    world, archive_by_the_older = archived_by_an_epoch(topics)
    questions = itertools.count()

    def committed(partitions: Collection[TopicPartition]) -> Mapping[tuple[str, int], Committed]:
        answer = world.group.committed(partitions)
        if next(questions) == 0:  # asked by the takeover
            archive_by_the_older(b"b")
        return answer if is_answered else world.group.committed(partitions)

    new = world.next_epoch(committed=committed)
    topics.produce(world.names[0], 0, [b"c"])
    world.archive_all(new)
    assert next(questions) > 0
    assert takeovers(manifests(world, world.names[0])) == [1, 2]
    must_go_on(world, new)


def test_of_many_epochs_that_begin_at_once_one_goes_on(topics: Topics) -> None:
    world = two_topics(topics, partitions=2)
    tees = {tee: number for number, tee in enumerate((world.next_epoch() for _ in range(EPOCHS_AT_ONCE)), start=1)}
    ended: dict[int, FencedError] = {}

    def round_of(tee: Tee) -> FencedError | None:
        try:
            tee.round()
        except FencedError as error:
            return error
        return None

    for _ in range(2):  # one to begin, and one of which everybody who still goes on has to write something
        for name, number in itertools.product(world.names, range(2)):
            topics.produce(name, number, [b"a"] * 10)
        alive = [tee for tee, epoch in tees.items() if epoch not in ended]
        answers = at_once(
            [lambda tee=tee: round_of(tee) for tee in alive], within=Deadline.STREAM, what="a round of every epoch"
        )
        ended |= {tees[tee]: answer for tee, answer in zip(alive, answers, strict=True) if answer is not None}
    assert sorted(ended) == list(range(1, EPOCHS_AT_ONCE))
    last = next(tee for tee, epoch in tees.items() if epoch == EPOCHS_AT_ONCE)
    world.archive_all(last)
    must_be_whole(world)


# The topic changes


@pytest.mark.parametrize("compacted", [False, pytest.param(True, marks=pytest.mark.full)])  # the cleaner rests 15 s
def test_one_topic_through_all_that_may_happen_to_it(topics: Topics, compacted: bool) -> None:
    name = topics.make(partitions=1)
    world = world_of(topics, name)
    tee = _lives(topics, world, name)
    former, known = topics.topic_id(name), consumed(world, name)
    assert 0 < len(known.records) < sum(bounds.end - bounds.start for bounds in known.bounds.values())
    topics.delete(name)
    settings = {"cleanup_policy": "compact", "segment_ms": str(HOUR_MS // 2), "min_cleanable_dirty_ratio": "0.001"}
    topics.make(partitions=2, **settings if compacted else {})
    known_of_new = _compacted(topics, world, name, tee) if compacted else _filled(topics, world, name, tee)
    assert wrong_with(world, name, known=known_of_new) == []
    assert wrong_with(world, name, topic_id=former, known=known, lost=True) == []
    lost = [
        (tile.partition, tile.first, tile.next, tile.cause)
        for part in world.inspect(name, former).coverage.partitions
        for tile in part.tiles
        if tile.label is Label.LOST
    ]
    assert lost == [(1, 3, 6, Cause.UNREAD)]


def _lives(topics: Topics, world: TeeWorld, name: str) -> Tee:
    """Commits, aborts, a transaction that is decided late, new partitions, DeleteRecords; the tee of the last epoch."""
    tee = world.next_epoch()
    topics.transaction(name, 0, [b"kept"] * 3, commit=True)
    topics.transaction(name, 0, [b"dropped"] * 3, commit=False)
    open_one = topics.open_transaction(name, 0, [b"decided later"] * 2)
    topics.produce(name, 0, [b"behind it"] * 3)
    world.archive_all(tee)
    topics.grow(name, 3)
    topics.produce(name, 2, [b"new partition", b"", None], key=b"", headers=[("h", None), ("h", b"")])
    topics.transaction(name, 1, [b"dropped"] * 2, commit=False)
    world.archive_all(tee)
    end = topics.end(name, 0)
    open_one.commit_transaction(30)
    topics.until_end(name, 0, end + 2 + 3 + 1)
    world.archive_all(tee := world.next_epoch())
    topics.trim(name, 0, end + 1)  # archived already, in the middle of an object
    topics.produce(name, 1, [b"never read"] * 3)
    topics.trim(name, 1, 6)
    topics.produce(name, 1, [b"read"] * 2)
    topics.produce(name, 0, [b"later"] * 4)
    world.archive_all(tee)
    return tee


def _filled(topics: Topics, world: TeeWorld, name: str, tee: Tee) -> PlainTopic:
    """Records of the topic that was made anew, all archived; what a consumer gets of it."""
    for number in range(2):
        topics.produce(name, number, [b"new", None, b""], key=b"k")
    world.archive_all(tee)
    return consumed(world, name)


def _compacted(topics: Topics, world: TeeWorld, name: str, tee: Tee) -> PlainTopic:
    """Records that are archived and then compacted, and some that are compacted before; all that consumers ever got."""

    def wave(nth: int) -> None:  # its timestamps begin a new segment: the cleaner leaves the last one alone
        for number, key in itertools.product(range(2), [b"a", b"b", b"c"] * 2):
            topics.produce(name, number, [b"%d" % nth], key=key, timestamp=BEGAN_MS + nth * HOUR_MS)

    wave(1)
    topics.produce(name, 0, [None], key=b"d", timestamp=BEGAN_MS + HOUR_MS)
    world.archive_all(tee)
    before = consumed(world, name)
    wave(2)
    wave(3)

    def left() -> PlainTopic | None:
        found = consumed(world, name)
        gone = not any(record.value == b"1" for record in found.records)
        return found if gone and sum(record.value == b"2" for record in found.records) == 2 * 3 else None

    after = eventually(left, within=Deadline.SESSION, what="two waves of records to be compacted")
    world.archive_all(tee)
    assert sum(part.holes for part in world.inspect(name).coverage.partitions) == 2 * 3
    old = [record for record in before.records if record.offset < before.bounds[record.partition].end]
    new = [record for record in after.records if record.offset >= before.bounds[record.partition].end]
    return PlainTopic(old + new, after.bounds)
