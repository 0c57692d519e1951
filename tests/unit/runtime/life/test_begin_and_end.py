"""The life of any app's driver: who may live it, and in which order it ends."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from millrace.domain.declaration.pipeline import App, BackupApp, PostgresSink, Stream
from millrace.domain.streams.control import StreamProgress
from millrace.domain.streams.hosts import Host
from millrace.domain.topics.offsets import TopicPartition
from millrace.errors import UnreachableError
from millrace.runtime.life import app as life
from millrace.runtime.life.app import ClaimLostError, Launch, Life
from support.waiting import happened

STREAM = Stream("s", "shop", "app", ("shop.purchases",), PostgresSink("sink", "shop.rows"), "millrace.shop.s")
BACKUP = BackupApp("shop", ())
HERE = TopicPartition("shop.purchases", "A" * 22, 0)
PROGRESS = StreamProgress(
    stream=BACKUP.qualified_name,
    epoch=3,
    timeline=0,
    at=datetime(2026, 5, 1, 12, tzinfo=UTC),
    batch_id=1,
    rows_in=5,
    rows_out=5,
    quarantined=0,
    batch_seconds=0.5,
    last_error=None,
    positions={str(HERE): 5},
)


class Lived(Life):
    """A life without servers; what ends is told in its order, with the phase that the status then has.

    Attributes:
        ended: what has ended so far.
        members: how its member of the group was made.
    """

    def __init__(self, folder: Path, app: App = STREAM, *, claimed: bool = True) -> None:
        self.beats: list[str] = []
        control: Any = SimpleNamespace(
            streams=SimpleNamespace(claim=lambda *claim: claimed),
            hosts=SimpleNamespace(beat=lambda *app, phase, step: self.beats.append(phase) or self.may_live),
        )
        self.may_live = True
        self.asked_to_end = threading.Event()
        launch = Launch(app.qualified_name, 3, "me", False, Host("here", "localhost", ""))
        settings: Any = SimpleNamespace(root=folder / "nowhere")
        super().__init__(settings, control, MagicMock(), app, launch, folder, self.asked_to_end.set)
        self.ended: list[tuple[str, str]] = []
        self.session = SimpleNamespace(stop=lambda: self.end("spark"))
        self.options: Mapping[str, str] = {}
        self.member.close.side_effect = lambda: self.end("member")  # type: ignore[attr-defined]

    def _open_session(self, options: Mapping[str, str]) -> Any:
        self.options = options
        return self.session

    def end(self, what: str) -> None:
        self.ended.append((what, self.status()["phase"]))

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "status.json").read_text())
        return found


@pytest.fixture(autouse=True)
def members(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    """How members are made; none has a broker."""
    monkeypatch.setattr(life, "KafkaLog", MagicMock())
    made = MagicMock()
    monkeypatch.setattr(life, "GroupMember", made)
    return made


def test_who_loses_the_claim_writes_nothing_and_does_nothing(tmp_path: Path) -> None:
    lived, work = Lived(tmp_path, claimed=False), MagicMock()
    with pytest.raises(ClaimLostError):
        lived.run(work)
    work.assert_not_called()
    assert list(tmp_path.iterdir()) == []
    assert lived.beats == []


def test_the_work_is_given_the_session_that_its_options_started(tmp_path: Path) -> None:
    lived, given = Lived(tmp_path), []
    lived.run(lambda starting: given.append(starting.result()), {"spark.one": "1"})
    assert given == [lived.session]
    assert lived.options == {"spark.one": "1"}
    assert lived.ended == [("member", "starting"), ("spark", "starting")]
    assert (lived.status()["phase"], lived.status()["error"]) == ("ended", None)


@pytest.mark.parametrize(
    ("error", "told"), [(UnreachableError("no sink"), "no sink [unreachable]"), (ValueError("a bug"), None)]
)
def test_a_life_that_fails_ends_in_the_same_order(tmp_path: Path, error: Exception, told: str | None) -> None:
    def work(starting: Future[Any]) -> None:
        raise error

    lived = Lived(tmp_path)
    with pytest.raises(type(error)):
        lived.run(work)
    assert [what for what, _ in lived.ended] == ["member", "spark"]
    assert lived.beats[-1] == "ended"
    assert (lived.status()["phase"], lived.status()["error"]) == ("ended", told)


def test_a_spark_that_never_started_is_not_stopped_and_its_error_is_the_lifes(tmp_path: Path) -> None:
    class WithoutSpark(Lived):
        def _open_session(self, options: Mapping[str, str]) -> Any:
            raise UnreachableError("no JVM")

    lived = WithoutSpark(tmp_path)
    with pytest.raises(UnreachableError, match="no JVM"):
        lived.run(lambda starting: starting.result())
    assert [what for what, _ in lived.ended] == ["member"]


def test_a_life_that_must_end_by_its_heartbeat_is_asked_to(tmp_path: Path) -> None:
    lived = Lived(tmp_path)
    lived.may_live = False
    lived.run(lambda starting: happened(lived.asked_to_end, what="the heartbeat to ask for the end"))


def test_only_a_backup_goes_on_without_topics_that_are_deleted(tmp_path: Path, members: MagicMock) -> None:
    for app in (STREAM, BACKUP):
        Lived(tmp_path, app)
    assert [made.kwargs["topics_may_go"] for made in members.call_args_list] == [False, True]
    assert [made.kwargs["group"] for made in members.call_args_list] == ["millrace.shop.s", "millrace.shop.backup"]


@pytest.mark.parametrize("answers", [True, False])
def test_a_broker_that_hangs_holds_up_the_row_of_a_batch_for_seconds(tmp_path: Path, answers: bool) -> None:
    lived = Lived(tmp_path, BACKUP)
    saved: list[StreamProgress] = []
    lived.control.streams.save_progress = lambda progress, history: saved.append(progress)  # type: ignore[method-assign]
    waits: list[timedelta] = []

    def ends(partitions: Any, within: timedelta = timedelta(seconds=20)) -> dict[TopicPartition, int]:
        waits.append(within)
        if not answers:
            raise UnreachableError("a broker hangs")
        return {HERE: 12}

    lived.log = SimpleNamespace(ends=ends)  # type: ignore[assignment]
    lived.run(lambda starting: lived.report(PROGRESS, {}, {HERE: 5}))
    assert [progress.lag for progress in saved] == [7 if answers else None]
    assert max(waits) < timedelta(seconds=5)
