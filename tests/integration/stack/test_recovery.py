"""The stack after the worst: parts killed, all killed, ports taken, two starts at once, a part that cannot start."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from io import StringIO
from pathlib import Path

import psutil
import psycopg
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console

from millrace.embedded import ports
from millrace.embedded.layout import write_private
from millrace.embedded.processes import ROOT_VARIABLE, Identity, PartRecord, left_of_part
from millrace.embedded.progress import Progress, Silent
from millrace.embedded.stack import PARTS, Stack
from millrace.errors import PartFailedError
from support.checks.budget import Kind, spend
from support.stack.embedded import make_project, open_stack
from support.waiting import Deadline, eventually, exit_code_of, joined, line_of, output_of, result_of

SERVERS = ("kafka", "s3", "postgres")
PROGRAMS = ("supervisord", *(name for part in PARTS.values() for name in part.program_names))


@pytest.fixture(scope="module")
def own(turn: None) -> Iterator[Stack]:
    """A stack that nobody else uses, for it is killed again and again."""
    stack = open_stack("recovery")
    stack.start(Silent(), SERVERS)
    yield stack
    stack.stop(Silent())


def processes_of(stack: Stack) -> list[Identity]:
    """Everything that belongs to a stack, found in every way there is."""
    data = stack.layout.state / "postgres" / "data"
    return [
        process
        for name in PROGRAMS
        for process in left_of_part(stack.layout, name, working_in=data if name == "postgres" else None)
    ]


def healthy(stack: Stack) -> set[str]:
    return {status.name for status in stack.status() if status.healthy}


def stop_for_another_start(stack: Stack) -> int:
    """Stop what a test starts again; how many apps it ended."""
    spend(Kind.SERVER_RESTARTS, len(SERVERS))
    return stack.stop(Silent())


def kill_leader(stack: Stack, part: str, *, restarted: int) -> None:
    """Kill -9 a part's first process, after which so many servers start once more."""
    spend(Kind.SERVER_RESTARTS, restarted)
    record = PartRecord.read(stack.layout, part)
    assert record
    os.kill(record.leader.pid, signal.SIGKILL)
    eventually(lambda: not record.leader.is_alive(), within=Deadline.KILLED, what="the kill")


def kill_all(stack: Stack) -> None:
    spend(Kind.SERVER_RESTARTS, len(SERVERS))
    for process in processes_of(stack):
        with suppress(ProcessLookupError):  # a server's worker ends with its leader
            os.kill(process.pid, signal.SIGKILL)
    eventually(lambda: not processes_of(stack), within=Deadline.KILLED, what="the killed stack to be gone")


def remember(stack: Stack) -> str:
    """Leave a topic and a row that must survive whatever follows."""
    name = f"kept.{uuid.uuid4().hex[:8]}"
    admin = AdminClient(dict(stack.settings().kafka().librdkafka))
    result_of(admin.create_topics([NewTopic(name, 1, 1)])[name], what="the new topic")
    with psycopg.connect(**stack.settings().postgres("millrace_sink").keywords()) as connection:  # type: ignore[arg-type]
        connection.execute(f'CREATE TABLE "{name}" (id int)')
    return name


def remembers(stack: Stack, name: str) -> bool:
    admin = AdminClient(dict(stack.settings().kafka().librdkafka))
    with psycopg.connect(**stack.settings().postgres("millrace_sink").keywords()) as connection:  # type: ignore[arg-type]
        row = connection.execute("SELECT count(*) FROM pg_tables WHERE tablename = %s", [name]).fetchone()
    return row == (1,) and name in admin.list_topics(timeout=Deadline.METADATA.seconds).topics


@pytest.mark.parametrize("part", SERVERS)
@pytest.mark.full
def test_a_killed_server_comes_back_by_itself_with_its_data(own: Stack, part: str) -> None:
    own.start(Silent(), SERVERS)
    kept = remember(own)
    kill_leader(own, part, restarted=1)
    eventually(lambda: part in healthy(own), within=Deadline.SERVER, what=f"{part} to be back")
    assert remembers(own, kept)


@pytest.mark.full
def test_after_everything_was_killed_and_its_ports_were_taken_it_starts_on_others(own: Stack) -> None:
    own.start(Silent(), SERVERS)
    kept = remember(own)
    kill_all(own)
    former = ports.read(own.layout)
    with socket.socket() as one, socket.socket() as other:
        for squatter, name in ((one, "kafka"), (other, "postgres")):
            squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            squatter.bind(("127.0.0.1", former[name]))
            squatter.listen()
        own.start(Silent(), SERVERS)
    chosen = ports.read(own.layout)
    assert {name for name in former if former[name] != chosen[name]} == {"kafka", "postgres"}
    assert remembers(own, kept)


