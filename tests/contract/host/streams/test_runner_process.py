from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from millrace.adapters.apps.processes import AppName, Process, app_folder, apps_of, end_all, name_of, process, send
from millrace.adapters.apps.runners.process import ProcessRunner
from millrace.errors import PartFailedError, RefusedError, UnreachableError
from millrace.ports.runner import RunningApp, RunState, Submission
from millrace.settings import Settings
from support.waiting import Deadline, eventually, exit_code_of, line_of

STUB = Path(__file__).with_name("stub_driver.py")
CONNECTIONS = {
    "millrace_kafka": '{"conn_type": "kafka", "extra": {"bootstrap.servers": "127.0.0.1:1"}}',
    "millrace_sink": '{"conn_type": "postgres", "password": "sink-secret"}',
    "millrace_s3": '{"conn_type": "aws", "password": "s3-secret"}',
}


def runner_of(root: Path, behaviour: str = "wait") -> ProcessRunner:
    def command(submission: Submission) -> list[str]:
        name = AppName(submission.stream, submission.epoch, submission.instance)
        return [sys.executable, str(STUB), behaviour, *name.arguments(), *submission.arguments]

    return ProcessRunner(Settings(root=root, lookup=CONNECTIONS.get), command)


def submission(epoch: int = 1, stream: str = "shop.purchases", instance: str = "abc1") -> Submission:
    return Submission(stream=stream, epoch=epoch, instance=instance, connections=("millrace_kafka", "millrace_sink"))


def started(root: Path, behaviour: str = "wait", epoch: int = 1, stream: str = "shop.purchases") -> RunningApp:
    """An app whose driver has come so far as to do what it was told."""
    app = runner_of(root, behaviour).submit(submission(epoch, stream))
    log = app_folder(root, stream, epoch) / "driver.log"
    eventually(lambda: "ready" in log.read_text(), within=Deadline.PROCESS, what="the driver to be ready")
    return app


def members(root: Path, stream: str = "shop.purchases") -> list[int]:
    return [one.pid for one in processes_of(root, stream)]


def processes_of(root: Path, stream: str = "shop.purchases") -> list[Process]:
    return [one for app in apps_of(root, lambda name: name.stream == stream) for one in app.all]


def gone(root: Path) -> None:
    eventually(lambda: not members(root), within=Deadline.PROCESS, what="the app's processes to end")


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "include" / "pipelines").mkdir(parents=True)
    yield tmp_path
    runner_of(tmp_path).stop_all(timedelta())
    assert not list(apps_of(tmp_path))


def test_an_app_is_nobodys_child_and_in_a_session_of_its_own(root: Path) -> None:
    app = started(root)
    found = apps_of(root)[0]
    assert app.state is RunState.RUNNING
    assert found.guard is not None
    assert found.driver is not None
    assert found.driver.parent == found.guard.pid
    assert found.guard.parent != os.getpid()
    assert found.guard.session == found.guard.pid != os.getsid(0)


def test_the_environment_holds_the_allowed_variables_and_no_secret_more(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "mints-approvers")
    monkeypatch.setenv("AIRFLOW_CONN_MILLRACE_CONTROL_OWNER", "owner")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "aws")
    (root / ".millrace").mkdir()
    (root / ".millrace" / "env").write_text("MILLRACE_JAVA_HOME=/opt/java\nAIRFLOW_CONN_MILLRACE_S3={}\n")
    started(root)
    found = apps_of(root)[0]
    assert found.driver is not None
    content = Path(f"/proc/{found.driver.pid}/environ").read_bytes().decode()
    environment = dict(entry.split("=", 1) for entry in content.split("\0") if entry)
    assert set(environment) <= {
        "PATH", "HOME", "LANG", "TZ", "JAVA_HOME", "MILLRACE_ROOT", "MILLRACE_LAYOUT", "MILLRACE_ENVIRONMENT",
        "MILLRACE_APP", "PYSPARK_PYTHON", "SPARK_LOCAL_IP", "AIRFLOW_CONN_MILLRACE_KAFKA", "AIRFLOW_CONN_MILLRACE_SINK",
    }  # fmt: skip
    assert environment["JAVA_HOME"] == "/opt/java"
    assert environment["AIRFLOW_CONN_MILLRACE_SINK"] == CONNECTIONS["millrace_sink"]
    assert found.guard is not None
    for one in found.all:
        assert "secret" not in Path(f"/proc/{one.pid}/cmdline").read_text()


def test_what_a_driver_said_last_is_told_in_whole_lines_also_when_it_has_ended(root: Path) -> None:
    runner = runner_of(root)
    assert runner.last_lines("shop.purchases", 1, 20) == []
    started(root)
    assert runner.last_lines("shop.purchases", 1, 20)[-2:] == ["behaviour wait", "ready"]
    runner.stop_all(timedelta(seconds=Deadline.PROCESS.seconds))
    assert runner.last_lines("shop.purchases", 1, 1) == ["stopping as asked"]
    with (app_folder(root, "shop.purchases", 1) / "driver.log").open("a") as log:
        log.write(f"a {'very ' * 20_000}long line\nthe end\n")
    assert runner.last_lines("shop.purchases", 1, 20) == ["the end"]


