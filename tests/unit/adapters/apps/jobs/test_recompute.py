"""The process that makes rows again, as who asked it sees it: its answers, its errors, its silence and its end."""

from __future__ import annotations

import json
import os
import signal
import sys
import textwrap
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.adapters.apps.jobs.recompute import RecomputeJob
from millrace.domain.quality.recompute import Apart, Difference, Recomputed
from millrace.domain.topics.offsets import OffsetRange, TopicPartition
from millrace.errors import Code, DeclarationError, MillraceError, PartFailedError, UnreachableError
from millrace.runtime.formats.plain_decoder import plain_decoder_of
from millrace.runtime.jobs import recompute
from millrace.settings import open_settings
from support.waiting import Deadline, at_once, eventually

RANGES = (OffsetRange(TopicPartition("t", "id", 0), 5, 25), OffsetRange(TopicPartition("t", "id", 3), 0, 7))
KAFKA = "millrace_kafka"


def test_rows_are_made_again_by_the_plain_decoder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A fault of the streams' decoder would otherwise make the same wrong rows again."""
    made: list[object] = []
    columns = SimpleNamespace(both=(), lacking=(), retyped=(), idle=())
    comparison = SimpleNamespace(prepare=lambda given: columns)
    monkeypatch.setattr(recompute, "TopicReader", lambda *_, **__: None)
    monkeypatch.setattr(recompute, "open_comparison", lambda *_: nullcontext(comparison))
    monkeypatch.setattr(recompute, "RowMaker", lambda *given, on_try: made.extend(given))
    monkeypatch.setattr(recompute, "_check_topics", lambda *_: None)
    app: Any = SimpleNamespace(
        settings=SimpleNamespace(postgres=lambda name: None, kafka=lambda name: None),
        pipeline=SimpleNamespace(kafka=KAFKA),
        stream=SimpleNamespace(sink=SimpleNamespace(connection="c", appended="t"), qualified_name="p.s"),
        columns=(),
    )
    recompute.recompute(app, (), tmp_path, lambda done: None)
    assert made == [app, [], tmp_path, plain_decoder_of]


@pytest.fixture(autouse=True)
def connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_MILLRACE_KAFKA", json.dumps({"conn_type": "kafka", "host": "localhost:1"}))
    monkeypatch.setenv("AIRFLOW_CONN_MILLRACE_S3", json.dumps({"conn_type": "aws", "password": "secret"}))


class Asking:
    """Somebody who asks a job that this script plays."""

    def __init__(self, root: Path, script: str, *, silence: timedelta) -> None:
        modules = (
            "from millrace.adapters.apps.jobs.recompute import *\nfrom millrace.adapters.apps.jobs.spark import *\n"
        )
        head = f"import os, sys, time\n{modules}"
        command = [sys.executable, "-c", head + textwrap.dedent(script)]
        self.job = RecomputeJob(open_settings(root), command, silence=silence)
        self.done: list[int] = []

    def ask(self, connections: tuple[str, ...] = (KAFKA,)) -> Recomputed:
        return self.job.run("shop.purchases", RANGES, connections, self.done.append)


def asking(root: Path, script: str, silence: timedelta = timedelta(seconds=Deadline.PROCESS.seconds)) -> Asking:
    return Asking(root, script, silence=silence)


def test_a_job_is_told_what_to_read_and_answers_with_what_it_found(tmp_path: Path) -> None:
    who = asking(
        tmp_path,
        """
        request = REQUESTS.decode(sys.stdin.buffer.readline())
        for done in (20, 27):
            say(Said(done=done), sys.stdout.buffer)
        print("an app may print what it likes", file=sys.stderr)
        os.mkdir(sys.argv[1])
        from millrace.domain.topics.offsets import SourceAt
        from millrace.domain.quality.recompute import Apart, Difference
        from datetime import UTC, datetime
        named = tuple(SourceAt(r.partition.topic, r.partition.partition, r.first) for r in request.ranges)
        apart = Apart(Difference.CHANGED, request.stream, 2, named, datetime(2026, 5, 1, tzinfo=UTC))
        answer = Recomputed(offsets=27, compared=20, alike=18, apart=(apart,), idle=("old",))
        say(answered(answer), sys.stdout.buffer)
        sys.stdin.read()  # whoever waits ends it
        """,
    )
    found = who.ask()
    assert who.done == [20, 27]
    assert (found.offsets, found.compared, found.alike, found.idle) == (27, 20, 18, ("old",))
    [apart] = found.apart
    assert isinstance(apart, Apart)
    assert (apart.difference, apart.column) == (Difference.CHANGED, "shop.purchases")
    assert list(map(str, apart.named)) == ["t/0@5", "t/3@0"]


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        ("from millrace.errors import UnreachableError as E", UnreachableError),
        ("from millrace.errors import DeclarationError as E", DeclarationError),
        ("from millrace.adapters.postgres.connection import SinkUnreachableError as E", UnreachableError),
        ("from millrace.adapters.postgres.connection import SinkFailedError as E", MillraceError),
    ],
)
def test_an_error_of_the_job_is_raised_as_what_it_is(tmp_path: Path, raised: str, kind: type[MillraceError]) -> None:
    who = asking(
        tmp_path,
        f"""
        {raised}
        from millrace.errors import Code
        error = E("it is wrong", where="there", next_step="do this", code=Code.WRONG_TABLE)
        say(Said(failure=failure_of(error)), sys.stdout.buffer)
        """,
    )
    with pytest.raises(MillraceError) as found:
        who.ask()
    assert type(found.value) is kind
    assert (found.value.what, found.value.where, found.value.next_step) == ("it is wrong", "there", "do this")
    assert found.value.code is Code.WRONG_TABLE


