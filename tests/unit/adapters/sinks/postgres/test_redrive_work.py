"""The job of a redrive at its parts: halved where one takes too long, gone on with where the sink was away."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from tenacity import nap

from millrace.adapters.apps.jobs.redrive import Request
from millrace.adapters.sinks.postgres.redrive import Held, Put, TooLongError
from millrace.domain.quarantine.redrive import Fate, Redriven, Selection
from millrace.domain.topics.offsets import Source
from millrace.errors import SinkExhaustedError, SinkRolledBackError, SinkUnreachableError, UnreachableError
from millrace.runtime.jobs import redrive

NOW = datetime(2026, 11, 26, tzinfo=UTC)


def held(offset: int, topic: str = "t") -> Held:
    return Held(topic, f"id of {topic}", 0, offset, "1", "not_json", b"k", b"v", [{"key": "h", "value": "00"}], 1)


class Quarantine:
    """What puts parts through, as far as the job sees it: a part may be too large, and a call may fail.

    Attributes:
        most: how many records go through at once.
        faults: what the next calls raise; None: nothing.
    """

    connection: Any = SimpleNamespace(info=SimpleNamespace(parameter_status=lambda name: "UTF8"))
    rows = None

    def __init__(self, parts: Sequence[Sequence[Held]]) -> None:
        self.all = [list(part) for part in parts]
        self.most = 1_000
        self.faults: list[Exception | None] = []
        self.put: list[list[int]] = []
        self.too_long: Exception = TooLongError("too long")

    def prepare(self, columns: object) -> None: ...

    def now(self) -> datetime:
        return NOW

    def parts(self, selection: Selection, upto: datetime, after: Source) -> Iterator[tuple[Source, list[Held]]]:
        for part in self.all:
            if left := [one for one in part if one.source > after]:
                yield left[-1].source, left

    def empty(self) -> None: ...

    def stranger(self, part: Sequence[Held]) -> None: ...

    def put_through(
        self, part: Sequence[Held], bad: Mapping[Source, Any], *, rows: int, keep: bool
    ) -> dict[Source, Put]:
        if self.faults and (fault := self.faults.pop(0)):
            raise fault
        if len(part) > self.most:
            raise self.too_long
        self.put.append([one.offset for one in part])
        return {one.source: Put(Fate.ROW, rows=1) for one in part}


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []
    monkeypatch.setattr(nap.time, "sleep", found.append)
    return found


def run(
    monkeypatch: pytest.MonkeyPatch, quarantine: Quarantine, path: Path, patience: timedelta = timedelta(minutes=2)
) -> tuple[Redriven, list[int]]:
    @contextmanager
    def opened(*_: object) -> Iterator[Quarantine]:
        yield quarantine

    stream = SimpleNamespace(reads=("t",), qualified_name="p.s", sink=SimpleNamespace(connection="c", appended="p.s"))
    app: Any = SimpleNamespace(stream=stream, columns=(), settings=SimpleNamespace(postgres=lambda name: None))
    maker = SimpleNamespace(copy=lambda records, *_: (len(records), {}), bad=lambda records: {})
    monkeypatch.setattr(redrive, "open_redrive", opened)
    monkeypatch.setattr(redrive, "RowMaker", lambda *_, **__: maker)
    monkeypatch.setattr(redrive, "_PATIENCE", patience)
    done: list[int] = []
    found = redrive.redrive(app, Request("p.s", Selection(), NOW, "redrive-1"), path, done.append)
    return found, done


def test_a_part_that_takes_too_long_is_halved_until_it_does_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    quarantine = Quarantine([[held(n) for n in range(10)]])
    quarantine.most = 3
    found, done = run(monkeypatch, quarantine, tmp_path)
    assert quarantine.put == [[0, 1], [2, 3, 4], [5, 6], [7, 8, 9]]
    assert done == [2, 5, 7, 10]
    assert (found.records(Fate.ROW), found.rows) == (10, 10)


@pytest.mark.parametrize("fault", [TooLongError("too long"), psycopg.errors.QueryCanceled()])
def test_a_single_record_that_takes_too_long_ends_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: Exception
) -> None:
    quarantine = Quarantine([[held(n) for n in range(2)]])
    quarantine.most, quarantine.too_long = 0, fault
    with pytest.raises(type(fault)):
        run(monkeypatch, quarantine, tmp_path)


@pytest.mark.parametrize("kind", [SinkUnreachableError, SinkRolledBackError, SinkExhaustedError])
def test_a_sink_that_is_away_is_waited_for_and_what_is_done_is_not_done_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: type[Exception], slept: list[float]
) -> None:
    quarantine = Quarantine([[held(0), held(1)], [held(2)], [held(3)]])
    quarantine.faults = [None, kind("away"), None, kind("away")]
    found, done = run(monkeypatch, quarantine, tmp_path)
    assert quarantine.put == [[0, 1], [2], [3]]
    assert (found.records(), done) == (4, [2, 3, 4])
    assert len(slept) == 2


def test_after_patience_without_a_record_it_ends_as_one_that_may_be_tried_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, slept: list[float]
) -> None:
    quarantine = Quarantine([[held(0)]])
    quarantine.faults = [SinkRolledBackError("a deadlock")] * 2
    with pytest.raises(UnreachableError, match="a deadlock"):
        run(monkeypatch, quarantine, tmp_path, patience=timedelta(0))
    assert len(quarantine.faults) == 1


def test_records_of_a_topic_that_is_read_no_more_stay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    quarantine = Quarantine([[held(0), held(1)], [held(5, "u"), held(6, "u")]])
    found, done = run(monkeypatch, quarantine, tmp_path)
    assert (found.records(Fate.ROW), found.records(Fate.UNREAD), done) == (2, 2, [2, 4])
    assert quarantine.put == [[0, 1]]
