"""The launcher's decisions, without installing anything."""

from __future__ import annotations

import ast
import json
import shutil
import sys
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType, SimpleNamespace

import psutil
import pytest

from support.waiting import Deadline, eventually

LAUNCHER = Path(__file__).resolve().parents[3] / "millrace"


@pytest.fixture
def launcher(tmp_path: Path) -> ModuleType:
    """The launcher as a module, looking at a project folder of its own."""
    loader = SourceFileLoader("millrace_launcher", str(LAUNCHER))
    spec = spec_from_loader("millrace_launcher", loader)
    assert spec
    module = module_from_spec(spec)
    sys.dont_write_bytecode, former = True, sys.dont_write_bytecode
    loader.exec_module(module)
    sys.dont_write_bytecode = former
    for name in ("requirements.txt", "pyproject.toml"):
        shutil.copy(LAUNCHER.parent / name, tmp_path / name)
    module.ROOT = str(tmp_path)
    module.ENVIRONMENT = str(tmp_path / ".venv")
    module.STATE = str(tmp_path / ".millrace")
    module.STAMP = str(tmp_path / ".venv" / "millrace-installed.json")
    module.REQUIREMENTS = str(tmp_path / "requirements.txt")
    module.PAUSE_SECONDS = 0
    return module


def test_an_old_python_can_read_the_file() -> None:
    ast.parse(LAUNCHER.read_text(encoding="utf-8"), feature_version=(3, 5))


def test_an_old_python_is_told_so(
    launcher: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launcher.sys, "version_info", (3, 9, 2))
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    with pytest.raises(SystemExit) as ended:
        launcher.check_python()
    assert ended.value.code == 3
    assert "this is Python 3.9, Millrace needs 3.11 or newer" in capsys.readouterr().err


def test_an_old_python_hands_over_to_a_newer_one(launcher: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[tuple[str, list[str]]] = []
    monkeypatch.delenv("MILLRACE_LAUNCHED_AGAIN", raising=False)
    monkeypatch.setattr(launcher.sys, "version_info", (3, 9, 2))
    monkeypatch.setattr(launcher.sys, "argv", ["millrace", "status"])
    monkeypatch.setattr(shutil, "which", lambda name: f"/opt/{name}" if name == "python3.12" else None)

    def hand_over(program: str, words: list[str]) -> None:
        called.append((program, words))
        raise SystemExit(0)

    monkeypatch.setattr(launcher.os, "execv", hand_over)
    with pytest.raises(SystemExit):
        launcher.check_python()
    assert called == [("/opt/python3.12", ["/opt/python3.12", str(LAUNCHER), "status"])]


LOST = "error: Request failed after 3 retries"
NETWORK_FAILURES = [
    f"{LOST}\n  cause: HTTP status server error (503 Service Unavailable) for url (x)",
    f"{LOST}\n  cause: HTTP status client error (429 Too Many Requests) for url (x)",
    "error: Failed to download `x`\n  cause: error decoding response body\n  cause: request or response body error\n"
    "  cause: error reading a body from connection\n  cause: end of file before message length reached",
    "  cause: Failed to download distribution due to network timeout. Try increasing UV_HTTP_TIMEOUT",
    "ProtocolError: (\"Connection broken: ConnectionResetError(104, 'Connection reset by peer')\", ...)",
    "ReadTimeoutError: HTTPConnectionPool(host='x', port=1): Read timed out.",
    "ERROR: No matching distribution found for x==1 (from versions: none)",
]
LASTING_FAILURES = [
    "OSError: [Errno 28] No space left on device",
    "error: Hash mismatch for `boto3==1.44.5`",
    "error sending request for url (x)\n  cause: client error (Connect)\n  cause: UnknownIssuer",
    "error: Failed to build `x`",
]


def stand_in(folder: Path, said: str, *, failing: int) -> list[str]:
    """A program that notes its words in `tries`, and fails so many times with this output before it succeeds."""
    (folder / "said").write_text(said + "\n")
    program = folder / "program"
    program.write_text(
        f'#!/bin/sh\ncd {folder}\necho "$*" >> tries\n[ $(wc -l < tries) -gt {failing} ] || {{ cat said; exit 1; }}\n'
        "echo done\n"
    )
    program.chmod(0o755)
    return [str(program), "word"]


def tries(folder: Path) -> list[str]:
    """What the stand-in was called with, each time."""
    return (folder / "tries").read_text().splitlines()


def test_an_installer_that_outlives_its_launcher_still_holds_up_the_next_launcher(
    launcher: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "launcher.lock").open("a") as lock:
        monkeypatch.setattr(launcher, "LOCKS", [lock.fileno()])
        inherited = f"import os; print(os.fstat({lock.fileno()}).st_ino)"
        output, _ = launcher.run_once([sys.executable, "-c", inherited], launcher.Ticker(), "installing", 60)
        assert output == str((tmp_path / "launcher.lock").stat().st_ino)


@pytest.mark.parametrize("said", NETWORK_FAILURES)
def test_a_step_that_the_network_fails_twice_is_tried_a_third_time(
    launcher: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], said: str
) -> None:
    command = stand_in(tmp_path, said, failing=2)
    output, *_ = launcher.run(command, launcher.Ticker(), "installing things", again=["--anew"])
    assert output == "done"
    assert tries(tmp_path) == ["word", "word --anew", "word --anew"]
    told = capsys.readouterr().err.splitlines()
    because = f"millrace: installing things: the package index cannot be reached: {said.splitlines()[-1].strip()}"
    assert told == [f"{because}; try {number} of 3 in 0 s" for number in (2, 3)]


