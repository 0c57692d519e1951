"""A start asks the ends of its app's chains, in few requests however long they are, and whatever lies there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from millrace.adapters.archive.heads import ChainHeads
from millrace.adapters.chain.documents import encode
from millrace.domain.archive.manifest import Kind, Manifest
from millrace.domain.archive.names import Incarnation
from millrace.domain.chain.head import LARGEST_EPOCH
from millrace.errors import UnreachableError
from millrace.ports.objects import ObjectInfo
from support.archive.audits.in_memory import NOON
from support.fakes.objects import MemoryStore
from support.waiting import Deadline

A, B = Incarnation("shop.a", "A" * 22), Incarnation("shop.b", "B" * 22)


@dataclass
class Counted(MemoryStore):
    """Counts requests: a page of a listing is one."""

    requests: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def get(self, key: str) -> bytes | None:
        self.requests.append(key)
        return super().get(key)

    def list(self, prefix: str, *, after: str = "", page_size: int = 1000) -> Iterator[ObjectInfo]:
        for number, info in enumerate(super().list(prefix, after=after, page_size=page_size)):
            if number % page_size == 0:
                self.requests.append(prefix)
            yield info


def put(store: MemoryStore, here: Incarnation, sequence: int, epoch: int) -> None:
    manifest = Manifest(
        sequence=sequence,
        previous="ab" * 32 if sequence else "",
        epoch=epoch,
        instance="i",
        kind=Kind.LOOK,
        topic=here.topic,
        topic_id=here.topic_id,
        at=NOON,
        partitions=1,
    )
    store.create(here.manifest_key(sequence), encode(manifest))


@pytest.mark.parametrize("length", [0, 1, 2, 999, 1_000, 1_001, 2_000, 4_999, 37_123])
@pytest.mark.parametrize("summed_up", [None, 0, 700])
def test_the_last_manifest_is_found_in_few_requests(length: int, summed_up: int | None) -> None:
    store = Counted()
    for sequence in range(length - 1):
        store.objects[A.manifest_key(sequence)] = b"not read"
    if length:
        put(store, A, length - 1, 40)
    if summed_up is not None and summed_up < length:
        store.objects[A.summary_key(summed_up)] = b"not read"
    assert ChainHeads(store).newest_epoch([A]) == (40 if length else 0)
    assert len(store.requests) < 20


def test_the_greatest_epoch_of_all_chains_counts() -> None:
    store = MemoryStore()
    put(store, A, 3, 7)
    put(store, B, 2, 40)
    assert ChainHeads(store).newest_epoch([A, B, Incarnation("shop.new", "N" * 22)]) == 40
    assert ChainHeads(store).newest_epoch([]) == 0


@pytest.mark.parametrize("end", ["cut off behind a summary", "with a gap", "beside strangers"])
def test_a_damaged_chain_says_what_its_last_manifest_says(end: str) -> None:
    store = MemoryStore()
    put(store, A, 0, 39)
    put(store, A, 1, 40)
    if end == "cut off behind a summary":
        store.objects[A.summary_key(2)] = b"not read"
    elif end == "with a gap":
        put(store, A, 5_000, 41)
    else:
        store.objects[f"{A.manifests}stray.tmp"] = b"x"
    assert ChainHeads(store).newest_epoch([A]) == (41 if end == "with a gap" else 40)


@pytest.mark.parametrize("end", ["other bytes", "an epoch made by hand"])
def test_a_chain_whose_end_cannot_be_believed_holds_up_no_start(end: str) -> None:
    store = MemoryStore()
    put(store, A, 0, LARGEST_EPOCH + 1)
    if end == "other bytes":
        store.objects[A.manifest_key(1)] = b"\x00"
    put(store, B, 0, 40)
    assert ChainHeads(store).newest_epoch([A, B]) == 40


def test_a_store_that_does_not_answer_is_not_asked_for_every_chain() -> None:
    class Away(Counted):
        def list(self, prefix: str, *, after: str = "", page_size: int = 1000) -> Iterator[ObjectInfo]:
            self.requests.append(prefix)
            raise UnreachableError("the store does not answer")

    store = Away()
    with pytest.raises(UnreachableError):
        ChainHeads(store).newest_epoch([Incarnation(f"shop.{number}", "A" * 22) for number in range(500)])
    assert len(store.requests) == 1


def test_a_chain_that_is_too_slow_is_not_waited_for() -> None:
    class Slow(Counted):
        def get(self, key: str) -> bytes | None:
            if B.manifests in key:
                assert given_up.wait(Deadline.THREAD.seconds)
            return super().get(key)

    given_up = threading.Event()
    store = Slow()
    put(store, A, 0, 40)
    put(store, B, 0, 41)
    assert ChainHeads(store, within_seconds=0.2).newest_epoch([A, B]) == 40
    given_up.set()


def test_what_the_other_chains_say_counts_although_one_is_not_answered_for() -> None:
    class OneIsAway(Counted):
        def get(self, key: str) -> bytes | None:
            if B.manifests in key:
                raise UnreachableError("the store does not answer")
            return super().get(key)

    store = OneIsAway()
    put(store, B, 0, 41)
    others = [Incarnation(f"shop.c{number}", "C" * 22) for number in range(20)]
    for number, here in enumerate(others):
        put(store, here, 0, 20 + number)
    assert ChainHeads(store).newest_epoch([Incarnation("shop.a", "A" * 22), B, *others]) == 39
