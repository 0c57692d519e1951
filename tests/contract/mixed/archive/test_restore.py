"""`millrace backup restore` on the real broker and store: each record once, bit for bit, whatever is killed."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from functools import partial
from itertools import product

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from millrace.adapters.kafka.producers import restore as kafka_restore
from millrace.cli.archive import commands as command
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.records import ArchivedRecord, TimestampType, digest_of
from millrace.domain.archive.restore.records import Placement
from millrace.domain.archive.selection import Selection
from millrace.embedded.stack import Stack
from millrace.errors import FencedError, MillraceError, RefusedError, UsageError
from millrace.usecases.archive import restore_run
from millrace.usecases.archive.restore import Restore, RestoreProgress
from millrace.usecases.archive.restore_run import Phase
from support.archive.restores import killed as killed_restore
from support.archive.restores.killed import CLIENT, watched
from support.archive.restores.real import (
    BEGAN_MS,
    Object,
    Restores,
    archive,
    meant,
    new_incarnation,
    original,
    originals,
    plain_records,
)
from support.archive.tees import TeeWorld, Topics
from support.crash_walks import crash_at_every_call
from support.stack.faults import Life, Moment, unexpected
from support.stack.killed_child import must_be_killed
from support.topics.plain_consumer import read_topic

KEYS = (None, b"", b"key", b"\x00\xff")
VALUES = (None, b"", b"value", b"\xfe\x00" * 40)
HEADERS = (
    (),
    (("a", b"1"),),
    (("a", b"1"), ("a", b"2")),
    (("a", None),),
    (("a", b""), ("b", None), ("a", b"\xff"), ("", b"unnamed")),
    (("millrace.restored.topic", b"of an earlier restore"),),
)
STAMPS = (1, -1, -2, BEGAN_MS, 253_402_300_799_999, -62_135_596_800_000, 9_300_000_000_000_000)
BOUNDS = (0, (1 << 63) - 1, -(1 << 63), 0, -1, 1, -(1 << 63), 0)


@pytest.fixture
def restores(kafka: Stack, s3: Stack) -> Restores:
    return Restores(Topics(kafka), new_incarnation())


def two_partitions(count: int = 40) -> list[Object]:
    """Objects of two partitions, mixed."""
    return [(p, plain_records(first, 10)) for first in range(0, count, 10) for p in (0, 1)]


def combinations(partition: int, stamps: tuple[int, ...], first: int = 0) -> Object:
    kinds = tuple(TimestampType)
    rows = product(stamps, KEYS, VALUES, HEADERS)
    return partition, [ArchivedRecord(first + n, ts, kinds[n % 3], *row) for n, (ts, *row) in enumerate(rows)]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transactions of seven records."""
    monkeypatch.setattr(restore_run, "TRANSACTION_RECORDS", 7)