def test_a_network_that_stays_away_is_the_error_after_three_tries(launcher: ModuleType, tmp_path: Path) -> None:
    command = stand_in(tmp_path, NETWORK_FAILURES[0], failing=9)
    with pytest.raises(launcher.LaunchError, match="the package index cannot be reached"):
        launcher.run(command, launcher.Ticker(), "installing things")
    assert len(tries(tmp_path)) == 3


@pytest.mark.parametrize("said", LASTING_FAILURES)
def test_what_does_not_pass_by_itself_is_tried_once(
    launcher: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], said: str
) -> None:
    command = stand_in(tmp_path, said, failing=1)
    with pytest.raises(launcher.LaunchError):
        launcher.run(command, launcher.Ticker(), "installing things")
    assert tries(tmp_path) == ["word"]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("ends", [False, True], ids=["hangs itself", "leaves a child that holds its output"])
def test_a_step_that_hangs_is_stopped_with_all_that_it_started_and_tried_again(
    launcher: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], ends: bool
) -> None:
    program = tmp_path / "program"
    wait = "exit 1" if ends else "wait"
    program.write_text(
        f"#!/bin/sh\ncd {tmp_path}\n[ -e tried ] && echo done && exit\ntouch tried\necho Downloading a part\n"
        f"sleep 600 &\necho $! > child\n{wait}\n"
    )
    program.chmod(0o755)
    output, *_ = launcher.run([str(program)], launcher.Ticker(), "installing things", seconds=3)
    assert output == "done"
    told = "installing things did not end within 3 s and was stopped: Downloading a part; try 2 of 3 in 0 s"
    assert told in capsys.readouterr().err
    child = int((tmp_path / "child").read_text())
    eventually(lambda: not alive(child), within=Deadline.KILLED, what="the step's child to be gone")


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended and was not waited for yet does not."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


@pytest.mark.parametrize(
    ("output", "says"),
    [
        ("error: failed to write: No space left on device (os error 28)", "the disk is full"),
        ("OSError: [Errno 28] No space left on device", "the disk is full"),
        ("Caused by: dns error: failed to lookup address information", "the package index cannot be reached"),
        (
            "NewConnectionError: Failed to establish a new connection: [Errno 111]",
            "the package index cannot be reached",
        ),
        (
            "error sending request for url (x)\n  Caused by: client error (Connect)\n"
            "  Caused by: invalid peer certificate: UnknownIssuer",
            "signed by an authority that pip and uv do not know",
        ),
        (
            "SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: "
            "unable to get local issuer certificate')) (from versions: none)",
            "signed by an authority that pip and uv do not know",
        ),
        ("error: Hash mismatch for `boto3==1.44.5`", "is not the one that requirements.txt names"),
        ("THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE", "is not the one"),
        ("error: something else", "the installation failed:\nerror: something else"),
    ],
)
def test_a_failed_installation_names_its_cause(launcher: ModuleType, output: str, says: str) -> None:
    error = launcher.classify_failure(output)
    assert says in error.what
    assert error.next_step