def test_an_undefined_connection_is_named_and_leaves_no_folder(root: Path) -> None:
    asked = Submission("shop.purchases", 1, "abc1", connections=("millrace_control",))
    with pytest.raises(UnreachableError, match="millrace_control"):
        runner_of(root).submit(asked)
    assert runner_of(root).status("shop.purchases", 1) is None


def test_stop_lets_the_driver_end_and_its_exit_code_is_kept(root: Path) -> None:
    app = started(root, "family")
    runner = runner_of(root)
    runner.stop(app)
    assert runner.find("shop.purchases")[0].stopping_since is not None
    gone(root)
    ended = runner.status("shop.purchases", 1)
    assert ended is not None
    assert (ended.state, ended.exit_code) == (RunState.EXITED, 0)
    assert ended.ended_at is not None
    assert ended.detail == "stopping as asked"


@pytest.mark.parametrize("code", [1, 13, 17])
def test_an_exit_code_is_kept_with_the_last_line(root: Path, code: int) -> None:
    runner_of(root, f"exit:{code}").submit(submission())
    runner = runner_of(root)
    ended = end_of(runner)
    assert ended.exit_code == code
    assert ended.detail == f"behaviour exit:{code}"
    document = json.loads((runner.folder("shop.purchases", 1) / "exit.json").read_text())
    assert document["schema"] == "millrace.exit/1"


def end_of(runner: ProcessRunner, epoch: int = 1) -> RunningApp:
    """The app once its end is on record."""
    ended = eventually(lambda: _ended(runner, epoch), within=Deadline.PROCESS, what=f"the end of epoch {epoch}")
    assert ended
    return ended


def _ended(runner: ProcessRunner, epoch: int = 1) -> RunningApp | None:
    app = runner.status("shop.purchases", epoch)
    return app if app and app.state is RunState.EXITED else None


def test_a_killed_driver_leaves_no_child_alive(root: Path) -> None:
    runner_of(root, "die-leaving-family").submit(submission())
    runner = runner_of(root)
    ended = end_of(runner)
    assert ended.exit_code == 137
    guard = json.loads((runner.folder("shop.purchases", 1) / "guard.json").read_text())["guard"]["pid"]
    assert set(members(root)) <= {guard}, "more is left than the guard, which ends when it has written the exit code"
    gone(root)


@pytest.mark.parametrize("behaviour", ["family", "deaf", "chain"])
def test_kill_ends_every_process_whatever_session_it_went_to(root: Path, behaviour: str) -> None:
    app = started(root, behaviour)
    eventually(lambda: len(members(root)) >= 4, within=Deadline.PROCESS, what="the app's children")
    runner_of(root).kill(app)
    assert members(root) == []
    ended = runner_of(root).status("shop.purchases", 1)
    assert ended is not None
    assert (ended.state, ended.exit_code) == (RunState.EXITED, 137)


def test_what_is_forked_between_list_and_kill_is_ended_too(root: Path) -> None:
    """Killing what a list shows is not enough: each list here is out of date before it is used."""
    started(root, "chain")

    def outdated_list() -> Sequence[Process]:
        found = processes_of(root)
        eventually(
            lambda: set(members(root)) - {one.pid for one in found},
            within=Deadline.PROCESS,
            what="a process that is not listed",
        )
        return found

    for one in outdated_list():
        send(one, signal.SIGKILL)
    assert members(root), "the chain ended with what was listed: this test shows nothing"
    lists = iter([outdated_list] * 3)
    assert end_all(lambda: next(lists, lambda: processes_of(root))())
    assert members(root) == []


def test_kill_ends_stopped_processes_too(root: Path) -> None:
    app = started(root, "family")
    for pid in members(root):
        os.kill(pid, signal.SIGSTOP)
    runner_of(root).stop(app)
    runner_of(root).kill(app)
    assert members(root) == []


def test_a_driver_whose_guard_is_dead_is_found_stopped_and_killed(root: Path) -> None:
    runner = runner_of(root)
    for epoch, end in enumerate((runner.stop, runner.kill), start=1):
        app = started(root, "family", epoch)
        guard = apps_of(root)[0].guard
        assert guard is not None
        os.kill(guard.pid, signal.SIGKILL)
        eventually(lambda pid=guard.pid: process(pid) is None, within=Deadline.KILLED, what="the guard's death")
        found = runner.find("shop.purchases")
        assert [one.epoch for one in found] == [epoch]
        assert found[0].detail == "its guard is gone"
        end(app)
        eventually(lambda: not runner.find("shop.purchases"), within=Deadline.PROCESS, what="the driver's end")
        lost = runner.status("shop.purchases", epoch)
        assert lost is not None
        assert lost.state is RunState.LOST
        runner.kill(lost)
        assert members(root) == []


