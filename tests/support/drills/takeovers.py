"""Two drivers at once, and what the older one leaves: nothing. Each scenario returns what went wrong.

Two project folders stand for two machines: neither sees the processes of the other, so an app that is stopped or
forgotten on one is taken over from the other.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import sql

from millrace.domain.streams.supervision import ExitReason
from support.drills.crashes import Drill, Order, freeze, submit_again, thaw
from support.drills.points import AFTER_GROUP, BEFORE_COPY, BEFORE_SINK, FORGOTTEN, IN_MERGE, TAKEN_OVER
from support.streams.project import committed

GONE = (ExitReason.FENCED, ExitReason.MEMBERSHIP_LOST)
BETWEEN_BATCHES, INSIDE_COPY, IN_TRANSACTION = "between batches", "inside COPY to staging", "in the merge transaction"
_HELD_AT = {BETWEEN_BATCHES: AFTER_GROUP, INSIDE_COPY: BEFORE_COPY, IN_TRANSACTION: IN_MERGE}


def state_of_sink(drill: Drill) -> list[tuple[Any, ...]]:
    """Everything a writer could have changed: rows with their transaction ids, quarantine, record of work, fence."""
    name, stream = drill.project.name, drill.project.stream
    rows = drill.project.query(
        f"SELECT count(*), md5(string_agg(concat_ws(',', xmin, _partition, _offset, _timeline, id, amount), ';' "
        f"ORDER BY _partition, _offset)) FROM {name}.rows"
    )
    bad = drill.project.query("SELECT count(*), max(xmin::text) FROM millrace.quarantine WHERE stream = %s", stream)
    record = drill.project.query(
        "SELECT timeline, partition, next_offset, epoch, xmin::text FROM millrace.progress WHERE stream = %s "
        "ORDER BY 1, 2",
        stream,
    )
    fence = drill.project.query("SELECT epoch, instance FROM millrace.fence WHERE stream = %s", stream)
    return [*rows, *bad, *record, *fence]


def stopped_and_woken(old: Drill, new: Drill, where: str) -> tuple[float, str, list[str]]:
    """SIGSTOP a driver, let the next epoch take over and finish, SIGCONT.

    Returns:
        Seconds until the takeover, how the old driver ended, and what went wrong.
    """
    epoch = old.running_alone().epoch
    held = Order(_HELD_AT[where])
    old.order(held)
    old.project.produce(2 * old.project.batch, first=old.done())
    old.reached(held, supervising=False)
    victims = _freeze_inside_copy(old, held, epoch) if where == INSIDE_COPY else freeze(old.project, epoch)
    old.order()
    began = time.monotonic()
    new.start()
    new.eventually(lambda: _fence(new) > epoch, what="the fence to be raised")
    seconds = time.monotonic() - began
    new.eventually(new.settled, what="the new epoch to do all there is")
    before, group = state_of_sink(new), committed(new.project)
    old.go_on(held)
    thaw(victims)
    ended = _end_of(old, epoch)
    return seconds, ended, _left_traces(new, before, group) + _must_end(ended, GONE)


def _freeze_inside_copy(old: Drill, held: Order, epoch: int) -> Sequence[Any]:
    """Let the COPY begin and wait for a lock, stop the driver, and let the server go on: it waits for rows."""
    staging = sql.Identifier("millrace_staging", f"{old.project.stream}#{epoch}")
    with psycopg.connect(**old.project.sink.keywords()) as locking:  # type: ignore[arg-type]
        locking.execute(sql.SQL("LOCK TABLE {} IN SHARE MODE").format(staging))
        old.go_on(held)
        old.eventually(lambda: _copying(old, epoch, "Lock"), what="COPY to wait for the lock", supervising=False)
        victims = freeze(old.project, epoch)
    old.eventually(lambda: _copying(old, epoch, "Client"), what="COPY to wait for rows", supervising=False)
    return victims


def _copying(drill: Drill, epoch: int, waits_for: str) -> int:
    found = drill.project.query(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND query LIKE 'COPY%%' "
        "AND state = 'active' AND wait_event_type = %s",
        f"{drill.project.stream}#{epoch}",
        waits_for,
    )
    return int(found[0][0])


def late_writer(old: Drill, new: Drill) -> list[str]:
    """A stopped writer wakes with a batch and a new connection, when the next epoch has just raised the fence.

    Ending the old backends cannot help here: there is none. Only the fence row does.
    """
    epoch = old.running_alone().epoch
    held = Order(BEFORE_SINK, reconnect=True)
    old.order(held)
    old.project.produce(2 * old.project.batch, first=old.done())
    old.reached(held, supervising=False)
    victims = freeze(old.project, epoch)
    taken = Order(TAKEN_OVER)
    new.order(taken)
    new.start()
    new.reached(taken)
    before, group = state_of_sink(new), committed(new.project)
    old.go_on(held)
    thaw(victims)
    _ended_or_left_traces(old, epoch, before)
    if traces := _left_traces(new, before, group):
        return traces
    ended = _end_of(old, epoch)
    new.go_on(taken)
    return _must_end(ended, GONE)


def two_of_one_epoch(old: Drill, twin: Drill) -> list[str]:
    """The same submission runs twice, as when its answer was lost between machines; the first is in a batch."""
    app = old.running_alone()
    held = Order(BEFORE_SINK)
    old.order(held)
    old.project.produce(4 * old.project.batch, first=old.done())
    old.reached(held, supervising=False)
    submit_again(twin.project, app.epoch, app.instance)
    twin.eventually(twin.settled, what="the twin to do all there is", supervising=False)
    before, group = state_of_sink(twin), committed(twin.project)
    old.go_on(held)
    ended = _end_of(old, app.epoch)
    return _left_traces(twin, before, group) + _must_end(ended, GONE)


def intruders(running: Drill, other: Drill) -> list[str]:
    """Another instance of the running epoch, and one of an epoch long gone: both leave the running app alone."""
    app = running.running_alone()
    running.eventually(running.settled, what="all records", supervising=False)
    before, group = state_of_sink(running), committed(running.project)
    wrong: list[str] = []
    for epoch, reason in ((app.epoch, ExitReason.CLAIM_LOST), (0, ExitReason.FENCED)):
        submit_again(other.project, epoch, "e" * 32)
        _ended_or_left_traces(other, epoch, before)
        if traces := _left_traces(running, before, group):
            return wrong + traces
        wrong += _must_end(_end_of(other, epoch), (reason,))
    return wrong


def _ended_or_left_traces(drill: Drill, epoch: int, before: list[tuple[Any, ...]]) -> None:
    """Wait for the end of a driver that must write nothing; one that writes may well go on for ever."""
    drill.eventually(
        lambda: drill.exit_code(epoch) is not None or state_of_sink(drill) != before,
        what=f"the end of epoch {epoch}",
        supervising=False,
    )


def _end_of(drill: Drill, epoch: int) -> str:
    drill.eventually(lambda: drill.exit_code(epoch) is not None, what=f"the end of epoch {epoch}", supervising=False)
    code = drill.exit_code(epoch)
    assert code != FORGOTTEN, f"epoch {epoch} was held at its point for too long: this drill shows nothing"
    return next((reason.name for reason in ExitReason if reason == code), str(code))


def _must_end(ended: str, reasons: Sequence[ExitReason]) -> list[str]:
    return [] if ended in {reason.name for reason in reasons} else [f"the older driver ended with {ended}"]


def _left_traces(drill: Drill, before: list[tuple[Any, ...]], group: dict[int, int]) -> list[str]:
    after = state_of_sink(drill)
    wrong = [f"{was} became {now}" for was, now in zip(before, after, strict=False) if was != now]
    if len(before) != len(after):
        wrong.append(f"{len(after)} lines of state, there were {len(before)}")
    now = committed(drill.project)
    return wrong + ([f"the group's commits {group} became {now}"] if now != group else [])


def _fence(drill: Drill) -> int:
    found = drill.project.query("SELECT epoch FROM millrace.fence WHERE stream = %s", drill.project.stream)
    return int(found[0][0])
