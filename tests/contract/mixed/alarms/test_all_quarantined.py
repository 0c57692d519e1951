"""A stream whose table refuses everything raises an alarm, which outlives it and ends with the first row.

Real broker, real databases, the real driver; only Spark is left out (`support.streams.driver_without_spark`).
"""

from __future__ import annotations

from dataclasses import replace

from millrace.domain.alarms.alarm import Alarm
from millrace.domain.alarms.kinds import AlarmKind
from support.disturbed import DisturbedLife
from support.stack.faults import Life
from support.streams.crashed_streams import RECORDS, CrashedStream, CrashedStreams

REFUSING = "ALTER TABLE {name}.rows ADD CONSTRAINT refusing CHECK (id = 'nobody')"
ACCEPTING = "ALTER TABLE {name}.rows DROP CONSTRAINT refusing"


def refuse_everything(stream: CrashedStream, *, per_batch: int) -> None:
    """Live one epoch whose table takes no row, in batches of this many records."""
    [declared] = stream.of.pipeline.streams
    bounded = replace(declared, resources=replace(declared.resources, max_records_per_batch=per_batch))
    stream.of.pipeline = replace(stream.of.pipeline, streams=(bounded,))
    life = DisturbedLife("sink.begin_batch", lambda: stream.query(REFUSING.format(name=stream.name)))
    assert stream.live(life) is None
    assert life.disturbed
    assert stream.incomplete() == []  # each in quarantine, once


def alarms(stream: CrashedStream) -> list[Alarm]:
    found = stream.of.control.alarms.list(only_open=False)
    return [one for one in found if (one.kind, one.subject) == (AlarmKind.STREAM_ALL_QUARANTINED, stream.stream)]


def test_a_table_that_refuses_everything_raises_an_alarm_until_the_first_row(streams: CrashedStreams) -> None:
    stream = streams.new()
    refuse_everything(stream, per_batch=2)
    [opened] = alarms(stream)
    assert opened.closed_at is None
    assert opened.detail.startswith("all 6 records of 3 batches in a row went to quarantine")

    assert stream.live(Life()) is None  # a new epoch that finds nothing to read
    stream.rewind({0: 4, 1: 4})
    assert stream.live(Life()) is None  # one that has one more batch refused
    stream.rewind({0: 0, 1: 0})
    assert stream.live(Life()) is None  # and one that would open the alarm by itself
    assert [(one.identity, one.opened_at, one.closed_at) for one in alarms(stream)] == [
        (opened.identity, opened.opened_at, None)
    ]

    stream.query(ACCEPTING.format(name=stream.name))
    stream.rewind({0: 4, 1: 4})
    assert stream.live(Life()) is None
    [closed] = alarms(stream)
    assert (closed.identity, closed.closed_at is None) == (opened.identity, False)
    assert stream.query(f"SELECT count(*) FROM {stream.name}.rows")[0][0] > 0


def test_two_batches_are_no_alarm_yet(streams: CrashedStreams) -> None:
    stream = streams.new()
    refuse_everything(stream, per_batch=RECORDS)
    assert alarms(stream) == []
