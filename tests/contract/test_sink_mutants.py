"""The guards between two writers are noticed when they are gone: each scenario goes wrong with its mutant only.

At the sink's contract, on a real PostgreSQL; the drills show the same with whole drivers.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from millrace.adapters.control_db import ControlStore
from millrace.adapters.control_migrations import upgrade
from millrace.adapters.postgres_connection import connect
from millrace.adapters.postgres_fence import Identity
from millrace.adapters.postgres_sink import PostgresSink
from millrace.embedded.stack import Stack
from millrace.errors import FencedError
from millrace.settings import PostgresSettings, open_settings
from support.control_databases import Databases
from support.drills_points import EPOCH_IGNORED, NO_COMPARE_AND_SET, NO_FENCE
from support.faults import put_in
from support.sink_writer import COLUMNS, P0, Writer


@dataclass
class Scene:
    """One stream's tables, and what its writers have left in them."""

    database: PostgresSettings
    control: ControlStore
    name: str
    admin: psycopg.Connection[Any]

    @property
    def stream(self) -> str:
        return f"{self.name}.s"

    def writer(self, epoch: int) -> Writer:
        return Writer(self.database, self.name, epoch)

    def another_instance(self, epoch: int) -> PostgresSink:
        return PostgresSink(self.database, Identity(self.stream, epoch, "another"), f"{self.name}.rows")

    def state(self) -> dict[str, list[tuple[Any, ...]]]:
        """Everything a writer could have changed, with the transactions that wrote it."""
        asked = {
            "rows": f"SELECT xmin::text, _offset, name FROM {self.name}.rows ORDER BY 2",
            "record": f"SELECT timeline, next_offset FROM millrace.progress WHERE stream = '{self.stream}' ORDER BY 1",
            "fence": f"SELECT epoch, instance FROM millrace.fence WHERE stream = '{self.stream}'",
        }
        return {what: self.admin.execute(query).fetchall() for what, query in asked.items()}

    def changed_since(self, before: dict[str, list[tuple[Any, ...]]]) -> list[str]:
        return [f"{what}: {before[what]} became {now}" for what, now in self.state().items() if now != before[what]]


def not_fenced(what: str, call: Callable[[], object]) -> list[str]:
    try:
        call()
    except FencedError:
        return []
    return [f"{what} was not fenced"]


def late_writer(scene: Scene) -> list[str]:
    """An older epoch wakes with a staged batch and a new connection, when the next one has just taken over.

    Ending its backends cannot help here: the new one came after. Only the fence row does.
    """
    old = scene.writer(1).ready()
    old.commit(0, 2)
    old.sink.empty_staging()
    old.stage(range(2, 4))
    scene.writer(2).sink.take_over()
    old.sink.close()
    before = scene.state()
    return [
        *not_fenced("the late batch", lambda: old.merge(2, 4, rows=2)),
        *not_fenced("the late timeline", lambda: old.sink.open_positions(2, {P0: 0})),
        *scene.changed_since(before),
    ]


def one_range_by_two(scene: Scene) -> list[str]:
    """Two processes of one submission, so the fence lets both write; one comes with a range that the other has done."""
    first, twin = scene.writer(1).ready(), scene.writer(1).ready()
    twin.commit(0, 3, value="twin")
    twin.commit(3, 6, value="twin")
    before = scene.state()
    first.sink.prepare(COLUMNS)
    first.commit(0, 3, value="late")
    return scene.changed_since(before)


def intruders(scene: Scene) -> list[str]:
    """Another instance of the running epoch, and one of an older epoch: both leave the running writer alone."""
    running = scene.writer(2).ready()
    running.commit(0, 2)
    before = scene.state()
    wrong = [
        *not_fenced("another instance", scene.another_instance(2).take_over),
        *not_fenced("an older epoch", scene.writer(1).sink.take_over),
        *scene.changed_since(before),
    ]
    try:
        running.commit(2, 4)
    except FencedError as error:
        wrong.append(f"the running writer was fenced: {error.what}")
    return wrong


def two_claims(scene: Scene) -> list[str]:
    """Of two instances of one epoch the control database lets the first through, however often it asks."""
    claim = scene.control.streams.claim
    answers = [claim(scene.stream, 1, instance, "here") for instance in ("first", "first", "another")]
    return [] if answers == [True, True, False] else [f"claims were answered with {answers}"]


GUARDED = (
    pytest.param(late_writer, NO_FENCE, id="late writer"),
    pytest.param(one_range_by_two, NO_COMPARE_AND_SET, id="one range by two"),
    pytest.param(intruders, EPOCH_IGNORED, id="intruders"),
    pytest.param(two_claims, EPOCH_IGNORED, id="two claims"),
)
Scenario = Callable[[Scene], list[str]]


@pytest.fixture(scope="module")
def control(control_databases: Databases) -> Iterator[ControlStore]:
    database = control_databases.create()
    upgrade(database.owner, database.working.user)
    store = ControlStore(database.working)
    yield store
    store.close()


@pytest.fixture
def scene(postgres: Stack, control: ControlStore) -> Iterator[Scene]:
    database = open_settings(postgres.root).postgres("millrace_sink")
    name = f"t{uuid.uuid4().hex[:10]}"
    with connect(database, "test") as admin:
        admin.autocommit = True
        yield Scene(database, control, name, admin)
        admin.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")


@pytest.mark.parametrize(("scenario", "mutant"), GUARDED)
def test_two_writers_do_no_harm(scene: Scene, scenario: Scenario, mutant: str) -> None:
    assert scenario(scene) == []


@pytest.mark.parametrize(("scenario", "mutant"), GUARDED)
def test_a_guard_that_is_gone_is_noticed(
    scene: Scene, scenario: Scenario, mutant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in(monkeypatch, mutant)
    assert scenario(scene), f"nobody notices the mutant `{mutant}`"
