"""The one writer of chains: the same rules for an archive's chain and a dataset's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from millrace.adapters.chain.writer import ChainWriter
from millrace.errors import ChainFencedError, CorruptArchiveError, ObjectExistsError, RefusedError, UnreachableError
from millrace.ports.objects import Creation, ObjectInfo
from support.archive.chains import Losing
from support.archive.kinds import ArchiveChains, DatasetChains
from support.fakes.objects import MemoryStore

Chains = ArchiveChains | DatasetChains


@pytest.fixture(params=[ArchiveChains, DatasetChains], ids=["archive", "dataset"])
def chains(request: pytest.FixtureRequest) -> Chains:
    made: Chains = request.param()
    return made


def begun(chains: Chains, store: MemoryStore, manifests: int = 1, epoch: int = 1, instance: str = "one") -> Any:
    """Return the writer of a chain with this many manifests behind its takeover."""
    writer = chains.take_over(store, epoch, instance)
    for _ in range(manifests):
        chains.append(writer)  # type: ignore[arg-type]
    return writer


def end_of(chains: Chains, store: MemoryStore) -> tuple[int, int, str]:
    head = chains.head(store)
    return head.sequence, head.epoch, head.instance


# Epochs


def test_an_older_epoch_ends_at_its_next_manifest_and_stays_ended(chains: Chains) -> None:
    store = MemoryStore()
    older = begun(chains, store)
    newer = begun(chains, store, 1, 2, "two")
    with pytest.raises(ChainFencedError, match="epoch 2 of another instance") as fenced:
        chains.append(older)
    assert (fenced.value.epoch, fenced.value.instance) == (2, "two")
    for _ in range(3):
        with pytest.raises(RefusedError):
            chains.append(older)
        with pytest.raises(ChainFencedError):
            older.settle()
    chains.append(newer)
    assert end_of(chains, store) == (4, 2, "two")


def test_an_older_epoch_that_looks_again_before_it_writes_is_fenced(chains: Chains) -> None:
    store = Losing(-3)
    older = begun(chains, store)
    with pytest.raises(UnreachableError):
        chains.append(older)
    begun(chains, store, 0, 2, "two")
    with pytest.raises(ChainFencedError):
        older.settle()


def test_an_older_epoch_that_was_told_by_a_look_is_told_the_same_when_it_writes(chains: Chains) -> None:
    store = MemoryStore()
    older = begun(chains, store)
    begun(chains, store, 0, 2, "two")
    look = older.settle if isinstance(chains, ArchiveChains) else older.read_on
    for write in (look, lambda: chains.append(older), look):
        with pytest.raises(ChainFencedError, match="epoch 2 of another instance"):
            write()
    assert end_of(chains, store) == (2, 2, "two")


@pytest.mark.parametrize(("epoch", "instance"), [(2, "other"), (1, "one")])
def test_an_epoch_that_the_chain_has_already_does_not_begin(chains: Chains, epoch: int, instance: str) -> None:
    store = MemoryStore()
    begun(chains, store, 1, 2, "two")
    before = dict(store.objects)
    with pytest.raises(ChainFencedError):
        chains.take_over(store, epoch, instance)
    assert store.objects == before


def test_a_takeover_whose_place_is_taken_by_an_older_epoch_follows_it(chains: Chains) -> None:
    store = MemoryStore()
    older = begun(chains, store, 2)

    def write_beside() -> None:
        chains.meanwhile = lambda: None
        chains.append(older)

    chains.meanwhile = write_beside
    begun(chains, store, 1, 2, "two")
    assert end_of(chains, store) == (5, 2, "two")


def test_a_takeover_out_of_turn_is_not_written(chains: Chains) -> None:
    store = MemoryStore()
    writer = begun(chains, store)
    with pytest.raises(ValueError, match="epoch 1"):
        chains.append_out_of_turn(writer)
    chains.append(writer)
    assert end_of(chains, store) == (2, 1, "one")


# Lost answers


def test_a_takeover_whose_answer_was_lost_is_adopted(chains: Chains) -> None:
    store = Losing(1)
    with pytest.raises(UnreachableError):
        chains.take_over(store, 1)
    begun(chains, store)
    assert end_of(chains, store) == (1, 1, "one")


def test_a_takeover_that_arrives_after_it_was_given_up_is_adopted_and_followed(chains: Chains) -> None:
    """It arrives between the look at the chain and the next try."""
    store, twin, key = MemoryStore(), MemoryStore(), chains.manifest_key(0)
    type(chains)().take_over(twin, 1)

    def arrive() -> None:
        store.objects[key] = chains.changed(twin.objects[key])

    chains.meanwhile = arrive
    writer = chains.take_over(store, 1)
    chains.append(writer)  # type: ignore[arg-type]
    assert end_of(chains, store) == (1, 1, "one")


@pytest.mark.parametrize(("lost", "written"), [(3, True), (-3, False)])
def test_nothing_is_appended_before_a_lost_answer_is_settled(chains: Chains, lost: int, written: bool) -> None:
    store = Losing(lost)
    writer = begun(chains, store)
    with pytest.raises(UnreachableError):
        chains.append(writer)
    with pytest.raises(RefusedError, match="the outcome of the last manifest's write is unknown"):
        chains.append(writer)
    writer.settle()
    chains.append(writer)
    assert end_of(chains, store) == (2 + written, 1, "one")


class Silent(Losing):
    """Also loses the answer to one look at a manifest, once `silent_at` names it."""

    silent_at = ""

    def get(self, key: str) -> bytes | None:
        if key == self.silent_at:
            self.silent_at = ""
            raise UnreachableError("lost")
        return super().get(key)


def test_a_manifest_that_was_never_sent_is_not_settled_as_written(chains: Chains) -> None:
    """The head is asked for before the manifest is sent; that answer is lost, after a write that was settled."""
    store = Silent(3)
    writer = begun(chains, store)
    with pytest.raises(UnreachableError):
        chains.append(writer)
    writer.settle()
    store.silent_at = chains.manifest_key(2)
    with pytest.raises(UnreachableError):
        chains.append(writer)
    assert not writer.settle()
    assert end_of(chains, store) == (2, 1, "one")


def test_a_lost_answer_is_not_settled_by_bytes_that_nobody_can_read(chains: Chains) -> None:
    store = Losing(-3)
    writer = begun(chains, store)
    with pytest.raises(UnreachableError):
        chains.append(writer)
    store.objects[chains.manifest_key(2)] = b"{}"
    for _ in range(2):
        with pytest.raises(CorruptArchiveError):
            writer.settle()
        with pytest.raises((RefusedError, CorruptArchiveError)):
            chains.append(writer)
    assert chains.manifest_key(3) not in store.objects


def test_a_request_that_arrives_after_it_was_given_up_is_read_and_not_a_fence(chains: Chains) -> None:
    store, twin = Losing(-3), MemoryStore()
    writer = begun(chains, store)
    with pytest.raises(UnreachableError):
        chains.append(writer)
    writer.settle()
    twin.objects = dict(store.objects)
    late = begun(chains, twin)
    key = chains.manifest_key(2)
    store.objects[key] = chains.changed(twin.objects[key])
    del late
    with pytest.raises(ObjectExistsError):
        chains.append(writer)
    chains.append(writer)
    assert end_of(chains, store) == (3, 1, "one")


# The head


@pytest.mark.parametrize("gone", [True, False], ids=["deleted", "changed"])
def test_nothing_is_appended_behind_a_head_that_is_not_as_it_was(chains: Chains, gone: bool) -> None:
    store = MemoryStore()
    writer = begun(chains, store, 2)
    spoil(chains, store, 2, gone=gone)
    before = dict(store.objects)
    with pytest.raises(CorruptArchiveError, match=r"last manifest, 2, (is missing|has other bytes)"):
        chains.append(writer)
    assert store.objects == before


@pytest.mark.parametrize("gone", [True, False], ids=["deleted", "changed"])
def test_nor_does_an_epoch_take_over_behind_it(chains: Chains, gone: bool) -> None:
    """The head changes between the look at the chain and the takeover."""
    store = MemoryStore()
    begun(chains, store, 2)
    chains.meanwhile = lambda: spoil(chains, store, 2, gone=gone)
    with pytest.raises(CorruptArchiveError, match=r"last manifest, 2, (is missing|has other bytes)"):
        chains.take_over(store, 2, "two")
    assert chains.manifest_key(3) not in store.objects


def spoil(chains: Chains, store: MemoryStore, sequence: int, *, gone: bool) -> None:
    key = chains.manifest_key(sequence)
    data = store.objects.pop(key)
    if not gone:
        store.objects[key] = chains.changed(data)


@pytest.mark.parametrize("readable", [True, False])
def test_nothing_is_written_in_the_place_of_a_manifest_that_a_summary_names(chains: Chains, readable: bool) -> None:
    store = MemoryStore()
    key = chains.sum_up(store, begun(chains, store, 3))
    if not readable:
        store.objects[key] += b"x"
    del store.objects[chains.manifest_key(3)]
    before = dict(store.objects)
    with pytest.raises(CorruptArchiveError, match="manifest 3"):
        chains.take_over(store, 2, "two")
    assert store.objects == before


def test_a_summary_of_what_came_while_the_chain_was_read_stops_nobody(chains: Chains) -> None:
    store = MemoryStore()
    older = begun(chains, store, 2)

    def write_and_sum_up() -> None:
        chains.meanwhile = lambda: None
        chains.append(older)
        chains.sum_up(store, older)

    chains.meanwhile = write_and_sum_up
    begun(chains, store, 1, 2, "two")
    assert end_of(chains, store) == (5, 2, "two")


class Refusing(MemoryStore):
    """Refuses each creation once `refuses` is set, and shows no object that would explain it."""

    refuses = False

    def create(self, key: str, data: bytes) -> Creation:
        if self.refuses:
            raise ObjectExistsError("it is there")
        return super().create(key, data)


def test_a_store_that_refuses_and_shows_nothing_is_not_asked_for_ever(chains: Chains) -> None:
    store = Refusing()
    writer = begun(chains, store)
    store.refuses = True
    with pytest.raises(CorruptArchiveError, match="has no manifest of this number"):
        chains.append(writer)
    with pytest.raises(CorruptArchiveError, match="has no manifest of this number"):
        chains.take_over(store, 2, "two")


# Requests


class Counting(MemoryStore):
    """Notes the calls and the sequence in each key; listings by folder."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def note(self, call: str, key: str) -> None:
        name = key.rpartition("/")[2].removesuffix(".json")
        self.calls.append(f"{call} {int(name) if name else key.rstrip('/').rpartition('/')[2]}")

    def create(self, key: str, data: bytes) -> Creation:
        self.note("create", key)
        return super().create(key, data)

    def get(self, key: str) -> bytes | None:
        self.note("get", key)
        return super().get(key)

    def head(self, key: str) -> ObjectInfo | None:
        self.note("head", key)
        return super().head(key)

    def list(self, prefix: str, *, after: str = "", page_size: int = 1000) -> Iterator[ObjectInfo]:
        self.note("list", prefix)
        return super().list(prefix, after=after, page_size=page_size)