def test_too_little_space_is_said_before_anything_is_downloaded(
    launcher: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: SimpleNamespace(free=10**9))
    with pytest.raises(launcher.LaunchError, match=r"the disk is full \(1.0 GB free, 4 GB needed\)"):
        launcher.check_machine()


def test_a_python_without_venv_is_named(launcher: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    with pytest.raises(launcher.LaunchError, match="no venv module") as met:
        launcher.check_machine()
    assert "python3-venv" in met.value.next_step


@pytest.mark.parametrize(
    ("output", "seconds"),
    [
        ("Resolved 9 packages\nPrepared 210 packages in 35.20s\nInstalled 210 packages in 2.1s", 35.2),
        ("Prepared 1 package in 250ms", 0.25),
        ("Prepared 210 packages in 1m 05s", 65.0),
        ("Audited 210 packages in 12ms", 0.0),
    ],
)
def test_download_time_is_uvs_own(launcher: ModuleType, output: str, seconds: float) -> None:
    assert launcher.seconds_preparing(output) == pytest.approx(seconds)


def test_uv_is_taken_from_the_lock_with_its_hashes(launcher: ModuleType) -> None:
    lines = launcher.uv_requirement().splitlines()
    assert lines[0].startswith("uv==")
    assert all(line.strip().startswith("--hash=sha256:") for line in lines[1:])
    assert len(lines) > 1


def _pretend(launcher: ModuleType, monkeypatch: pytest.MonkeyPatch, *, fail_at: str = "") -> list[str]:
    """Stand in for the tools: note each step, make the interpreter's file, fail where asked."""
    steps: list[str] = []

    def run(_command: list[str], _ticker: object, what: str, **_more: object) -> tuple[str, float, float]:
        steps.append(what)
        if what == "making .venv":
            program = Path(launcher.python_program())
            program.parent.mkdir(parents=True, exist_ok=True)
            program.write_text("")
            program.chmod(0o755)
        if what == fail_at:
            raise launcher.LaunchError("interrupted", "again")
        return "Prepared 3 packages in 3.00s", 1.0, 0.0

    monkeypatch.setattr(launcher, "run", run)
    return steps


def test_an_installation_is_made_once(launcher: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = _pretend(launcher, monkeypatch)
    assert launcher.ensure_environment() >= 2.0
    assert steps == ["making .venv", "installing uv", "installing packages", "installing millrace itself"]
    assert launcher.ensure_environment() == 0.0
    assert len(steps) == 4


def test_an_interrupted_installation_is_begun_again(launcher: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    _pretend(launcher, monkeypatch, fail_at="installing packages")
    with pytest.raises(launcher.LaunchError):
        launcher.ensure_environment()
    assert launcher.installed_stamp() is None
    steps = _pretend(launcher, monkeypatch)
    launcher.ensure_environment()
    assert steps[0] == "making .venv"
    assert launcher.installed_stamp() == launcher.wanted_stamp()


def test_a_changed_lock_updates_the_environment_in_place(launcher: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    _pretend(launcher, monkeypatch)
    launcher.ensure_environment()
    with open(launcher.REQUIREMENTS, "a", encoding="utf-8") as lock:
        lock.write("# changed\n")
    steps = _pretend(launcher, monkeypatch)
    launcher.ensure_environment()
    assert steps == ["installing packages", "installing millrace itself"]


def test_a_change_of_the_linters_rules_installs_nothing(launcher: ModuleType) -> None:
    before = launcher.wanted_stamp()
    described = Path(launcher.ROOT) / "pyproject.toml"
    described.write_text(described.read_text().replace("line-length = 120", "line-length = 100"))
    assert launcher.wanted_stamp() == before


def test_a_damaged_stamp_counts_as_none(launcher: ModuleType) -> None:
    Path(launcher.ENVIRONMENT).mkdir()
    Path(launcher.STAMP).write_text(json.dumps(["not", "it"]))
    assert launcher.installed_stamp() is None
