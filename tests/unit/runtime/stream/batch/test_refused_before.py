"""What a sink refused in one try of a batch is kept before the rows of the next, where rows are seen at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, ClassVar, cast

import pytest

from millrace.adapters.sinks.kafka.sink import KafkaSink
from millrace.domain.sinks.batch import BatchCounts, TaskResults, Written
from millrace.domain.topics.offsets import OffsetRange, Source, TopicPartition
from millrace.errors import SinkFailedError, SinkUnreachableError
from millrace.runtime.stream.batch import sink
from millrace.runtime.stream.batch.records import Batch
from millrace.runtime.stream.batch.sink import BatchSink
from millrace.runtime.stream.inputs import Read
from support.streams.memory_sink import ID, P0, stream_constants

BAD: Mapping[Source, str] = {(ID, 0, 4): "too large"}


class Quarantine:
    """Away until it is told to be there; it tells what is kept, in the order of everything else.

    As the real one, it keeps what the named attempts staged, and refuses where that is not what was counted.
    """

    def __init__(self, told: list[str]) -> None:
        self.told, self.away = told, True
        self.staged: dict[int, int] = {}

    def keep(self, timeline: int, ranges: Sequence[OffsetRange], written: Written) -> int:
        if self.away and written.bad_records:
            raise SinkUnreachableError("the database is away")
        arrived = sum(self.staged.get(attempt, 0) for attempt in written.attempts)
        if arrived != written.bad_records:
            raise SinkFailedError(f"{written.bad_records} bad records were staged, but {arrived} arrived")
        self.told.append(f"kept {sorted(written.refused)}")
        return arrived


class Sink:
    def __init__(self, quarantine: Quarantine) -> None:
        self.quarantine = quarantine

    def begin_batch(self) -> None: ...

    def rows_writer(self, timeline: int, ranges: Any, *, in_order: bool) -> None: ...

    commit_batch = KafkaSink.commit_batch  # the real one: what it keeps again is what went wrong

    @property
    def _aside(self) -> Quarantine:
        return self.quarantine

    _done: ClassVar[dict[TopicPartition, int]] = {}


def batch_sink(quarantine: Quarantine) -> BatchSink:
    store: Any = Sink(quarantine)
    made, attempts = BatchSink(stream_constants(), store), count(100)

    def write(raw: Any, ids: Any, refused: Mapping[Source, str], bad: int) -> TaskResults:
        attempt = next(attempts)
        quarantine.staged = {attempt: bad + len(refused)}  # emptied first
        return TaskResults((attempt,), bad + len(refused))

    made._refusals.write = write  # type: ignore[method-assign]
    return made


def test_rows_are_not_written_again_while_what_was_refused_cannot_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    told = list[str]()
    quarantine = Quarantine(told)
    taker = batch_sink(quarantine)
    batch = Batch(cast(Any, None), {}, {}, [OffsetRange(P0, 0, 10)])

    def write_counted(inputs: Any, writing: Any, before: Any) -> tuple[Read, TaskResults]:
        read = Read(10)
        before(read)
        told.append("wrote")
        return read, TaskResults((2,), 9, BAD)

    monkeypatch.setattr(sink, "write_counted", write_counted)

    def once() -> BatchCounts:
        read, rows = taker.write(batch, {}, lambda: told.append("topics checked"))
        return taker.merge(batch, rows, read)

    for _ in range(3):
        with pytest.raises(SinkUnreachableError):
            once()
    assert told == ["topics checked", "kept []", "wrote", "topics checked", "topics checked"]
    assert taker.wrote
    quarantine.away = False
    assert once() == BatchCounts(rows_out=9, quarantined=1)
    assert told[5:] == ["topics checked", f"kept {list(BAD)}", "wrote"]
    assert taker._refusals.known([OffsetRange(P0, 5, 10)]) == {}
