"""One suite for every `ObjectStore`: in memory, S3's, and S3's through a network that loses and cuts off answers."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import pytest

from millrace.adapters.s3.store import S3Store
from millrace.errors import ObjectExistsError, RefusedError
from millrace.ports.objects import Creation, ObjectInfo, ObjectStore
from millrace.settings import S3Settings
from support.fakes.objects import MemoryStore
from support.stack.faulty_proxy import Fault, FaultyProxy, faulty_proxy
from support.waiting import Deadline, at_once

if TYPE_CHECKING:
    pass

MANY = 1050  # more than a page and more than a deletion takes
WRITERS = 16
PART = 5 * 1024 * 1024
ODD = ("with space", "plus+", "100%", "%41", "übung", "a&b<c>\"'", "日本", "tilde~", "(a)", "a=b;c,d", "!*'")


@pytest.fixture(scope="module")
def real(s3_settings: S3Settings) -> S3Store:
    return S3Store(s3_settings, part_size=PART, largest_put=PART)


@pytest.fixture(scope="module")
def proxy(s3_settings: S3Settings) -> Iterator[FaultyProxy]:
    with faulty_proxy(s3_settings) as opened:
        opened.disturbed = True
        yield opened


@pytest.fixture(scope="module")
def through_proxy(proxy: FaultyProxy) -> S3Store:
    return S3Store(proxy.settings, part_size=PART, largest_put=PART)


@pytest.fixture
def disturbed(proxy: FaultyProxy, through_proxy: S3Store) -> Iterator[S3Store]:
    proxy.forget()
    yield through_proxy
    assert sum(proxy.injected.values()) > 0


@pytest.fixture(params=["memory", "s3", pytest.param("s3-disturbed", marks=pytest.mark.full)])
def store(request: pytest.FixtureRequest) -> ObjectStore:
    if request.param == "memory":
        return MemoryStore()
    found: ObjectStore = request.getfixturevalue("real" if request.param == "s3" else "disturbed")
    return found


@pytest.fixture
def written(store: ObjectStore, request: pytest.FixtureRequest) -> set[Creation]:
    """What a first creation may say: where answers are lost, the repetition finds its own object."""
    lost = "s3-disturbed" in request.node.name
    return {Creation.CREATED, Creation.WAS_THERE} if lost else {Creation.CREATED}


@pytest.fixture
def prefix() -> str:
    return f"contract-{uuid.uuid4().hex[:8]}/"


@pytest.fixture(scope="module")
def many(real: S3Store) -> str:
    """A prefix with many small objects in the real store."""
    prefix = f"contract-{uuid.uuid4().hex[:8]}/"
    fill(real, prefix)
    return prefix


def fill(store: ObjectStore, prefix: str) -> None:
    """Objects of 0 to 4 bytes, in 1,050 folders, and one beside them."""
    with ThreadPoolExecutor(WRITERS) as threads:
        done = threads.map(lambda number: store.create(f"{prefix}{number:04}/x", b"x" * (number % 5)), range(MANY))
        assert set(done) == {Creation.CREATED}
    store.create(f"{prefix}beside", b"")


@pytest.fixture
def full_prefix(store: ObjectStore, request: pytest.FixtureRequest, prefix: str) -> str:
    if not isinstance(store, MemoryStore):
        return str(request.getfixturevalue("many"))
    fill(store, prefix)
    return prefix


def names(found: Iterator[ObjectInfo], prefix: str) -> list[str]:
    return [each.key.removeprefix(prefix) for each in found]


def test_what_was_written_is_read_whole_and_in_part(store: ObjectStore, prefix: str, written: set[Creation]) -> None:
    key = prefix + "a"
    assert store.create(key, b"0123456789") in written
    assert store.get(key) == b"0123456789"
    assert store.head(key) == ObjectInfo(key, 10)
    ranges = [(0, 10), (0, 1), (9, 10), (3, 7), (5, 99), (10, 11), (99, 100), (4, 4), (0, 0)]
    expected = [b"0123456789", b"0", b"9", b"3456", b"56789", b"", b"", b"", b""]
    assert [store.get_range(key, *each) for each in ranges] == expected


def test_what_is_not_there_is_none(store: ObjectStore, prefix: str) -> None:
    key = prefix + "absent"
    assert (store.get(key), store.head(key), store.get_range(key, 0, 5), store.get_range(key, 3, 3)) == (None,) * 4
    assert list(store.list(prefix)) == []
    assert list(store.folders(prefix)) == []
    assert store.delete([key]) == {}
    assert store.delete([]) == {}


def test_an_empty_object_is_there(store: ObjectStore, prefix: str, written: set[Creation]) -> None:
    key = prefix + "empty"
    assert store.create(key, b"") in written
    assert store.create(key, b"") is Creation.WAS_THERE
    assert (store.get(key), store.head(key)) == (b"", ObjectInfo(key, 0))
    assert [store.get_range(key, *each) for each in ((0, 0), (0, 5), (3, 9))] == [b""] * 3
    assert list(store.list(prefix)) == [ObjectInfo(key, 0)]
    with pytest.raises(ObjectExistsError, match="empty"):
        store.create(key, b"x")


def test_nothing_is_written_over_what_is_there(store: ObjectStore, prefix: str, written: set[Creation]) -> None:
    key = prefix + "a"
    assert store.create(key, b"first") in written
    assert store.create(key, b"first") is Creation.WAS_THERE
    for other in (b"second one", b"sirst", b""):
        with pytest.raises(ObjectExistsError) as told:
            store.create(key, other)
        assert key in str(told.value)
        assert "5 bytes" in str(told.value) or "5 are there" in str(told.value)
    assert store.get(key) == b"first"
    assert store.delete([key]) == {}
    assert store.create(key, b"second one") in written


def test_keys_are_taken_as_they_are(store: ObjectStore, prefix: str, written: set[Creation]) -> None:
    keys = [prefix + odd for odd in ODD]
    assert {store.create(key, key.encode()) for key in keys} <= written
    assert [store.get(key) for key in keys] == [key.encode() for key in keys]
    assert [each.key for each in store.list(prefix)] == sorted(keys, key=str.encode)
    beyond = sorted(keys, key=str.encode)
    assert [each.key for each in store.list(prefix, after=beyond[4])] == beyond[5:]
    assert [next(iter(store.list(key))).key for key in keys] == keys
    assert store.create(f"{prefix}ä & <ö>+%/x", b"") in written
    assert list(store.folders(prefix)) == ["ä & <ö>+%"]
    assert store.delete([*keys, f"{prefix}ä & <ö>+%/x"]) == {}
    assert list(store.list(prefix)) == []


def test_keys_come_in_the_order_of_their_bytes(store: ObjectStore, prefix: str) -> None:
    keys = ["a", "B", "a-b", "a.b", "a0", "aa/a", "aa/b", "aa-", "aa0", "z", "Z", "\u00e4", "\u65e5", "\uff5e"]
    for key in keys:
        store.create(prefix + key, b"")
    assert names(store.list(prefix), prefix) == sorted(keys, key=str.encode)
    for page_size in (1, 4):
        assert names(store.list(prefix, page_size=page_size), prefix) == sorted(keys, key=str.encode)
    for after in ("a", "aa/", "aa/a", "b", "~"):
        beyond = [key for key in sorted(keys, key=str.encode) if key.encode() > after.encode()]
        assert names(store.list(prefix, after=prefix + after, page_size=3), prefix) == beyond
    assert names(store.list(prefix + "a"), prefix) == sorted((key for key in keys if key[0] == "a"), key=str.encode)


def test_a_listing_in_another_order_is_refused(real: S3Store, prefix: str) -> None:
    for key in ("\uff5e", "\U0001f600"):  # s3proxy is of Java, to which the second is the smaller one
        real.create(prefix + key, b"")
    with pytest.raises(RefusedError, match="order"):
        list(real.list(prefix))


def test_folders_are_told_once_each(store: ObjectStore, prefix: str) -> None:
    for key in ("b/1/x", "b/2/x", "a/1/x", "c", "ab/x", "a-b/x"):
        store.create(prefix + key, b"")
    assert list(store.folders(prefix)) == ["a-b", "a", "ab", "b"]
    assert list(store.folders(prefix + "b/")) == ["1", "2"]
    assert list(store.folders(prefix + "a")) == ["-b", "", "b"]
    assert list(store.folders(prefix + "c/")) == []


def test_more_objects_than_a_page_are_listed(store: ObjectStore, full_prefix: str) -> None:
    expected = [*(f"{number:04}/x" for number in range(MANY)), "beside"]
    found = list(store.list(full_prefix))
    assert [each.key.removeprefix(full_prefix) for each in found] == expected
    assert [each.size_bytes for each in found[:6]] == [0, 1, 2, 3, 4, 0]
    assert names(store.list(full_prefix, after=f"{full_prefix}0998/x", page_size=30), full_prefix) == expected[999:]
    assert (
        names(islice(store.list(full_prefix, after=f"{full_prefix}03", page_size=7), 20), full_prefix)
        == expected[300:320]
    )
    assert list(store.folders(full_prefix)) == [f"{number:04}" for number in range(MANY)]


def test_more_objects_than_one_request_takes_are_deleted(store: ObjectStore, prefix: str) -> None:
    there = [f"{prefix}{number}" for number in (0, 999, 1000, MANY - 1)]
    for key in (*there, f"{prefix}kept"):
        store.create(key, b"x")
    assert store.delete([f"{prefix}{number}" for number in range(MANY)]) == {}
    assert names(store.list(prefix), prefix) == ["kept"]
    assert [store.get(key) for key in there] == [None] * 4


def outcome(store: ObjectStore, key: str, data: bytes) -> Creation | str:
    try:
        return store.create(key, data)
    except ObjectExistsError:
        return "exists"


def contest(store: ObjectStore, key: str, each: Callable[[int], bytes], writers: int = WRITERS) -> list[Creation | str]:
    calls = [partial(outcome, store, key, each(number)) for number in range(writers)]
    return at_once(calls, within=Deadline.COMMAND, what="the creations of one object")


def test_of_writers_of_one_object_one_wins(store: ObjectStore, prefix: str, written: set[Creation]) -> None:
    key = prefix + "contested"
    came = contest(store, key, lambda number: b"writer %02d" % number)
    assert len([each for each in came if each in written]) == 1
    assert came.count("exists") == WRITERS - 1
    winner = next(number for number, each in enumerate(came) if each in written)
    assert store.get(key) == b"writer %02d" % winner


def test_writers_of_the_same_bytes_all_succeed(store: ObjectStore, prefix: str, written: set[Creation]) -> None:
    came = contest(store, prefix + "contested", lambda _: b"the same")
    assert came.count("exists") == 0
    assert came.count(Creation.CREATED) == 1 or Creation.WAS_THERE in written
    assert store.get(prefix + "contested") == b"the same"


def test_a_store_proves_that_it_keeps_what_is_there(store: ObjectStore) -> None:
    store.prove_create_only()
    assert list(store.list("millrace-probe/")) == []


def test_a_large_object_is_written_in_parts(store: ObjectStore, prefix: str, written: set[Creation]) -> None:
    key, data = prefix + "large", large(2 * PART + 7)
    assert store.create(key, data) in written
    assert store.create(key, data) is Creation.WAS_THERE
    assert store.head(key) == ObjectInfo(key, len(data))
    assert store.get(key) == data
    assert store.get_range(key, PART - 3, PART + 3) == data[PART - 3 : PART + 3]
    with pytest.raises(ObjectExistsError):
        store.create(key, data[:-1])
    with pytest.raises(ObjectExistsError):
        store.create(key, data[:-1] + b"\xff")


def large(size: int) -> bytes:
    """Bytes of which no two parts are alike."""
    return b"".join(number.to_bytes(8, "big") for number in range(size // 8 + 1))[:size]


@pytest.mark.full
def test_a_network_that_fails_was_one(disturbed: S3Store, proxy: FaultyProxy, prefix: str) -> None:
    """What the parameter `s3-disturbed` of this file means."""
    disturbed.create(prefix + "a", b"a")
    disturbed.get(prefix + "a")
    assert proxy.happened(Fault.LOST, "PutObject") == 1
    assert proxy.happened(Fault.LOST, "GetObject") >= 1