@pytest.mark.full
def test_parts_left_by_a_killed_supervisor_are_not_doubled(own: Stack) -> None:
    own.start(Silent(), SERVERS)
    kept = remember(own)
    before = processes_of(own)
    kill_leader(own, "supervisord", restarted=len(SERVERS))
    own.start(Silent(), SERVERS)
    assert not [process for process in before if process.is_alive()]
    assert healthy(own) >= set(SERVERS)
    assert remembers(own, kept)


@pytest.mark.full
def test_records_of_another_boot_are_nobodys(own: Stack) -> None:
    """After a reboot the ids in the records belong to strangers: a stale record must not kill one."""
    own.start(Silent(), SERVERS)
    stop_for_another_start(own)
    stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    try:
        identity = Identity.of(stranger.pid)
        assert identity
        other_boot = Identity(identity.pid, identity.started, "another boot")
        PartRecord("kafka", other_boot, int(signal.SIGTERM)).write(own.layout)
        other_life = Identity(identity.pid, identity.started - 1, identity.boot)
        PartRecord("s3", other_life, int(signal.SIGTERM)).write(own.layout)
        (own.layout.state / "postgres" / "data" / "postmaster.pid").write_text(f"{stranger.pid}\n")
        own.start(Silent(), SERVERS)
        assert stranger.poll() is None
        assert healthy(own) >= set(SERVERS)
    finally:
        output_of(stranger, what="the stranger's end", given=b"\n")


def current_umask() -> int:
    former = os.umask(0)
    os.umask(former)
    return former


@pytest.mark.full
def test_the_second_of_two_starts_says_who_is_at_work_and_waits(own: Stack) -> None:
    stop_for_another_start(own)
    said = [StringIO(), StringIO()]
    failed: list[BaseException] = []

    def start(out: StringIO) -> None:
        try:
            Stack(own.root).start(Progress(Console(file=out)), SERVERS)
        except BaseException as error:
            failed.append(error)

    umask = current_umask()
    both = [threading.Thread(target=start, args=(out,), daemon=True) for out in said]
    for thread in both:
        thread.start()
    for thread in both:
        joined(thread, within=Deadline.STACK, what="the end of both starts")
    assert not failed
    assert current_umask() == umask
    texts = [out.getvalue() for out in said]
    assert sum("waiting: `millrace up` (process" in text for text in texts) == 1
    assert sum("already running" in text for text in texts) == 1
    assert sum("ready on" in text for text in texts) == 1


@pytest.mark.full
def test_down_leaves_no_process_and_no_port_and_keeps_the_data(own: Stack) -> None:
    own.start(Silent(), SERVERS)
    kept = remember(own)
    script = own.root / "spark_apps" / "stream.py"
    app = subprocess.Popen(
        [sys.executable, "-c", "input()", str(script)],
        stdin=subprocess.PIPE,
        env={**os.environ, ROOT_VARIABLE: str(own.root)},
        start_new_session=True,
    )
    shell = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={**os.environ, ROOT_VARIABLE: str(own.root)}
    )
    try:
        assert stop_for_another_start(own) == 1
        assert app.poll() not in (None, 0)
        assert shell.poll() is None, "a person's own program in the project was ended"
        assert processes_of(own) == []
        assert all(ports.is_free(port) for port in ports.read(own.layout).values())
        own.start(Silent(), SERVERS)
        assert remembers(own, kept)
    finally:
        output_of(shell, what="the end of the person's program", given=b"\n")


@pytest.mark.full
def test_a_part_that_does_not_come_up_shows_the_end_of_its_log(own: Stack) -> None:
    stop_for_another_start(own)
    settings = own.layout.state / "postgres" / "data" / "postgresql.conf"
    whole = settings.read_text()
    settings.write_text(whole + "\nshared_bufers = 1\n")
    try:
        with pytest.raises(PartFailedError) as met:
            own.start(Silent(), ["postgres"])
        assert 'unrecognized configuration parameter "shared_bufers"' in met.value.what
        assert met.value.where == str(own.layout.log_file("postgres"))
    finally:
        settings.write_text(whole)
    own.start(Silent(), ["postgres"])
    assert "postgres" in healthy(own)


