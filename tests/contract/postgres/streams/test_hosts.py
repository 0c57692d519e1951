"""Hosts in a real control database: owners change by compare-and-set, ages go by the database's clock."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta

import psycopg
import pytest

from millrace.adapters.control.store import ControlStore
from millrace.domain.streams.control import StreamLook
from millrace.domain.streams.hosts import HOST_LOST_AFTER, Host
from millrace.domain.streams.supervision import DesiredState, StreamState
from support.stack.control_databases import ControlDatabase, Databases
from support.waiting import Deadline, at_once

WHY = {"actor": "cli:me", "reason": "a test"}
NAMES = ("alpha", "beta")


@pytest.fixture(scope="module")
def database(control_databases: Databases) -> ControlDatabase:
    return control_databases.create_upgraded()


@pytest.fixture(scope="module")
def store(database: ControlDatabase) -> Iterator[ControlStore]:
    store = ControlStore(database.working)
    yield store
    store.close()


@pytest.fixture
def stream(store: ControlStore) -> str:
    name = f"shop.s{uuid.uuid4().hex[:8]}"
    store.streams.set_desired(name, state=DesiredState.RUNNING, **WHY)
    return name


@pytest.fixture
def alpha() -> Host:
    return Host(uuid.uuid4().hex, "alpha", "boot a")


@pytest.fixture
def beta() -> Host:
    return Host(uuid.uuid4().hex, "beta", "boot b")


def age(database: ControlDatabase, host: Host, by: timedelta) -> None:
    """Have all signs of a host be older."""
    with psycopg.connect(**database.owner.keywords()) as connection:  # type: ignore[arg-type]
        connection.execute("UPDATE host SET seen_at = seen_at - %s WHERE id = %s", (by, host.identity))
        connection.execute("UPDATE app_heartbeat SET at = at - %s WHERE host = %s", (by, host.identity))


def owner(store: ControlStore, stream: str) -> str | None:
    wanted = store.streams.desired(stream)
    assert wanted is not None
    return wanted.host


def test_the_first_start_has_a_stream_belong_to_its_host_and_no_other_starts_it(
    store: ControlStore, stream: str, alpha: Host, beta: Host
) -> None:
    assert owner(store, stream) is None
    starts: list[Callable[[], object]] = [
        lambda host=host: store.streams.raise_epoch(stream, 0, host=host.identity) for host in (alpha, beta) * 3
    ]
    assert sorted(map(str, at_once(starts, within=Deadline.COMMAND, what="six starts"))) == ["1", *["None"] * 5]
    [other] = {alpha.identity, beta.identity} - {owner(store, stream)}
    assert store.streams.raise_epoch(stream, 1, host=other) is None
    assert not store.streams.claim(stream, 1, "an instance", other)
    assert store.streams.claimed(stream, 1) is None


def test_one_of_many_hosts_adopts_a_stream_and_its_former_host_claims_nothing_more(
    store: ControlStore, stream: str, alpha: Host
) -> None:
    assert store.streams.raise_epoch(stream, 0, host=alpha.identity) == 1
    store.streams.record_submitted(stream, 1, runner="process")
    seen = store.streams.desired(stream)
    assert seen is not None
    hosts = [Host(uuid.uuid4().hex, f"h{number}", "") for number in range(6)]
    adopting: list[Callable[[], object]] = [
        lambda host=host: store.hosts.adopt(seen, host, lost_after=HOST_LOST_AFTER, names=NAMES, **WHY)
        for host in hosts
    ]
    answers = at_once(adopting, within=Deadline.COMMAND, what="six adoptions")
    assert sorted(map(bool, answers)) == [False] * 5 + [True]
    assert owner(store, stream) == hosts[answers.index(True)].identity
    [attempt] = store.streams.attempts(stream)
    assert (attempt.outcome, attempt.detail) == ("host lost", "adopted from alpha")
    assert not store.streams.claim(stream, 1, "a late app of alpha", alpha.identity)
    [entry] = [found for found in store.log.list(subject=stream) if found.action == "stream.adopt"]
    assert (entry.actor, entry.reason, entry.before, entry.after) == (
        "cli:me", "a test", {"host": "alpha"}, {"host": "beta"},
    )  # fmt: skip


def test_a_stream_found_alive_is_taken_only_from_whom_it_was_thought_to_belong(
    store: ControlStore, stream: str, alpha: Host, beta: Host
) -> None:
    assert store.hosts.take(stream, alpha, was=None)
    assert not store.hosts.take(stream, beta, was=None)
    assert store.hosts.take(stream, beta, was=alpha.identity, epoch=8)
    assert owner(store, stream) == beta.identity
    wanted = store.streams.desired(stream)
    assert wanted is not None
    assert wanted.epoch == 8


def test_a_heartbeat_is_that_of_the_newest_epoch(
    store: ControlStore, stream: str, alpha: Host, beta: Host, database: ControlDatabase
) -> None:
    assert store.hosts.sign(alpha.identity) is None
    assert store.hosts.heartbeat(stream) is None
    store.hosts.give_sign(beta)
    assert store.hosts.beat(stream, 2, "second", beta, phase="running", step="batch 7: copy")
    assert not store.hosts.beat(stream, 1, "first", alpha, phase="running", step="batch 9: copy")
    found = store.hosts.heartbeat(stream)
    assert found is not None
    assert (found.epoch, found.instance, found.host, found.step) == (2, "second", beta.identity, "batch 7: copy")
    assert found.is_fresh
    age(database, beta, timedelta(minutes=6))
    older, sign = store.hosts.heartbeat(stream), store.hosts.sign(beta.identity)
    assert older is not None
    assert not older.is_fresh
    assert sign is not None
    assert sign.name == "beta"
    assert older.age >= timedelta(minutes=6)
    assert sign.age > HOST_LOST_AFTER
    store.hosts.give_sign(replace(beta, name="beta-renamed"))
    renewed = store.hosts.sign(beta.identity)
    assert renewed is not None
    assert (renewed.name, renewed.age < timedelta(minutes=1)) == ("beta-renamed", True)


@pytest.mark.parametrize("change", ["a start", "a sign of supervision", "a heartbeat", "a wish"])
def test_an_adoption_fails_where_the_stream_changes_after_it_was_decided(
    store: ControlStore, stream: str, alpha: Host, beta: Host, change: str
) -> None:
    assert store.streams.raise_epoch(stream, 0, host=alpha.identity) == 1
    seen = store.streams.desired(stream)
    assert seen is not None
    if change == "a start":
        store.streams.raise_epoch(stream, 1, host=alpha.identity)
    elif change == "a sign of supervision":
        store.hosts.give_sign(alpha)
    elif change == "a heartbeat":
        store.hosts.beat(stream, 1, "app", alpha, phase="running", step="")
    else:
        store.streams.set_desired(stream, state=DesiredState.STOPPED, **WHY)
    assert not store.hosts.adopt(seen, beta, lost_after=HOST_LOST_AFTER, names=NAMES, **WHY)
    assert owner(store, stream) == alpha.identity


def test_a_stream_at_rest_is_adopted_only_without_an_open_attempt(
    store: ControlStore, stream: str, alpha: Host
) -> None:
    seen = store.streams.set_desired(stream, state=DesiredState.STOPPED, **WHY)
    store.streams.record_submitted(stream, 1, runner="process")
    assert not store.hosts.adopt(seen, alpha, lost_after=None, names=NAMES, **WHY)
    store.streams.record_ended(stream, 1, outcome="stopped (0)", exit_code=0)
    assert store.hosts.adopt(seen, alpha, lost_after=None, names=NAMES, **WHY)


def test_an_app_learns_by_its_heartbeat_that_it_must_end(
    store: ControlStore, stream: str, alpha: Host, beta: Host
) -> None:
    def may_live() -> bool:
        return store.hosts.beat(stream, 1, "app", alpha, phase="running", step="")

    assert store.streams.raise_epoch(stream, 0, host=alpha.identity) == 1
    assert may_live()
    store.streams.set_desired(stream, state=DesiredState.STOPPED, **WHY)
    assert not may_live()
    store.streams.set_desired(stream, state=DesiredState.RUNNING, **WHY)
    assert may_live()
    assert store.hosts.take(stream, beta, was=alpha.identity)
    assert not may_live()


def test_an_app_of_the_same_identity_elsewhere_is_found_until_it_ends(
    store: ControlStore, stream: str, alpha: Host
) -> None:
    copied = replace(alpha, name="beta", namespace="boot b")
    store.hosts.beat(stream, 1, "app", alpha, phase="running", step="")
    assert store.hosts.newest_of_twin(alpha) is None
    found = store.hosts.newest_of_twin(copied)
    assert found is not None
    assert (found.stream, found.is_fresh) == (stream, True)
    store.hosts.beat(stream, 1, "app", alpha, phase="ended", step="")
    assert store.hosts.newest_of_twin(copied) is None


def test_a_stop_at_once_is_stored_with_the_wish_and_forgotten_by_the_next(store: ControlStore, stream: str) -> None:
    assert store.streams.set_desired(stream, state=DesiredState.STOPPED, end_now=True, **WHY).end_now
    assert store.streams.set_desired(stream, accept_recreated=True, **WHY).end_now
    assert not store.streams.set_desired(stream, state=DesiredState.STOPPED, **WHY).end_now


def test_the_look_of_a_new_host_is_kept_although_its_clock_is_minutes_behind(store: ControlStore, stream: str) -> None:
    wish = store.streams.desired(stream)
    assert wish is not None
    before = StreamLook(stream, wish.changed_at, StreamState.RUNNING, 1, None, "", None, wish.changed_at, "alpha")
    store.streams.save_look(before)
    adopted = replace(before, at=before.at - timedelta(minutes=5), epoch=2, host="beta")
    store.streams.save_look(adopted)
    store.streams.save_look(replace(adopted, at=adopted.at - timedelta(seconds=1), epoch=1))
    assert store.streams.look(stream) == adopted


def test_a_look_that_knows_a_later_wish_is_kept_although_the_hosts_clock_was_set_back(
    store: ControlStore, stream: str
) -> None:
    wish = store.streams.desired(stream)
    assert wish is not None
    store.streams.save_look(
        StreamLook(stream, wish.changed_at, StreamState.RUNNING, 1, None, "", None, wish.changed_at, "alpha")
    )
    later = store.streams.set_desired(stream, state=DesiredState.STOPPED, **WHY)
    set_back = wish.changed_at - timedelta(hours=1)
    stopped = StreamLook(stream, set_back, StreamState.STOPPED, 1, None, "", None, later.changed_at, "alpha")
    store.streams.save_look(stopped)
    assert store.streams.look(stream) == stopped
