"""What the pages read, against a real PostgreSQL: figures, the number of statements, and a server that is slow."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
import sqlalchemy as sa

from millrace.adapters.control.pages import PageReader
from millrace.adapters.control.store import ControlStore
from millrace.domain.plans.plan import Change, Plan, PlanKind, PlanStatus
from millrace.domain.streams.control import BatchSecond, StreamLook, StreamProgress
from millrace.domain.streams.standing import StreamFacts
from millrace.domain.streams.supervision import DesiredState, StreamState
from millrace.errors import StalePlanError, UnreachableError
from support.checks.tiers import examples
from support.stack.control_databases import ControlDatabase, Databases
from support.waiting import Deadline, eventually, in_background, result_of

NOW = datetime.now(UTC).replace(microsecond=0)
PATIENT = timedelta(seconds=30)


@pytest.fixture(scope="module")
def database(control_databases: Databases) -> ControlDatabase:
    return control_databases.create_upgraded()


@pytest.fixture(scope="module")
def store(database: ControlDatabase) -> Iterator[ControlStore]:
    opened = ControlStore(database.working)
    yield opened
    opened.close()


@pytest.fixture
def stream() -> str:
    return f"shop.s{uuid.uuid4().hex[:8]}"


def progress(stream: str, at: datetime = NOW, epoch: int = 2, batch_id: int = 7) -> StreamProgress:
    return StreamProgress(stream, epoch, 1, at, batch_id, 100, 90, 10, 0.5, None, {"shop.purchases/0": 100}, lag=40)


def seconds(stream: str, *numbers: int, quarantined: int = 0, epoch: int = 2) -> list[BatchSecond]:
    """Seconds of history so many seconds ago, each with two batches."""
    steps = {"plan": 0.1, "copy": 0.6, "merge": 0.3}
    return [
        BatchSecond(stream, epoch, NOW - timedelta(seconds=ago), 2, 100, 90, quarantined, 1.0, steps, ago)
        for ago in numbers
    ]


def put(store: ControlStore, stream: str) -> None:
    """A stream with all there can be of one."""
    store.streams.set_desired(stream, actor="airflow:ann", reason="the new season", state=DesiredState.RUNNING)
    for epoch in (1, 2):
        store.streams.record_submitted(stream, epoch, runner="process", instance=f"i{epoch}")
    store.streams.record_ended(stream, 1, outcome="failed (1)", exit_code=1, detail="boom")
    store.streams.save_look(StreamLook(stream, NOW, StreamState.RUNNING, 2, NOW, "", None))
    store.streams.save_progress(progress(stream), seconds(stream, 30, 20, quarantined=5))
    store.alarms.open("stream.died", stream, "epoch 1 ended")


def facts(database: ControlDatabase, stream: str | None = None) -> dict[str, StreamFacts]:
    with PageReader(database.working, PATIENT).page() as page:
        return page.facts(NOW + timedelta(seconds=1), stream)


@contextmanager
def counting() -> Iterator[list[str]]:
    """The statements that are sent meanwhile, by any engine."""
    sent: list[str] = []

    def note(connection: object, cursor: object, statement: str, *others: object) -> None:
        sent.append(statement)

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)


def test_a_page_has_all_that_is_written_down_of_a_stream(
    store: ControlStore, database: ControlDatabase, stream: str
) -> None:
    put(store, stream)
    found = facts(database)[stream]
    assert facts(database, stream) == {stream: found}
    assert found.desired == store.streams.desired(stream)
    assert found.look == store.streams.look(stream)
    assert found.progress == progress(stream)
    assert (found.last_error, found.former_error) == ("", "epoch 1: failed (1). boom")
    assert [alarm.kind for alarm in found.alarms] == ["stream.died"]
    assert found.quarantined == 10


def test_a_page_takes_as_many_statements_for_many_streams_as_for_3(control_databases: Databases) -> None:
    made = control_databases.create_upgraded()
    store = ControlStore(made.working)
    taken = []
    for first, last in ((0, 3), (3, examples(200))):
        for number in range(first, last):
            put(store, f"shop.s{number}")
        with counting() as sent:
            found = facts(made)
        assert len(found) == last
        assert all(each.progress and each.look and each.last_end and each.alarms for each in found.values())
        taken.append(len(sent))
    store.close()
    assert taken == [6, 6]


def test_history_is_put_together_in_parts_of_a_time(
    store: ControlStore, database: ControlDatabase, stream: str
) -> None:
    put(store, stream)
    store.streams.save_progress(progress(stream), seconds(stream, 95, 90, 10))
    since = NOW - timedelta(seconds=120)
    with PageReader(database.working, PATIENT).page() as page:
        found = page.history(stream, since=since, bucket=timedelta(seconds=30), attempts=1, actions=5)
    assert [(part.at - since).seconds for part in found.buckets] == [0, 30, 90]
    first, _, last = found.buckets
    assert (first.batches, first.rows_in, first.rows_out, first.lag) == (2, 100, 90, 95)
    assert (last.batches, last.rows_in, last.quarantined, last.lag) == (6, 300, 10, 30)
    assert last.steps == pytest.approx({"plan": 0.3, "copy": 1.8, "merge": 0.9, "check": 0, "group": 0})
    assert [attempt.epoch for attempt in found.attempts] == [2]
    assert [action.action for action in found.actions] == ["stream.start"]


def test_a_second_that_is_saved_again_takes_its_own_place_and_keeps_a_known_lag(
    store: ControlStore, database: ControlDatabase, stream: str
) -> None:
    [second] = seconds(stream, 10)
    for batches, lag in ((1, 40), (3, None)):
        store.streams.save_progress(progress(stream), [replace(second, batches=batches, rows_in=7 * batches, lag=lag)])
    with PageReader(database.working, PATIENT).page() as page:
        since = NOW - timedelta(minutes=1)
        found = page.history(stream, since=since, bucket=timedelta(minutes=1), attempts=1, actions=1)
    [part] = found.buckets
    assert (part.batches, part.rows_in, part.lag) == (3, 21, 40)


def test_an_epoch_that_is_over_writes_no_history(store: ControlStore, database: ControlDatabase, stream: str) -> None:
    assert store.streams.save_progress(progress(stream, epoch=2), seconds(stream, 5))
    assert not store.streams.save_progress(progress(stream, epoch=1), seconds(stream, 6, 7, epoch=1))
    with PageReader(database.working, PATIENT).page() as page:
        since = NOW - timedelta(minutes=1)
        found = page.history(stream, since=since, bucket=timedelta(minutes=1), attempts=1, actions=1)
    assert [part.batches for part in found.buckets] == [2]


def test_history_is_forgotten_by_age_and_in_bounded_parts(
    store: ControlStore, database: ControlDatabase, stream: str
) -> None:
    old = [replace(second, at=second.at - timedelta(days=2)) for second in seconds(stream, *range(10))]
    store.streams.save_progress(progress(stream), [*old, *seconds(stream, 1, 2, 3)])
    before = NOW - timedelta(days=1)
    taken = [store.streams.forget_history(before, at_most=4) for _ in range(4)]
    assert (taken, sum(taken)) == ([4, 4, 2, 0], 10)
    with PageReader(database.working, PATIENT).page() as page:
        found = page.history(stream, since=NOW - timedelta(days=3), bucket=timedelta(days=4), attempts=1, actions=1)
    assert [part.batches for part in found.buckets] == [6]


def test_a_look_is_not_covered_by_an_older_one_and_forgotten_once_nobody_wants_the_stream(
    store: ControlStore, stream: str
) -> None:
    wanted = f"{stream}w"
    store.streams.set_desired(wanted, actor="cli:ann", reason="to be kept", state=DesiredState.STOPPED)
    look = StreamLook(stream, NOW, StreamState.STOPPED, None, None, "never started", None)
    for name in (stream, wanted):
        store.streams.save_look(replace(look, stream=name))
        store.streams.save_look(replace(look, stream=name, at=NOW - timedelta(seconds=1), why="old"))
        assert store.streams.look(name) == replace(look, stream=name)
    assert store.streams.forget_looks(NOW + timedelta(seconds=1)) == 1
    assert store.streams.look(stream) is None
    assert store.streams.look(wanted)


def plan(target: str, kind: PlanKind = PlanKind.TOPICS, hours: int = 0) -> Plan:
    created = NOW + timedelta(hours=hours)
    change = Change("topic.create", f"{target}.t", (("exists", "no"),), (("partitions", str(hours)),))
    return Plan(
        kind, target, "c1", "millrace_kafka", (change,), (), created, created + timedelta(days=1), "cli:ann", "why"
    )


def test_plans_are_read_newest_first_and_one_that_was_tampered_with_is_told(
    store: ControlStore, database: ControlDatabase, stream: str
) -> None:
    mine = [store.plans.add(plan(stream, hours=hours)) for hours in (1, 2)]
    other = store.plans.add(plan(f"{stream}x", PlanKind.REWIND, hours=3))
    store.plans.begin(mine[1].id)
    store.plans.begin_step(mine[1].id, "look", (("seen", "1"),))
    store.plans.finish(mine[1].id, PlanStatus.DONE)
    with PageReader(database.working, PATIENT).page() as page:
        assert [found.id for found in page.plan_summaries(limit=3)] == [other.id, mine[1].id, mine[0].id]
        of_stream = page.plan_summaries(limit=5, target=stream)
        assert [(found.id, found.status) for found in of_stream] == [
            (mine[1].id, PlanStatus.DONE),
            (mine[0].id, PlanStatus.OPEN),
        ]
        assert (of_stream[0].by, of_stream[0].created, of_stream[0].reason) == ("cli:ann", mine[1].created, "why")
        assert [found.id for found in page.plan_summaries(limit=1, kind=PlanKind.TOPICS)] == [mine[1].id]
        assert [found.id for found in page.plan_summaries(limit=1, plan_id=mine[0].id)] == [mine[0].id]
        newest = page.newest_plans(PlanKind.TOPICS)
        assert newest[stream] == of_stream[0]
        assert f"{stream}x" not in newest
        assert [found.plan for found in page.plans(PlanKind.TOPICS, stream, limit=5)] == mine[::-1]
        one = page.plan(mine[1].id)
        assert one
        assert [step.name for step in one.steps] == ["look"]
        assert page.plan("topics-nothing") is None
    with psycopg.connect(**database.owner.keywords()) as owner:
        owner.execute('update plan set body = body || \'{"by": "mallory"}\' where id = %s', (mine[1].id,))
    with PageReader(database.working, PATIENT).page() as page:
        assert [found.plan for found in page.plans(PlanKind.TOPICS, stream, limit=5)] == [mine[0]]
        with pytest.raises(StalePlanError):
            page.plan(mine[1].id)


def test_a_page_that_would_wait_for_a_lock_is_given_up_soon(
    store: ControlStore, database: ControlDatabase, stream: str
) -> None:
    put(store, stream)
    with psycopg.connect(**database.owner.keywords()) as holder:
        holder.execute("lock table stream_look in access exclusive mode")
        reader = PageReader(database.working, timedelta(seconds=0.3))

        def ask() -> None:
            with reader.page() as page:
                page.facts(NOW)

        answer = in_background(ask)
        with pytest.raises(UnreachableError, match="does not answer"):
            result_of(answer, within=Deadline.METADATA, what="a page to be given up")


def test_a_page_leaves_no_connection_behind(store: ControlStore, database: ControlDatabase, stream: str) -> None:
    put(store, stream)
    facts(database)
    query = "select count(*) from pg_stat_activity where application_name = 'millrace pages' and usename = %s"
    with psycopg.connect(**database.owner.keywords(), autocommit=True) as connection:

        def none_held() -> bool:
            return connection.execute(query, (database.working.user,)).fetchone() == (0,)

        eventually(none_held, within=Deadline.METADATA, what="the page's connection to be gone")