@pytest.mark.parametrize("end", ["sys.exit(3)", "sys.stdout.write('{\"answer\": '); sys.stdout.flush(); os._exit(3)"])
def test_a_job_that_ends_without_an_answer_leaves_its_last_lines(tmp_path: Path, end: str) -> None:
    who = asking(tmp_path, f"print('the last word', file=sys.stderr, flush=True)\n{end}")
    with pytest.raises(PartFailedError, match="exit code 3") as found:
        who.ask()
    assert "the last word" in found.value.next_step


def test_a_job_that_says_nothing_is_ended_with_what_it_has_started(tmp_path: Path) -> None:
    mark = tmp_path / "child"
    who = asking(
        tmp_path,
        f"""
        import subprocess
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        with open({str(mark)!r}, "w") as file:
            file.write(str(child.pid))
        child.wait()
        """,
        silence=timedelta(seconds=2),
    )
    with pytest.raises(PartFailedError, match="said nothing for too long"):
        who.ask()
    pid = int(mark.read_text())
    eventually(
        lambda: not Path(f"/proc/{pid}/cmdline").exists() or not Path(f"/proc/{pid}/cmdline").read_bytes(),
        within=Deadline.KILLED,
        what="the job's child to be gone",
    )


def test_a_job_sees_the_connections_it_is_given_and_no_others(tmp_path: Path) -> None:
    script = """
        names = sorted(name for name in os.environ if "MILLRACE" in name or name.startswith("AIRFLOW"))
        say(Said(failure=Failure("MillraceError", " ".join(names), "", "")), sys.stdout.buffer)
        """
    with pytest.raises(MillraceError) as found:
        asking(tmp_path, script).ask()
    assert found.value.what == "AIRFLOW_CONN_MILLRACE_KAFKA MILLRACE_LAYOUT MILLRACE_ROOT"
    with pytest.raises(UnreachableError, match="nowhere"):
        asking(tmp_path, script).ask(("nowhere",))


def test_what_is_temporary_is_gone_however_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(PartFailedError):
        asking(tmp_path, "os.makedirs(os.path.join(sys.argv[1], 'blocks')); sys.exit(1)").ask()
    assert [path for path in tmp_path.iterdir() if path.name.startswith("millrace-recompute")] == []


def test_jobs_of_several_threads_are_answered_each_by_its_own(tmp_path: Path) -> None:
    script = "say(answered(Recomputed(records=os.getpid())), sys.stdout.buffer)"
    jobs = [asking(tmp_path, script) for _ in range(4)]
    found = at_once([who.ask for who in jobs], within=Deadline.PROCESS, what="all answers")
    assert len({one.records for one in found}) == 4
    assert os.getpid() not in {one.records for one in found}


def test_a_job_that_does_not_even_take_its_request_is_given_up(tmp_path: Path) -> None:
    who = asking(tmp_path, "time.sleep(600)", timedelta(seconds=1))
    many = [OffsetRange(TopicPartition("t", "id", 0), first, first + 1) for first in range(20_000)]
    with pytest.raises(PartFailedError, match="said nothing for too long"):
        who.job.run("shop.purchases", many, (KAFKA,), who.done.append)


def test_what_a_job_has_left_behind_holds_nobody_up(tmp_path: Path) -> None:
    """A child in a session of its own, which no signal to the job's reaches, with the job's output open."""
    mark = tmp_path / "child"
    who = asking(
        tmp_path,
        f"""
        import subprocess
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        with open({str(mark)!r}, "w") as file:
            file.write(str(child.pid))
        sys.exit(3)
        """,
    )
    try:
        with pytest.raises(PartFailedError, match="exit code 3"):
            who.ask()
    finally:
        os.kill(int(mark.read_text()), signal.SIGKILL)