def test_records_come_back_bit_for_bit_in_their_order(restores: Restores, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second partition has timestamps of 0, so that the client is changed on the way."""
    monkeypatch.setattr(restore_run, "TRANSACTION_RECORDS", 300)
    objects = [combinations(0, STAMPS), combinations(1, (0, BEGAN_MS))]
    bounds = [ArchivedRecord(n, ts, TimestampType.CREATE_TIME, b"k", None) for n, ts in enumerate(BOUNDS, 1_000)]
    objects.append((1, bounds))
    archive(restores.store, restores.here, 2, objects)
    into = restores.target()
    report = restores.restore(into)
    assert (report.is_whole, restores.told) == (True, [])
    assert report.restored == report.verified == sum(len(records) for _, records in objects)
    found = restores.there(into)
    assert originals(found) == meant(objects)
    own = [ArchivedRecord(0, r.timestamp_ms, TimestampType.NONE, r.key, r.value, r.headers[:-7]) for r in found]
    assert digest_of(own).content == digest_of([record for _, record in meant(objects)]).content
    assert dict(found[0].headers[-7:]) | {"millrace.restored.selection": None} == {
        "millrace.restored.topic": restores.here.topic.encode(),
        "millrace.restored.topic_id": restores.here.topic_id.encode(),
        "millrace.restored.partition": b"0",
        "millrace.restored.offset": b"0",
        "millrace.restored.timestamp_ms": b"1",
        "millrace.restored.timestamp_type": b"none",
        "millrace.restored.selection": None,
    }


def test_a_topic_goes_through_backup_and_restore(kafka: Stack, s3: Stack) -> None:
    """What the app wrote, with an aborted transaction in between and a tombstone, as any consumer sees both topics."""
    topics = Topics(kafka)
    name = topics.make(retention_ms="-1")
    topics.produce(name, 0, [b"a", None, b""], key=b"k", headers=[("h", None), ("h", b"1")], timestamp=BEGAN_MS)
    topics.transaction(name, 0, [b"never"], commit=False)
    topics.produce(name, 0, [b"b"])
    topics.produce(name, 1, [b"c", b"d"], key=b"other")
    world = TeeWorld(topics, [name], topics.platform.objects.store())
    world.archive_all(world.next_epoch())
    restores = Restores(topics, Incarnation(name, topics.topic_id(name)))
    into = restores.target()
    assert restores.restore(into).is_whole
    before = read_topic(topics.kafka.librdkafka, name).records
    after = [original(record) for record in restores.there(into)]
    assert [(p, r.offset, r.timestamp_ms, r.key, r.value, r.headers) for p, r in after] == [
        (r.partition, r.offset, r.timestamp_ms, r.key, r.value, r.headers) for r in before
    ]
    with pytest.raises(RefusedError, match="it is the topic that"):
        restores.restore(name, append=True)


KILLS = (
    ("commit_transaction", "BEFORE", 2),
    ("produce", "AFTER", 18),
    ("commit_transaction", "AFTER", 1),
    ("init_transactions", "AFTER", 1),
    ("begin_transaction", "AFTER", 1),
    ("produce", "AFTER", 1),
    ("commit_transaction", "BEFORE", 1),
    ("produce", "AFTER", 7),
)


@pytest.mark.parametrize("kills", [KILLS[:1], pytest.param(KILLS, marks=pytest.mark.full)], ids=["once", "eight times"])
def test_a_restore_that_is_killed_again_and_again_writes_each_record_once(
    restores: Restores, kills: tuple[tuple[str, str, int], ...]
) -> None:
    objects = two_partitions(60)
    archive(restores.store, restores.here, 2, objects)
    into = restores.target()
    told = {"root": str(restores.root), "here": [restores.here.topic, restores.here.topic_id], "into": into}
    for call, moment, occurrence in kills:
        must_be_killed(killed_restore.__file__, told, call, moment, str(occurrence))
    report = restores.restore(into)
    assert 0 < report.already_there < 120
    assert (report.is_whole, report.restored) == (True, 120 - report.already_there)
    assert originals(restores.there(into)) == meant(objects)
    again = restores.restore(into)
    assert (again.is_whole, again.already_there, again.restored, again.verified) == (True, 120, 0, 120)


MOMENTS = (Moment.AFTER, pytest.param(Moment.BEFORE, marks=pytest.mark.full))


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_restore_that_dies_at_any_call_of_its_client_is_completed_by_the_next(
    restores: Restores, moment: Moment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restore_run, "TRANSACTION_RECORDS", 2)
    objects = [(0, plain_records(0, 2)), (1, plain_records(0, 1))]
    archive(restores.store, restores.here, 2, objects)
    names, of_thread = iter(range(1_000)), threading.local()
    monkeypatch.setattr(kafka_restore, "Producer", lambda *a, **k: watched(of_thread.life)(*a, **k))

    def lived(life: Life, into: str) -> MillraceError | None:
        of_thread.life = life
        return life.lived(partial(restores.restore, into))

    def once(life: Life) -> list[str]:
        into = restores.target(f"b{next(names)}")
        wrong = unexpected(life, lived(life, into))
        whole = Life()
        wrong += unexpected(whole, lived(whole, into))
        found = originals(restores.there(into))
        return wrong + ([] if found == meant(objects) else [f"there are {found}"])

    crash_at_every_call(moment, once).must_be_well(*(f"producer.{call}" for call in CLIENT))


def midway(act: Callable[[], object], records: int = 0) -> Callable[[RestoreProgress], None]:
    """Does something once, after the first transaction by which so many records are there."""
    waiting = [act]

    def at(progress: RestoreProgress) -> None:
        if progress.phase is Phase.RESTORING and progress.records >= records and waiting:
            waiting.pop()()

    return at


@pytest.mark.full
@pytest.mark.parametrize(
    "stamps",
    [
        pytest.param({}, id="librdkafka"),
        pytest.param({0: 0}, id="exact"),
        pytest.param({1: 0}, id="on the way"),
    ],
)
def test_of_two_at_once_the_older_one_ends_as_fenced(restores: Restores, small: None, stamps: dict[int, int]) -> None:
    """Where the second half has timestamps of 0, the older one changes its client after it was fenced."""
    objects = [(0, plain_records(10 * n, 10, **({"timestamp_ms": stamps[n]} if n in stamps else {}))) for n in range(3)]
    archive(restores.store, restores.here, 2, objects)
    into = restores.target()
    with pytest.raises(FencedError, match="another restore"):
        restores.restore(into, at=midway(lambda: restores.restore(into)))
    assert originals(restores.there(into)) == meant(objects)


def died() -> None:
    raise InterruptedError("here it dies")


def test_what_is_deleted_from_the_target_while_the_rest_comes_is_told(restores: Restores, small: None) -> None:
    """Of what an earlier try wrote: it was there when this one looked, and is not written again."""
    archive(restores.store, restores.here, 2, two_partitions())
    into = restores.target()
    with pytest.raises(InterruptedError):
        restores.restore(into, at=midway(died, 35))
    report = restores.restore(into, at=midway(lambda: restores.topics.trim(into, 0, 12), 36))
    assert not report.is_whole
    assert report.verified == len(restores.there(into)) < 80
    (told,) = report.differences
    assert told.startswith("of partition 0 the target has ")


def test_a_restore_is_fenced_by_one_into_a_topic_that_was_made_again_meanwhile(
    restores: Restores, small: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The older one is kept from seeing that: it may happen right after it has looked. Its client prints nothing."""
    objects = two_partitions()
    archive(restores.store, restores.here, 2, objects)
    into = restores.target()

    def again() -> None:
        restores.topics.delete(into)
        restores.target()
        assert restores.restore(into).is_whole
        monkeypatch.setattr(Restore, "_must_be", lambda *_: None)

    with pytest.raises(FencedError):
        restores.restore(into, at=midway(again, 21))
    assert "fenced" not in capfd.readouterr().err
    assert originals(restores.there(into)) == meant(objects)


@pytest.mark.full
def test_a_restore_that_is_refused_lets_the_one_that_runs_go_on(restores: Restores, small: None) -> None:
    objects = two_partitions()
    archive(restores.store, restores.here, 2, objects)
    into = restores.target()

    def other() -> None:
        with pytest.raises(RefusedError, match="another restore"):
            restores.restore(into, Selection(partition=0))

    assert restores.restore(into, at=midway(other, 21)).is_whole
    assert originals(restores.there(into)) == meant(objects)


@pytest.mark.full
def test_another_selection_is_not_taken_for_a_beginning(restores: Restores, small: None) -> None:
    objects = two_partitions()
    archive(restores.store, restores.here, 2, objects)
    into = restores.target()
    first = restores.restore(into, Selection(0, 5, 25))
    assert (first.restored, first.is_whole) == (20, True)
    with pytest.raises(RefusedError, match="another restore"):
        restores.restore(into)
    appended = restores.restore(into, append=True)
    assert (appended.restored, appended.others, appended.is_whole) == (80, 20, True)
    again = restores.restore(into, append=True)
    assert (again.restored, again.already_there, again.is_whole) == (0, 80, True)


@pytest.mark.full
def test_a_topic_that_holds_something_is_not_written_to_unless_told(restores: Restores) -> None:
    archive(restores.store, restores.here, 2, two_partitions())
    into = restores.target()
    restores.topics.produce(into, 1, [b"somebody's"])
    with pytest.raises(RefusedError, match="not empty"):
        restores.restore(into)
    assert len(restores.there(into)) == 1
    assert restores.restore(into, append=True).is_whole
    assert len(restores.there(into)) == 81


@pytest.mark.full
def test_keys_decide_where_kafka_would_put_them(restores: Restores, small: None) -> None:
    objects = two_partitions()
    archive(restores.store, restores.here, 2, objects)
    into, judge = restores.target(partitions=3), restores.topics.make("judge", partitions=3, retention_ms="-1")
    with pytest.raises(RefusedError, match="3 partitions, and the archived topic had 2"):
        restores.restore(into)
    assert restores.restore(into, placement=Placement.KEY).is_whole
    producer = Producer({**restores.topics.kafka.librdkafka, "partitioner": "murmur2_random"})
    for key in sorted({record.key for _, record in meant(objects) if record.key}):
        producer.produce(judge, b"", key=key)
    assert producer.flush(60) == 0
    judged = {record.key: record.partition for record in restores.there(judge)}
    found = restores.there(into)
    assert {record.key: record.partition for record in found} == judged
    assert sorted(originals(found), key=lambda each: (each[0], each[1].offset)) == meant(objects)
    for number, partition in product(range(3), (0, 1)):
        offsets = [r.offset for p, r in originals([x for x in found if x.partition == number]) if p == partition]
        assert offsets == sorted(offsets)


def test_a_topic_that_would_not_keep_or_change_records_is_refused_with_every_reason(restores: Restores) -> None:
    archive(restores.store, restores.here, 2, two_partitions())
    into = restores.target(
        cleanup_policy="compact,delete",
        retention_ms="86400000",
        retention_bytes="1000000",
        message_timestamp_type="LogAppendTime",
        message_timestamp_before_max_ms="1000",
    )
    with pytest.raises(RefusedError) as refused:
        restores.restore(into)
    for setting in ("cleanup.policy=", "retention.ms=", "retention.bytes=", "timestamp.type=", "before.max.ms="):
        assert setting in refused.value.next_step
    with pytest.raises(UsageError, match="does not exist"):
        restores.restore(f"{into}.not.there")
    assert restores.there(into) == []


@pytest.mark.full
def test_a_record_that_is_too_large_is_named_and_the_rest_goes_on_once_it_fits(restores: Restores, small: None) -> None:
    incompressible = bytes(n * n * n // 7 % 251 for n in range(60_000)) + b"".join(
        (n * 2_654_435_761 % (1 << 32)).to_bytes(4, "big") for n in range(10_000)
    )
    large = [ArchivedRecord(10, BEGAN_MS, TimestampType.CREATE_TIME, None, incompressible)]
    objects = [(0, plain_records(0, 10)), (0, large)]
    archive(restores.store, restores.here, 2, objects)
    into = restores.target(max_message_bytes="9000")
    with pytest.raises(RefusedError, match="refuses a record;"):
        restores.restore(into)
    restores.topics.platform.kafka.topics().set_config({into: {"max.message.bytes": "1000000"}})
    report = restores.restore(into)
    assert (report.is_whole, report.already_there) == (True, 7)
    assert originals(restores.there(into)) == meant(objects)


@pytest.mark.full
def test_what_the_archive_lacks_is_told_and_the_rest_restored(
    restores: Restores, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = [
        (0, plain_records(0, 10)),
        (0, plain_records(15, 5)),
        (0, plain_records(20, 10)),
        (0, plain_records(30, 5)),
    ]
    entries = archive(restores.store, restores.here, 1, objects, gap_at=15)
    restores.store.delete([restores.here.object_key(entries[2].name)])
    into = restores.target(partitions=1)
    monkeypatch.setenv("MILLRACE_ROOT", str(restores.root))
    done = CliRunner().invoke(
        command.app, ["restore", restores.here.topic, "--into", into, "--reason", "a test", "--json"]
    )
    assert done.exit_code == 1, done.output
    said = json.loads(done.stdout)
    assert (said["schema"], said["restored"], said["problems"]) == ("millrace.backup.restore/1", 20, 2)
    assert "not restored: lost: [10, 15) of partition 0" in done.stderr
    assert "the object is gone [20, 30) of partition 0" in done.stderr
    assert [r.offset for _, r in originals(restores.there(into))] == [*range(10), *range(15, 20), *range(30, 35)]


def test_a_command_that_went_well_says_so(restores: Restores, monkeypatch: pytest.MonkeyPatch) -> None:
    archive(restores.store, restores.here, 2, two_partitions())
    into = restores.target()
    monkeypatch.setenv("MILLRACE_ROOT", str(restores.root))
    arguments = ["restore", restores.here.topic, "--into", into, "--reason", "a test", "--key", "key 3"]
    done = CliRunner().invoke(command.app, arguments)
    assert done.exit_code == 0, done.output
    keys = {record.key for record in restores.there(into)}
    assert keys == {b"key 3"}
    assert "read back, as archived" in done.stdout