def test_a_folder_without_processes_and_exit_code_is_lost_as_after_a_reboot(root: Path) -> None:
    app = started(root)
    runner = runner_of(root)
    runner.kill(app)
    (runner.folder("shop.purchases", 1) / "exit.json").unlink(missing_ok=True)
    lost = runner.status("shop.purchases", 1)
    assert lost is not None
    assert lost.state is RunState.LOST
    assert runner.status("shop.purchases", 2) is None


def test_a_process_id_given_to_somebody_else_is_not_taken_for_the_app(root: Path) -> None:
    app = started(root)
    runner = runner_of(root)
    runner.kill(app)
    folder = runner.folder("shop.purchases", 1)
    (folder / "exit.json").unlink(missing_ok=True)
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        found = process(stranger.pid)
        assert found is not None
        identity = {"pid": found.pid, "started_ticks": found.started_ticks}
        (folder / "guard.json").write_text(json.dumps({"guard": identity, "driver": identity}))
        lost = runner.status("shop.purchases", 1)
        assert lost is not None
        assert lost.state is RunState.LOST
        runner.stop(app)
        runner.kill(app)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        exit_code_of(stranger, within=Deadline.KILLED, what="the stranger's death")


def test_two_roots_with_the_same_names_do_not_touch_each_other(
    root: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other")
    started(root)
    theirs = started(other)
    runner_of(root).stop_all(timedelta(seconds=10))
    assert members(root) == []
    assert [app.epoch for app in runner_of(other).find("shop.purchases")] == [1]
    runner_of(other).kill(theirs)
    assert not apps_of(other)


def test_stop_all_waits_for_what_stops_and_kills_what_does_not(root: Path) -> None:
    runner = runner_of(root)
    started(root, "wait", stream="shop.purchases")
    assert len(runner.stop_all(timedelta(seconds=Deadline.PROCESS.seconds))) == 1
    assert end_of(runner).exit_code == 0
    started(root, "deaf", stream="shop.deaf")
    started(root, "deaf", epoch=2, stream="shop.purchases")
    assert set(runner.find_all()) == {"shop.deaf", "shop.purchases"}
    assert len(runner.stop_all(timedelta(seconds=1))) == 2
    assert runner.find_all() == {}
    assert [runner.status(*app).exit_code for app in (("shop.deaf", 1), ("shop.purchases", 2))] == [137, 137]  # type: ignore[union-attr]


def test_the_same_epoch_is_not_submitted_twice(root: Path) -> None:
    started(root)
    with pytest.raises(RefusedError, match="already submitted"):
        runner_of(root).submit(submission(instance="abc2"))
    assert len(runner_of(root).find("shop.purchases")) == 1


def test_a_command_that_cannot_start_says_so(root: Path) -> None:
    runner = ProcessRunner(Settings(root=root, lookup=CONNECTIONS.get), lambda asked: ["/no/such/program"])
    with pytest.raises(PartFailedError, match="could not be started"):
        runner.submit(submission())
    ended = _ended(runner)
    assert ended is not None
    assert ended.exit_code == 127


def test_only_the_last_ten_epochs_are_kept(root: Path) -> None:
    runner = runner_of(root, "exit:1")
    for epoch in range(1, 14):
        runner.submit(submission(epoch))
        end_of(runner, epoch)
    kept = sorted(int(entry.name) for entry in runner.folder("shop.purchases", 1).parent.iterdir())
    assert kept == list(range(4, 14))
    assert runner.folder("shop.purchases", 13).stat().st_mode & 0o777 == 0o700


def test_an_app_survives_the_end_of_its_submitter_and_of_its_group(root: Path, tmp_path: Path) -> None:
    script = textwrap.dedent(f"""
        import sys, time
        sys.path[:0] = {sys.path!r}
        from pathlib import Path
        from contract.host.streams.test_runner_process import runner_of, submission
        runner_of(Path({str(root)!r})).submit(submission())
        print("submitted", flush=True)
        time.sleep(60)
    """)
    submitter = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert line_of(submitter.stdout, what="the submission") == "submitted\n"
    os.killpg(submitter.pid, signal.SIGKILL)
    exit_code_of(submitter, within=Deadline.KILLED, what="the submitter's death")
    found = runner_of(root).find("shop.purchases")
    assert [app.epoch for app in found] == [1]
    driver = apps_of(root)[0].driver
    assert driver is not None
    assert name_of(driver.pid, root) == AppName("shop.purchases", 1, "abc1")


def test_an_app_whose_folder_was_deleted_is_still_running(root: Path) -> None:
    started(root)
    runner = runner_of(root)
    shutil.rmtree(runner.folder("shop.purchases", 1))
    app = runner.status("shop.purchases", 1)
    assert app is not None
    assert app.state is RunState.RUNNING
    runner.stop(app)
    gone(root)
