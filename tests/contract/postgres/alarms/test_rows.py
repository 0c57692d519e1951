"""Rows of alarms that grow, are raised again, and whose notifiers fail, on PostgreSQL."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from millrace.adapters.control.store import ControlStore
from millrace.domain.alarms.alarm import Alarm
from millrace.domain.alarms.extent import UNKNOWN, Extent
from support.stack.control_databases import Databases
from support.waiting import Deadline, at_once

LOST = "backup.lost"
TEN, MANY = Extent(10), Extent(9_000_000)


@pytest.fixture(scope="module")
def store(control_databases: Databases) -> Iterator[ControlStore]:
    store = ControlStore(control_databases.create_upgraded().working)
    yield store
    store.close()


@pytest.fixture
def topic() -> str:
    return f"orders-{uuid.uuid4().hex[:8]}"


def row_of(store: ControlStore, topic: str) -> Alarm:
    [found] = [each for each in store.alarms.list(only_open=False, limit=10_000) if each.subject == topic]
    return found


def due(store: ControlStore, topic: str) -> list[Alarm]:
    return [
        each for each in store.alarms.list(only_open=False, only_untold=True, limit=10_000) if each.subject == topic
    ]


def told(store: ControlStore, topic: str, extent: Extent = TEN) -> Alarm:
    """An alarm that people just heard of, as bad as this."""
    store.alarms.open(LOST, topic, f"{extent.measure} offsets lost", extent)
    return store.alarms.record_round(row_of(store, topic), {"log": ""})


def let_pass(store: ControlStore, topic: str, time: timedelta) -> None:
    """Move an alarm's times into the past, as if so much time had passed since."""
    names = ("opened_at", "told_at", "known_at", "raised_at", "raise_at", "retry_at", "acknowledged_at")
    moved = ", ".join(f"{name} = {name} - :time" for name in names)
    with store._engine.begin() as connection:
        connection.execute(
            sa.text(f"update alarm set {moved} where subject = :subject"), {"time": time, "subject": topic}
        )


def test_a_larger_loss_is_raised_again_once_and_the_log_says_who_had_acknowledged_it(
    store: ControlStore, topic: str
) -> None:
    alarm = told(store, topic)
    store.alarms.acknowledge(alarm.identity, actor="cli:ann", reason="looking at it")
    let_pass(store, topic, timedelta(minutes=61))
    assert [store.alarms.open(LOST, topic, "9,000,000 offsets lost", MANY) for _ in range(2)] == [True, False]
    [again] = due(store, topic)
    assert (again.detail, again.raised, again.acknowledged_by, again.told_at) == (
        "9,000,000 offsets lost",
        2,
        None,
        None,
    )
    newest = store.log.list(subject=topic)[0]
    assert (newest.action, newest.reason) == ("alarm.raise", "from 10 to 9,000,000 offsets")
    assert newest.before["acknowledged_by"] == "cli:ann"
    store.alarms.record_round(again, {"log": ""})
    assert due(store, topic) == []
    assert row_of(store, topic).known == MANY


def test_a_larger_loss_within_the_hour_is_due_when_that_is_over_though_the_alarm_was_closed(
    store: ControlStore, topic: str
) -> None:
    told(store, topic)
    assert not store.alarms.open(LOST, topic, "9,000,000 offsets lost", MANY)
    store.alarms.close(LOST, topic)
    store.alarms.raise_due()
    assert due(store, topic) == []
    let_pass(store, topic, timedelta(minutes=60))
    assert store.alarms.raise_due() == 1
    assert store.alarms.raise_due() == 0
    assert [each.detail for each in due(store, topic)] == ["9,000,000 offsets lost"]


def test_a_smaller_loss_changes_the_detail_and_nothing_else(store: ControlStore, topic: str) -> None:
    alarm = told(store, topic)
    store.alarms.open(LOST, topic, "9 offsets lost", Extent(9))
    found = row_of(store, topic)
    assert (found.detail, found.told_at, found.raised) == ("9 offsets lost", alarm.told_at, 1)


def test_of_many_who_see_the_larger_loss_at_once_one_raises_it(store: ControlStore, topic: str) -> None:
    told(store, topic)
    let_pass(store, topic, timedelta(minutes=61))
    openers = [lambda: store.alarms.open(LOST, topic, "9,000,000 offsets lost", MANY)] * 6
    assert at_once(openers, within=Deadline.THREAD, what="six openers").count(True) == 1
    assert row_of(store, topic).raised == 2


def test_an_acknowledgement_and_a_larger_loss_at_once_leave_neither_half_done(store: ControlStore, topic: str) -> None:
    alarm = told(store, topic)
    let_pass(store, topic, timedelta(minutes=61))
    acts = [
        lambda: store.alarms.open(LOST, topic, "9,000,000 offsets lost", MANY),
        lambda: store.alarms.acknowledge(alarm.identity, actor="cli:ann", reason="looking at it")[0].detail,
    ]
    raised, seen = at_once(acts, within=Deadline.THREAD, what="an opener and an acknowledgement")
    found = row_of(store, topic)
    assert raised is True
    assert found.raised == 2
    assert (found.acknowledged_by == "cli:ann") == (seen == "9,000,000 offsets lost")  # else it was of the ten