def test_a_manifest_costs_two_requests_however_long_the_chain_is(chains: Chains) -> None:
    store = Counting()
    writer = begun(chains, store, 3)
    for sequence in (4, 5):
        store.calls.clear()
        chains.append(writer)
        assert store.calls == [f"get {sequence - 1}", f"create {sequence}"]


def test_a_takeover_reads_the_chain_once_and_its_head_twice(chains: Chains) -> None:
    store = Counting()
    begun(chains, store, 2)
    store.calls.clear()
    chains.take_over(store, 2, "two")
    first = ["get 0"] if isinstance(chains, DatasetChains) else []  # the stream that it belongs to
    read = ["get 0", "get 1", "get 2", "get 3"]
    asked = sorted(call for call in store.calls if not call.startswith("list"))
    assert asked == sorted([*first, *read, "get 2", "create 3"])


# Guards: each is seen when it is gone


def _no_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChainWriter, "check", lambda self: None)
    monkeypatch.setattr(ChainWriter, "_must_be_ours", lambda self, manifest: None)


def _head_only_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    plain: Callable[[Any], None] = ChainWriter._stop_at_changed_head

    def look(self: Any) -> None:
        head = self._chain.head
        if head.sequence >= 0 and self._store.get(self._chain.chained.manifest_key(head.sequence)) is None:
            plain(self)

    monkeypatch.setattr(ChainWriter, "_stop_at_changed_head", look)