def test_a_restarted_component_ends_what_its_former_group_left(tmp_path: Path) -> None:
    """As a killed scheduler leaves its workers: the wrapper ends the former group before it becomes the part."""
    from millrace.embedded.servers.program import Program

    stack = Stack(make_project(tmp_path / "project"))
    stack.layout.make()

    worker_code = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'input()'])"
    code = f"{worker_code}; print('ready', flush=True); input()"
    Program("airflow-scheduler", [sys.executable, "-c", code]).write(stack.layout)

    def life() -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "millrace.embedded.component", "airflow-scheduler"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, ROOT_VARIABLE: str(stack.root)},
            process_group=0,
        )
        while b"ready" not in (line := line_of(process.stdout, within=Deadline.SERVER, what="the component")):
            assert line, "the component ended"
        return process

    first = life()
    worker = eventually(lambda: psutil.Process(first.pid).children(), within=Deadline.PROCESS, what="the worker")[0]
    os.kill(first.pid, signal.SIGKILL)
    exit_code_of(first, within=Deadline.KILLED, what="the component's death")
    left = Identity.of(worker.pid)
    assert left
    second = life()
    try:
        assert not left.is_alive()
    finally:
        os.killpg(second.pid, signal.SIGKILL)
        exit_code_of(second, within=Deadline.KILLED, what="the component's death")


@pytest.mark.full
def test_waiting_is_over_when_the_holder_of_the_lock_is_killed(own: Stack, tmp_path: Path) -> None:
    own.start(Silent(), SERVERS)
    code = (
        "import sys\nfrom pathlib import Path\nfrom millrace.embedded.locking import only_one\n"
        "from millrace.embedded.progress import Silent\n"
        "with only_one(Path(sys.argv[1]), 'a stuck start', Silent()):\n    print('held', flush=True)\n    input()\n"
    )
    lock = own.layout.state / "stack.lock"
    holder = subprocess.Popen([sys.executable, "-c", code, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    out = StringIO()
    waiting = threading.Thread(target=lambda: own.start(Progress(Console(file=out)), SERVERS), daemon=True)
    try:
        assert line_of(holder.stdout, what="the holder of the lock") == b"held\n"
        waiting.start()
        eventually(
            lambda: "`a stuck start`" in out.getvalue(),
            within=Deadline.THREAD,
            what="the second to say who is at work",
        )
    finally:
        holder.kill()
        exit_code_of(holder, within=Deadline.KILLED, what="the holder's death")
    joined(waiting, within=Deadline.STACK, what="the end of the second start")
    assert "already running" in out.getvalue()


@pytest.mark.full
def test_a_long_path_has_its_socket_elsewhere(tmp_path: Path) -> None:
    root = tmp_path / ("a-folder-with-a-long-name-" * 4) / "with space %d"
    make_project(root)
    stack = Stack(root)
    try:
        stack.start(Silent(), ["s3"])
        assert "s3" in healthy(stack)
        socket = stack.supervisor._socket()
        assert not socket.is_relative_to(root)
        assert socket.is_socket()
    finally:
        stack.stop(Silent(), wipe=True)
    assert not socket.parent.exists()
    assert {entry.name for entry in stack.layout.state.iterdir()} == {"stack.lock"}


def test_private_files_are_replaced_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("old")
    path.chmod(0o644)
    write_private(path, "new")
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o077 == 0


NEVER_READY = """
import sys
from datetime import timedelta
from pathlib import Path
from millrace.embedded.servers.part import NotReadyError
from millrace.embedded.progress import Progress
from millrace.embedded.stack import PARTS, Stack

def probe(site):
    raise NotReadyError("never, as far as this start knows")

PARTS["postgres"].probe, PARTS["postgres"].patience = probe, timedelta(hours=1)
Stack(Path(sys.argv[1])).start(Progress(), ["postgres", "s3"])
"""


@pytest.mark.full
def test_an_interrupted_start_ends_at_once_and_can_be_repeated(own: Stack) -> None:
    """It waits for PostgreSQL in one thread, for an hour if nobody tells that one to give up."""
    stop_for_another_start(own)
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a run in a shell's background ignores SIGINT
    command = [sys.executable, "-c", NEVER_READY, str(own.root)]
    start = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=heed)
    try:
        what = "the start to wait for PostgreSQL"
        while "postgres: waiting" not in (line := line_of(start.stderr, within=Deadline.SERVER, what=what)):
            assert line, "the start ended"
        start.send_signal(signal.SIGINT)
        output_of(start, within=Deadline.COMMAND, what="the interrupted start to end")
        assert start.returncode == -signal.SIGINT
    finally:
        start.kill()
    own.start(Silent(), SERVERS)
    assert healthy(own) >= set(SERVERS)
