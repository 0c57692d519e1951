from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from millrace.adapters.alarms.outage import LAST_KNOWN, OUTAGE, OutageFiles
from millrace.domain.alarms.alarm import Alarm
from millrace.domain.alarms.outage import MOST_NAMED, LastKnown, LastSeen, OpenAlarm
from millrace.domain.declaration.pipeline import Environment, Notifier
from millrace.errors import UnreachableError, UsageError
from millrace.usecases.alarms.notifiers import Tell
from millrace.usecases.alarms.watchdog import UsableNotifiers, Watchdog, Watched
from support.fakes.streams import FakePlatform
from support.waiting import Deadline

NOW = datetime(2026, 11, 3, 12, tzinfo=UTC)
SEEN = LastSeen("shop.purchases", "running", 4, "alpha", timedelta(seconds=9), timedelta(seconds=4))


@dataclass
class World:
    """A database that answers or not, a clock, and what people heard."""

    folder: Path
    answers: bool = True
    now: datetime = NOW
    heard: list[tuple[str, Alarm]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    known: LastKnown = field(
        default_factory=lambda: LastKnown(NOW, (SEEN,), 1, (OpenAlarm("backup.late", "shop", NOW),), 1)
    )

    def look(self) -> LastKnown:
        if not self.answers:
            raise UnreachableError("connection refused")
        return self.known

    def pager(self, name: str) -> Tell:
        return lambda alarm: self.heard.append((name, alarm))

    def start(self, *notifiers: tuple[str, Tell], look: Callable[[], LastKnown] | None = None) -> Watchdog:
        """A watchdog over the files of the one before."""
        usable: Sequence[tuple[str, Tell]] = notifiers or (("log", self.pager("log")),)
        watched = Watched(
            subject="db:5432/control",
            host="beta",
            look=look or self.look,
            notifiers=lambda: usable,
            say=self.said.append,
            now=lambda: self.now,
            answers_within=timedelta(seconds=0.05),
            look_within=timedelta(seconds=5 if look is None else 0.05),
        )
        return Watchdog(watched, OutageFiles(self.folder))

    def passes(self, watchdog: Watchdog, seconds: int) -> None:
        for _ in range(0, seconds, 10):
            self.now += timedelta(seconds=10)
            watchdog.look()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


class Hanging:
    """Something that does not come back before the test is over."""

    def __init__(self) -> None:
        self.calls = 0
        self.over = threading.Event()

    def __call__(self, *_: object) -> None:
        self.calls += 1
        self.over.wait(Deadline.THREAD.seconds)


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    found = Hanging()
    yield found
    found.over.set()


def test_an_outage_is_told_from_what_was_last_known_and_so_is_its_end(world: World) -> None:
    watchdog = world.start()
    watchdog.look()
    world.answers = False
    world.passes(watchdog, 60)
    assert world.heard == []
    world.passes(watchdog, 10)
    world.answers = True
    world.passes(watchdog, 60)
    [(_, outage), (_, over)] = world.heard
    assert (outage.kind, outage.subject) == ("control.down", "db:5432/control")
    for part in (
        "has not answered beta for 60 s",
        "connection refused",
        "Last known at 2026-11-03 12:00 UTC: 1 streams should run (shop.purchases running on alpha heartbeat 4 s",
        "1 open alarms (backup.late of shop)",
    ):
        assert part in outage.detail
    assert "answers beta again after 70 s" in over.detail
    assert over.closed_at == NOW + timedelta(seconds=80)


def test_a_restarted_watchdog_neither_forgets_nor_repeats(world: World) -> None:
    world.answers = False
    for _ in range(0, 1800, 10):
        world.passes(world.start(), 10)
    moments = [alarm.opened_at for _, alarm in world.heard]
    assert moments == [NOW + timedelta(seconds=10)] * 2
    world.answers = True
    world.passes(world.start(), 10)
    assert "answers" in world.heard[-1][1].detail
    world.passes(world.start(), 100)
    assert len(world.heard) == 3


def test_a_notifier_that_hangs_or_fails_keeps_no_other_from_telling(world: World, hanging: Hanging) -> None:
    def fails(alarm: Alarm) -> None:
        raise UnreachableError("no route")

    world.answers = False
    watchdog = world.start(("hangs", hanging), ("fails", fails), ("works", world.pager("works")))
    world.passes(watchdog, 70)
    assert [name for name, _ in world.heard] == ["works"]
    assert "hangs did not deliver: TimeoutError: no answer within 0.05 s" in world.said
    world.passes(watchdog, 1800)
    assert [name for name, _ in world.heard] == ["works"] * 3
    assert hanging.calls == 1
    tries = [line for line in world.said if line.startswith("fails")]
    assert len(tries) == 31  # each minute
    assert len([line for line in world.said if line.startswith("hangs")]) == 3  # it may have delivered


def test_a_call_is_recorded_before_it_is_made_for_a_kill_in_between(world: World) -> None:
    kept: list[bool] = []
    files = OutageFiles(world.folder)
    world.answers = False
    world.passes(world.start(("pager", lambda alarm: kept.append("pager" in files.outage().pages))), 70)
    assert kept == [True]


def test_a_database_that_hangs_is_an_outage_and_holds_one_thread(world: World, hanging: Hanging) -> None:

    def look() -> LastKnown:
        hanging()
        return world.known

    world.passes(world.start(look=look), 100)
    assert len(world.heard) == 1
    assert hanging.calls == 1


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": "millrace.outage/1"}', '{"schema": "millrace.outage/9"}'])
def test_damaged_files_stop_nothing(world: World, text: str) -> None:
    for name in (LAST_KNOWN, OUTAGE):
        (world.folder / name).write_text(text)
    world.answers = False
    world.passes(world.start(), 70)
    [(_, outage)] = world.heard
    assert "The state of its streams is not known" in outage.detail
    world.answers = True
    world.passes(world.start(), 10)
    assert json.loads((world.folder / LAST_KNOWN).read_text())["schema"] == "millrace.last-known/1"


def test_a_state_folder_that_cannot_be_written_keeps_nobody_from_hearing(world: World) -> None:
    world.folder = world.folder / "missing"
    world.answers = False
    world.passes(world.start(), 120)
    assert len(world.heard) == 1
    assert len([line for line in world.said if line.startswith("files: cannot be written")]) == 1


def test_times_of_a_file_from_the_future_count_as_now(world: World) -> None:
    world.answers = False
    world.passes(world.start(), 70)
    world.now -= timedelta(days=30)
    world.passes(world.start(), 900)
    assert len(world.heard) == 1
    world.passes(world.start(), 10)
    assert len(world.heard) == 2


def test_a_thousand_streams_are_counted_and_a_few_are_named(world: World) -> None:
    streams = tuple(LastSeen(f"shop.s{n}", "", None, "", None, None) for n in range(500))
    world.known = LastKnown(NOW, streams, 1000, (), 0)
    watchdog = world.start()
    watchdog.look()
    world.answers = False
    world.passes(watchdog, 70)
    assert "1000 streams should run" in world.heard[0][1].detail
    assert f"{1000 - MOST_NAMED} more" in world.heard[0][1].detail


def test_notifiers_that_need_airflow_are_left_out_and_a_broken_file_keeps_the_former_ones(tmp_path: Path) -> None:
    platform = FakePlatform(tmp_path)
    pager = Notifier("webhook", (("connection", "millrace_pager"),))
    found: list[Environment | Exception] = [
        Environment("production", (pager, Notifier("my.Pager"), pager)),
        UsageError("the environment `production` has errors"),
        Environment("production", (Notifier("my.Pager"),)),
    ]

    def read() -> Environment:
        each = found.pop(0)
        if isinstance(each, Exception):
            raise each
        return each

    said: list[str] = []
    notifiers = UsableNotifiers(platform, read, said.append)  # type: ignore[arg-type]
    names = [[name for name, _ in notifiers()] for _ in range(3)]
    assert names == [["webhook", "webhook#2"], ["webhook", "webhook#2"], ["log"]]
    assert "has errors" in said[0]
