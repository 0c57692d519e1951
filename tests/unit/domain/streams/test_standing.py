"""What people are told of a stream: whether somebody has to act, and why."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from millrace.domain.alarms.alarm import Alarm
from millrace.domain.streams.control import Attempt, DesiredStream, StreamLook, StreamProgress
from millrace.domain.streams.standing import Level, StreamFacts, former_error, standing
from millrace.domain.streams.supervision import DesiredState, ExitReason, StreamState

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
STREAM = "shop.purchases"
WANTED = DesiredStream(STREAM, DesiredState.RUNNING, 3, False, None, NOW, "airflow:ann", "the new season")
SEEN = StreamLook(STREAM, NOW - timedelta(seconds=10), StreamState.RUNNING, 3, NOW, "", None)
BATCH = StreamProgress(STREAM, 3, 1, NOW, 7, 1000, 1000, 0, 1.0, None, {}, lag=0)
WELL = StreamFacts(STREAM, WANTED, SEEN, BATCH)


def seen(state: StreamState, why: str = "") -> StreamFacts:
    """A stream that is wanted running and was seen so."""
    return replace(WELL, look=replace(SEEN, state=state, why=why))


def alarm(kind: str, detail: str) -> Alarm:
    return Alarm(1, kind, STREAM, detail, NOW, None, None)


CASES = {
    "runs": (WELL, Level.FINE, ""),
    "given up": (seen(StreamState.GIVEN_UP, "its app is wrong"), Level.WRONG, "its app is wrong"),
    "recreated": (seen(StreamState.RECREATED, "a topic was made again"), Level.WRONG, "a topic was made again"),
    "stuck": (seen(StreamState.STUCK, "waits for a lock of bob"), Level.WRONG, "waits for a lock of bob"),
    "backing off": (seen(StreamState.BACKING_OFF, "it ended once"), Level.WARNING, "it ended once"),
    "undeclared": (seen(StreamState.UNDECLARED), Level.WARNING, "undeclared"),
    "starting": (seen(StreamState.STARTING), Level.CHANGING, "starting"),
    "not yet started": (seen(StreamState.STOPPED), Level.CHANGING, "not started yet"),
    "never looked at": (replace(WELL, look=None), Level.WRONG, "nothing supervises it"),
    "looked at long ago": (
        replace(WELL, look=replace(SEEN, at=NOW - timedelta(minutes=11))),
        Level.WRONG,
        "nothing supervises it",
    ),
    "stopped by somebody": (
        replace(
            seen(StreamState.STOPPED),
            desired=replace(WANTED, state=DesiredState.STOPPED, changed_by="cli:bob", reason="the sink is full"),
        ),
        Level.OFF,
        "stopped by cli:bob: the sink is full",
    ),
    "stopped and looked at long ago": (
        replace(
            WELL,
            desired=replace(WANTED, state=DesiredState.STOPPED),
            look=replace(SEEN, state=StreamState.STOPPED, at=NOW - timedelta(days=3)),
        ),
        Level.OFF,
        "stopped by",
    ),
    "stops": (
        replace(seen(StreamState.DRAINING, "finishes"), desired=replace(WANTED, state=DesiredState.STOPPED)),
        Level.CHANGING,
        "finishes",
    ),
    "never started": (replace(seen(StreamState.STOPPED), desired=None), Level.OFF, "never started"),
    "bad records": (replace(WELL, quarantined=1234), Level.WARNING, "1,234 bad records in the last hour"),
    "an alarm": (replace(WELL, alarms=[alarm("stream.died", "epoch 2")]), Level.WARNING, "alarm stream.died: epoch 2"),
    "behind": (
        replace(WELL, progress=replace(BATCH, lag=600_000)),
        Level.WARNING,
        "behind by 600,000 records, about 10 min at the pace of its last batch",
    ),
    "behind and reading nothing": (
        replace(WELL, progress=replace(BATCH, lag=5, rows_in=0)),
        Level.WARNING,
        "behind by 5 records, and its last batch read none",
    ),
    "a lag that is soon read": (replace(WELL, progress=replace(BATCH, lag=5_000)), Level.FINE, ""),
    "a lag nobody knows": (replace(WELL, progress=replace(BATCH, lag=None)), Level.FINE, ""),
}


@pytest.mark.parametrize("case", CASES)
def test_how_it_stands(case: str) -> None:
    facts, level, why = CASES[case]
    found = standing(facts, NOW)
    assert found.level is level
    assert why in found.why if why else not found.why


def test_all_that_is_wrong_is_told_the_worst_first_and_nothing_twice() -> None:
    facts = replace(
        seen(StreamState.STUCK, "waits for a lock"),
        quarantined=3,
        alarms=[alarm("stream.stuck", "epoch 3 is stuck: waits for a lock"), alarm("stream.sink_exhausted", "disk")],
    )
    found = standing(facts, NOW)
    assert found.level is Level.WRONG
    assert found.why == "waits for a lock; alarm stream.sink_exhausted: disk; 3 bad records in the last hour"


@pytest.mark.parametrize(("code", "told"), [(ExitReason.FAILED, "epoch 3: failed. boom"), (ExitReason.STOPPED, "")])
def test_the_last_error_is_that_of_an_end_nobody_asked_for(code: ExitReason, told: str) -> None:
    end = Attempt(STREAM, 3, "process", NOW, ended_at=NOW, exit_code=code, outcome=code.name.lower(), detail="boom")
    assert replace(WELL, last_end=end).last_error == told
    former = replace(end, epoch=2)
    assert replace(WELL, last_end=former).last_error == ""
    assert former_error(former, 3) == told.replace("epoch 3", "epoch 2")