def test_a_loss_that_grew_while_people_were_told_is_not_marked_as_told(store: ControlStore, topic: str) -> None:
    store.alarms.open(LOST, topic, "10 offsets lost", TEN)
    [read] = due(store, topic)
    store.alarms.open(LOST, topic, "9,000,000 offsets lost", MANY)
    after = store.alarms.record_round(read, {"log": ""})
    assert (after.known, after.extent) == (TEN, MANY)
    let_pass(store, topic, timedelta(minutes=60))
    store.alarms.raise_due()
    assert [each.extent for each in due(store, topic)] == [MANY]


def test_an_alarm_whose_notifier_failed_is_due_when_it_is_to_be_tried_again(store: ControlStore, topic: str) -> None:
    store.alarms.open(LOST, topic, "10 offsets lost", TEN)
    for pause in (1, 5, 30):
        [alarm] = due(store, topic)
        store.alarms.record_round(alarm, {"pager": "OSError"} | ({} if alarm.notified else {"log": ""}))
        assert due(store, topic) == []
        let_pass(store, topic, timedelta(minutes=pause))
    [alarm] = due(store, topic)
    assert [(each.name, each.told, each.failed) for each in alarm.notified] == [("pager", False, 3), ("log", True, 0)]
    store.alarms.record_round(alarm, {"pager": "OSError"})
    let_pass(store, topic, timedelta(days=1))
    assert due(store, topic) == []
    assert row_of(store, topic).told_at is not None


def test_alarms_that_nobody_heard_of_come_before_retries(store: ControlStore, topic: str) -> None:
    store.alarms.open(LOST, topic, "10 offsets lost", TEN)
    store.alarms.record_round(row_of(store, topic), {"pager": "OSError"})
    let_pass(store, topic, timedelta(minutes=1))
    store.alarms.open(LOST, f"{topic}-2", "10 offsets lost", TEN)
    found = store.alarms.list(only_open=False, only_untold=True, limit=10_000)
    assert [each.subject for each in found if each.subject.startswith(topic)] == [f"{topic}-2", topic]


def test_what_an_older_release_told_stays_told_and_grows_from_what_is_seen_first(
    store: ControlStore, topic: str
) -> None:
    with store._engine.begin() as connection:
        statement = sa.text(
            "insert into alarm (kind, subject, detail, told_at) values (:kind, :subject, 'lost', now())"
        )
        connection.execute(statement, {"kind": LOST, "subject": topic})
    assert due(store, topic) == []
    let_pass(store, topic, timedelta(days=1))
    assert not store.alarms.open(LOST, topic, "10 offsets lost", TEN)
    assert not store.alarms.open(LOST, topic, "nobody knows how many", UNKNOWN)
    assert store.alarms.open(LOST, topic, "9,000,000 offsets lost", MANY)


def test_a_row_says_how_often_a_notifier_was_really_called(store: ControlStore, topic: str) -> None:
    store.alarms.open(LOST, topic, "10 offsets lost", TEN)
    store.alarms.record_round(row_of(store, topic), {"pager": "NotifierGivenUpError"}, skipped={"pager"})
    [skipped] = row_of(store, topic).notified
    store.alarms.record_round(row_of(store, topic), {"pager": "OSError"})
    [called] = row_of(store, topic).notified
    assert [(each.failed, each.called) for each in (skipped, called)] == [(1, 0), (2, 1)]


def test_a_row_that_does_not_say_how_often_a_notifier_was_called_counts_none(store: ControlStore, topic: str) -> None:
    store.alarms.open(LOST, topic, "10 offsets lost", TEN)
    with store._engine.begin() as connection:
        connection.execute(
            sa.text("update alarm set notified = cast(:notified as jsonb) where subject = :subject"),
            {"notified": '[{"name": "pager", "told": false, "failed": 2, "error": "OSError"}]', "subject": topic},
        )
    [found] = row_of(store, topic).notified
    assert (found.failed, found.called) == (2, 0)


def plans(store: ControlStore, act: Callable[[], object]) -> list[str]:
    """Return how PostgreSQL runs each query of alarms in an act."""
    asked: list[tuple[str, Any]] = []

    def keep(connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        if statement.startswith("SELECT alarm."):
            asked.append((statement, parameters))

    sa.event.listen(store._engine, "before_cursor_execute", keep)
    try:
        act()
    finally:
        sa.event.remove(store._engine, "before_cursor_execute", keep)
    with store._engine.begin() as connection:
        return ["\n".join(connection.exec_driver_sql(f"explain {text}", values).scalars()) for text, values in asked]


def test_the_poll_reads_only_alarms_that_are_due_among_a_hundred_thousand(control_databases: Databases) -> None:
    database = control_databases.create_upgraded()
    fill = (
        "insert into alarm (kind, subject, detail, told_at, closed_at) "
        "select 'stream.died', 's' || n, 'ended', now(), now() from generate_series(1, 100000) n"
    )
    for statement in (fill, "analyze alarm"):
        control_databases.execute(database.owner, statement)
    store = ControlStore(database.working)
    try:
        store.alarms.open(LOST, "orders", "10 offsets lost", TEN)
        for act in (store.alarms.raise_due, lambda: store.alarms.list(only_open=False, only_untold=True)):
            [plan] = plans(store, act)
            assert "Seq Scan" not in plan, plan
    finally:
        store.close()
