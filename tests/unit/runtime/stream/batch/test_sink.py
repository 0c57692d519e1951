"""The sink of a batch, used alone: waits, refused rows, positions.

Its writing needs Spark: tests/spark/streams/test_batch_sink.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.domain.declaration.pipeline import OnBadRecord
from millrace.domain.sinks.batch import BatchCounts, TaskResults
from millrace.domain.topics.offsets import OffsetRange
from millrace.errors import (
    DataLossError,
    MillraceError,
    SinkExhaustedError,
    SinkFailedError,
    SinkRolledBackError,
    SinkUnreachableError,
)
from millrace.runtime.stream.batch import sink as sink_module
from millrace.runtime.stream.batch.records import Batch
from millrace.runtime.stream.batch.sink import BatchSink
from millrace.runtime.stream.inputs import Read
from support.streams.memory_sink import ID, NAME, P0, P1, MemorySink, raw_frame_without_spark, stream_constants

RECORDS = [b'{"id": 1}', b"not json", b'{"id": 3}', b'{"id": 4}']
READ, ROWS = Read(records=4, bad=1, of_each={(NAME, 0): 4}), TaskResults((1,), 3)
BY_KEY, BY_CHECK = {(ID, 0, 2): "no such key"}, {(ID, 0, 3): "below zero"}


class Stop(threading.Event):
    """A stop that comes at the end of one wait, or of none; no wait takes its time."""

    def __init__(self, at_wait: int = 0) -> None:
        super().__init__()
        self.waits: list[float | None] = []
        self._at_wait = at_wait

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        return len(self.waits) == self._at_wait


class Batches:
    """Attempts that fail with these errors, one each, then go through."""

    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)
        self.waited_for: list[MillraceError] = []
        self.attempts = 0

    def attempt(self) -> None:
        self.attempts += 1
        if self._errors:
            raise self._errors.pop(0)


def batch() -> Batch:
    raw: Any = raw_frame_without_spark(RECORDS)
    return Batch(raw, {NAME: raw}, {NAME: ID}, [OffsetRange(P0, 0, 4)])


def sink_of(store: MemorySink, **changes: Any) -> BatchSink:
    given: Any = store
    return BatchSink(stream_constants(**changes), given)


def test_a_batch_is_tried_again_while_the_sink_is_away() -> None:
    errors = SinkUnreachableError("away"), SinkExhaustedError("disk full"), SinkRolledBackError("deadlock")
    batches, stop = Batches(*errors), Stop()
    assert sink_of(MemorySink()).until_taken(batches.attempt, stop, batches.waited_for.append)
    assert batches.attempts == 4
    assert batches.waited_for == list(errors)
    assert stop.waits == [1.0, 5.0, 0.1]


def test_a_stop_in_a_wait_leaves_the_batch_undone() -> None:
    batches, stop = Batches(*[SinkExhaustedError("disk full")] * 9), Stop(at_wait=2)
    assert not sink_of(MemorySink()).until_taken(batches.attempt, stop, batches.waited_for.append)
    assert batches.attempts == 2


@pytest.mark.parametrize("error", [SinkFailedError("no"), RuntimeError("a fault of Spark's")], ids=type)
def test_what_another_try_cannot_mend_ends_the_batch(error: Exception) -> None:
    batches, stop = Batches(error), Stop()
    with pytest.raises(type(error)):
        sink_of(MemorySink()).until_taken(batches.attempt, stop, batches.waited_for.append)
    assert (batches.waited_for, stop.waits) == ([], [])


def test_rows_that_the_sink_refuses_go_to_quarantine_beside_bad_records() -> None:
    store = MemorySink(refuses=[BY_KEY, BY_CHECK])
    assert sink_of(store).merge(batch(), ROWS, READ) == BatchCounts(rows_out=1, quarantined=3)
    assert store.record == {P0: 4}
    [written] = store.commits
    assert written.refused == BY_KEY | BY_CHECK
    assert written.records == READ.of_each


def test_a_record_that_is_counted_and_not_found_moves_nothing() -> None:
    store = MemorySink()
    with pytest.raises(SinkFailedError, match=r"2 bad records .* but 1 were written"):
        sink_of(store).merge(batch(), ROWS, Read(records=4, bad=2))
    assert store.record == {}


def test_a_sink_that_goes_on_refusing_rows_ends_the_batch() -> None:
    with pytest.raises(MillraceError, match="still refuses rows after 5 rounds"):
        sink_of(MemorySink(refuses=[BY_KEY] * 9)).merge(batch(), ROWS, READ)


def test_a_stream_that_fails_on_bad_records_quarantines_none_of_its_own_or_of_the_sink() -> None:
    fails = replace(stream_constants().stream, on_bad_record=OnBadRecord.FAIL)
    for store, bad in ((MemorySink(refuses=[BY_KEY]), 0), (MemorySink(), 1)):
        with pytest.raises(DataLossError, match="1 bad records in this batch"):
            sink_of(store, stream=fails).merge(batch(), ROWS, Read(records=4, bad=bad))
        assert store.record == {}


def test_nor_does_it_write_rows_that_are_seen_at_once_beside_bad_records(monkeypatch: pytest.MonkeyPatch) -> None:
    def write_counted(inputs: Any, writing: Any, before: Callable[[Read], None]) -> Any:
        before(READ)
        pytest.fail("rows were written")

    monkeypatch.setattr(sink_module, "write_counted", write_counted)
    store, fails = MemorySink(), replace(stream_constants().stream, on_bad_record=OnBadRecord.FAIL)
    quarantine: Any = SimpleNamespace(keep=lambda *_: pytest.fail("bad records were kept"))
    store.quarantine = quarantine
    sink = sink_of(store, stream=fails)
    with pytest.raises(DataLossError, match="1 bad records in this batch"):
        sink.write(batch(), {}, lambda: None)
    assert not sink.wrote


def test_a_batch_begins_without_what_the_sink_refused_of_the_former_one() -> None:
    sink = sink_of(MemorySink(refuses=[BY_KEY]))
    sink.merge(batch(), ROWS, READ)
    assert sink._refusals.known(batch().ranges) == BY_KEY
    sink.until_taken(lambda: None, Stop(), lambda error: None)
    assert sink._refusals.known(batch().ranges) == {}


def test_each_try_has_its_own_longest_merge_and_its_own_rows_that_are_seen() -> None:
    sink = sink_of(MemorySink())
    batches = Batches()
    sink.merge(batch(), ROWS, READ)
    sink.wrote = True
    assert sink.longest_merge
    sink.until_taken(batches.attempt, Stop(), batches.waited_for.append)
    assert not sink.longest_merge
    assert not sink.wrote


def test_positions_are_opened_on_the_streams_timeline() -> None:
    store = MemorySink()
    sink_of(store).open_positions({P1: 0})
    assert store.record == {P1: 0}
