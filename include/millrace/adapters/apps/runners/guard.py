"""The guard of one stream app: a small process that starts the driver, and ends whatever the driver leaves behind.

It runs detached from whoever submitted the app, in a session of its own, and is the subreaper of everything
below it: a JVM or a Python worker whose parent died becomes its child, not a stranger. It passes SIGTERM on
to the driver alone (never to the JVM, which must finish the batch), and when the driver has ended, however, it
ends the rest and writes `exit.json`. Standard library only; nothing it does needs a server.

Does not guarantee an `exit.json` when the guard itself is killed. The driver then goes on without it (a fault of
Millrace never stops a stream) and is found by its name.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from millrace.adapters.apps.processes import Process, app_folder, descendants, end_all, process

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
NATURAL_END_SECONDS = 5.0
LOG_LIMIT_BYTES = 64 * 1024**2
LAST_LINES = 20
TAIL_BYTES = 64 * 1024
_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD}


def main(arguments: Sequence[str]) -> int:
    """Detach, start the driver, and report through the exit code whether it was started (0) or not (1)."""
    options = _parse(arguments)
    reader, writer = os.pipe()
    for number in _SIGNALS:  # whoever started us may have ignored one, and that would be inherited
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    if os.fork():
        os.close(writer)
        with os.fdopen(reader, "rb") as answer:
            return 0 if answer.read() == b"started" else 1
    os.close(reader)
    os.setsid()
    _become_subreaper()
    _guard(options, writer)
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="millrace.adapters.apps.runners.guard", description=__doc__)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--stream", required=True)
    parser.add_argument("--epoch", type=int, required=True)
    parser.add_argument("--instance", required=True)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    options.folder = app_folder(options.root, options.stream, options.epoch)
    return options


def _become_subreaper() -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def _guard(options: argparse.Namespace, answer: int) -> None:
    folder: Path = options.folder
    try:
        driver = subprocess.Popen(
            options.command,
            cwd=options.root,
            stdin=subprocess.DEVNULL,
            env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, set()),
        )
    except OSError as error:
        sys.stderr.write(f"the driver could not be started: {error}\n")
        _write_exit(options, status=127, leftovers=0)
        os.close(answer)
        return
    write_json(
        folder / "guard.json",
        {
            "schema": "millrace.guard/1",
            "guard": _identity(process(os.getpid())),
            "driver": _identity(process(driver.pid)),
        },
    )
    os.write(answer, b"started")
    os.close(answer)
    status = _wait(driver.pid, folder / "driver.log")
    leftovers = _end_what_is_left()
    shutil.rmtree(folder / "scratch", ignore_errors=True)
    _write_exit(options, status=status, leftovers=leftovers)


def _identity(one: Process | None) -> Mapping[str, int] | None:
    return {"pid": one.pid, "started_ticks": one.started_ticks} if one else None


def _wait(driver: int, log: Path) -> int:
    """The driver's exit code, 128 + number where a signal ended it. Collects adopted processes meanwhile."""
    while True:
        received = signal.sigtimedwait(_SIGNALS, 30)
        if received is None:
            _keep_small(log)
        elif received.si_signo == signal.SIGTERM:
            os.kill(driver, signal.SIGTERM)  # it is our child and not collected yet, so the id is still its own
        while True:
            try:
                ended, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return 1
            if ended == driver:
                code = os.waitstatus_to_exitcode(status)
                return 128 - code if code < 0 else code
            if ended == 0:
                break


def _keep_small(log: Path) -> None:
    """Copy and truncate a log that grew too long. It is written in append mode, so nobody has to reopen it."""
    try:
        if log.stat().st_size > LOG_LIMIT_BYTES:
            shutil.copyfile(log, log.with_suffix(".log.1"))
            os.truncate(log, 0)
    except OSError as error:
        sys.stderr.write(f"{log} could not be cut: {error}\n")


def _end_what_is_left() -> int:
    """End the JVM and the workers of a dead driver; how many had to be killed.

    A JVM whose driver is gone reads the end of its standard input and ends by itself, with its shutdown hooks, so
    it is given a moment.
    """
    own = os.getpid()
    deadline = time.monotonic() + NATURAL_END_SECONDS
    while descendants(own) and time.monotonic() < deadline:
        time.sleep(0.05)
        _collect()
    left = len(descendants(own))
    if left and not end_all(lambda: descendants(own), reap=True):
        sys.stderr.write("some processes of this app could not be ended\n")
    return left


def _collect() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def _write_exit(options: argparse.Namespace, *, status: int, leftovers: int) -> None:
    write_json(
        options.folder / "exit.json",
        {
            "schema": "millrace.exit/1",
            "stream": options.stream,
            "epoch": options.epoch,
            "instance": options.instance,
            "exit_code": status,
            "signal": status - 128 if status > 128 else None,
            "ended_at": datetime.now(UTC).isoformat(),
            "killed_leftovers": leftovers,
            "last_lines": last_lines(options.folder / "driver.log", LAST_LINES),
        },
    )


def last_lines(log: Path, count: int) -> list[str]:
    """The last lines of a log, whole ones of its last 64 KiB; none where there is no log.

    A line cut in two might hold half a secret, which nobody who masks secrets would know.
    """
    try:
        with log.open("rb") as file:
            beginning = max(0, log.stat().st_size - TAIL_BYTES)
            file.seek(beginning)
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    return lines[1 if beginning else 0 :][-count:]


def write_json(path: Path, document: Mapping[str, object]) -> None:
    """Write a document so that a reader sees all of it or none, also after a crash."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with draft.open("w", encoding="utf-8") as file:
        json.dump(document, file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