def _off(name: str) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda monkeypatch: monkeypatch.setattr(ChainWriter, name, lambda self: None)


def _settled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChainWriter, "unsettled", property(lambda self: False))
    plain = ChainWriter.append

    def append(self: Any, following: Any) -> Any:
        self._unsettled = False
        return plain(self, following)

    monkeypatch.setattr(ChainWriter, "append", append)


GUARDS = [
    pytest.param(_no_fence, test_an_older_epoch_that_looks_again_before_it_writes_is_fenced, (), id="no fence"),
    pytest.param(
        _head_only_looked_for,
        test_nothing_is_appended_behind_a_head_that_is_not_as_it_was,
        (False,),
        id="head only looked for",
    ),
    pytest.param(
        _off("_stop_at_changed_head"), test_nor_does_an_epoch_take_over_behind_it, (True,), id="head not looked for"
    ),
    pytest.param(
        _off("_stop_at_fault"),
        test_nothing_is_written_in_the_place_of_a_manifest_that_a_summary_names,
        (False,),
        id="summaries not asked",
    ),
    pytest.param(
        _settled_at_once, test_nothing_is_appended_before_a_lost_answer_is_settled, (3, True), id="never unsettled"
    ),
]


@pytest.mark.parametrize(("take_away", "scenario", "given"), GUARDS)
def test_a_guard_that_is_gone_is_noticed(
    chains: Chains,
    monkeypatch: pytest.MonkeyPatch,
    take_away: Callable[[pytest.MonkeyPatch], None],
    scenario: Callable[..., None],
    given: tuple[object, ...],
) -> None:
    scenario(type(chains)(), *given)
    take_away(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception, ObjectExistsError, CorruptArchiveError)):
        scenario(chains, *given)
