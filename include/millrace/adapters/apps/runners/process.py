"""The runner `process`: stream apps as detached processes of this machine.

An app is a guard (see `guard`), the driver it starts, and what the driver starts. The guard is no child of
the submitter and lives in a session of its own, so no restart of an Airflow component or end of a terminal reaches it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import millrace
from millrace.adapters.apps.environment import app_environment
from millrace.adapters.apps.processes import (
    APP_VARIABLE,
    AppName,
    AppProcesses,
    Process,
    SharedScan,
    app_folder,
    apps_of,
    end_all,
    name_of,
    owner_of,
    process,
    send,
)
from millrace.adapters.apps.runners.guard import LAST_LINES, last_lines, write_json
from millrace.adapters.apps.status import beat_of
from millrace.domain.streams.vitals import Vitals
from millrace.errors import Code, PartFailedError, RefusedError
from millrace.ports.runner import RunningApp, RunState, Submission
from millrace.settings import Settings

KEPT_EPOCHS = 10
TICK_SECONDS = 1.0
SUBMIT_SECONDS = 30.0

CommandOf = Callable[[Submission], Sequence[str]]


class ProcessRunner:
    """Runs stream apps on this machine, under `ROOT/.millrace/streams/QUALIFIED/EPOCH/`.

    Args:
        settings: the project's root and its connections.
        command_of: the driver's command line for a submission; default the project's `spark_apps/stream.py`.
            It must carry `--stream`, `--epoch` and `--instance`: they are the driver's name.

    Guarantees:
        An app sees the variables of `environment_of` and no others. A process is never signalled by its id alone.

    Does not guarantee:
        That a submission is started once: the stream's claim does.
    """

    kind = "process"

    def __init__(self, settings: Settings, command_of: CommandOf | None = None) -> None:
        self._settings = settings
        self._root = settings.root
        self._command_of = command_of or self._driver_command
        self.scan = SharedScan(settings.root, TICK_SECONDS)

    def submit(self, submission: Submission) -> RunningApp:
        """Start an app; returns when its driver was started, not when it is ready.

        Raises:
            RefusedError: this epoch was submitted before, or this is not the user who owns the project's state.
            UnreachableError: one of its connections is not defined.
            PartFailedError: it could not be started, or nobody answered in time (then `find` tells).
        """
        self._must_be_owner()
        environment = self.environment_of(submission)
        name = AppName(submission.stream, submission.epoch, submission.instance)
        folder = self.folder(submission.stream, submission.epoch)
        package = str(Path(millrace.__file__).resolve().parents[1])
        guard = [
            sys.executable,
            "-m",
            "millrace.adapters.apps.runners.guard",
            "--root",
            str(self._root),
            *name.arguments(),
        ]
        try:
            self._make_folder(folder, name, submission.stuck_after)
            with (folder / "driver.log").open("ab", buffering=0) as log:
                done = subprocess.run(
                    [*guard, "--", *self._command_of(submission)],
                    env=environment | {"PYTHONPATH": package},
                    cwd=self._root,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    timeout=SUBMIT_SECONDS,
                    check=False,
                )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise self._not_started(name, str(error)) from error
        finally:
            self.scan.forget()
        if done.returncode != 0:
            raise self._not_started(name, "\n".join(last_lines(folder / "driver.log", LAST_LINES)))
        self._remove_old_epochs(submission.stream)
        return self.status(submission.stream, submission.epoch) or self._running(AppProcesses(name))

    def find(self, stream: str, *, fresh: bool = False) -> Sequence[RunningApp]:
        """Every app of this stream whose guard or driver lives, newest epoch first."""
        return self._living(lambda name: name.stream == stream, fresh=fresh)

    def find_all(self) -> Mapping[str, Sequence[RunningApp]]:
        """Every living app of this root by stream, also of streams that no declaration names."""
        found: dict[str, list[RunningApp]] = {}
        for app in self._living(lambda name: True, fresh=True):
            found.setdefault(app.stream, []).append(app)
        return found

    def status(self, stream: str, epoch: int) -> RunningApp | None:
        """The app of this epoch, living or ended; None where it was never submitted here."""
        folder = self.folder(stream, epoch)
        if ended := _read_json(folder / "exit.json"):
            return _ended_app(ended, folder)
        submitted = _read_json(folder / "submission.json")
        name = AppName.parse(str(submitted.get("name", ""))) if submitted else None
        if name is None:  # never submitted here, or its folder was deleted under it
            living = self._living(lambda other: (other.stream, other.epoch) == (stream, epoch), fresh=True)
            return living[0] if living else None
        if self._recorded_process_lives(folder, name):
            return self._running(AppProcesses(name))
        living = self._living(lambda other: other == name, fresh=True)
        if living:
            return living[0]
        if ended := _read_json(folder / "exit.json"):  # written while we looked
            return _ended_app(ended, folder)
        return self._app(name, RunState.LOST, detail="its processes are gone and left no exit code")

    def last_lines(self, stream: str, epoch: int, count: int) -> Sequence[str]:
        """What the driver of this epoch said last, at most so many lines; none where it left no log."""
        return last_lines(self.folder(stream, epoch) / "driver.log", count)

    def stop(self, app: RunningApp) -> None:
        """Ask the driver to finish its batch, commit and exit 0. Returns at once."""
        folder = self.folder(app.stream, app.epoch)
        for found in apps_of(self._root, lambda name: _same(name, app)):
            asked = folder / "stopping.json"
            if not asked.exists() and folder.is_dir():
                now = datetime.now(UTC).isoformat()
                write_json(asked, {"schema": "millrace.stopping/1", "since": now})
            if target := found.guard or found.driver:
                send(target, signal.SIGTERM)

    def kill(self, app: RunningApp) -> None:
        """End the app and all its processes now. Returns when none is left.

        Raises:
            PartFailedError: some process cannot be ended (it hangs in the kernel).
        """

        def below_guard() -> Iterable[Process]:
            for found in apps_of(self._root, lambda name: _same(name, app)):
                yield from (one for one in found.all if one != found.guard)

        def everything() -> Iterable[Process]:
            return (one for found in apps_of(self._root, lambda name: _same(name, app)) for one in found.all)

        end_all(below_guard)
        self._let_guard_write(app)
        all_ended = end_all(everything)
        self.scan.forget()
        if not all_ended:
            raise PartFailedError(
                "some processes of the app cannot be ended",
                where=f"{app.stream} epoch {app.epoch}: {', '.join(str(one.pid) for one in everything())}",
                next_step="check them with `ps`; a process in state D waits for a disk or a network file system",
                code=Code.APP_FAILED,
            )

    def stop_all(self, grace: timedelta) -> Sequence[RunningApp]:
        """Stop every app of this root, kill what is left after `grace`; the apps that were alive.

        Afterwards no process of any app of this root is left.
        """
        living = self._living(lambda name: True, fresh=True)
        for app in living:
            self.stop(app)
        deadline = time.monotonic() + grace.total_seconds()
        while time.monotonic() < deadline and self._living(lambda name: True, fresh=True):
            time.sleep(0.1)
        for found in apps_of(self._root):
            self.kill(self._running(found))
        return living

    def folder(self, stream: str, epoch: int) -> Path:
        """Where an epoch's log, status and exit code are."""
        return app_folder(self._root, stream, epoch)

    def environment_of(self, submission: Submission) -> dict[str, str]:
        """All variables an app gets: those of `adapters.apps.environment`, and its name.

        Raises:
            UnreachableError: one of the connections is not defined.
        """
        name = AppName(submission.stream, submission.epoch, submission.instance)
        return app_environment(self._settings, submission.connections) | {APP_VARIABLE: str(name)}

    def _driver_command(self, submission: Submission) -> Sequence[str]:
        name = AppName(submission.stream, submission.epoch, submission.instance)
        return [sys.executable, str(self._root / "spark_apps" / "stream.py"), *name.arguments(), *submission.arguments]

    def _must_be_owner(self) -> None:
        """An app of another user would never be found again. Who starts a project's first one becomes its owner."""
        (self._root / ".millrace").mkdir(mode=0o700, exist_ok=True)
        owner, users = owner_of(self._root), sorted({os.getuid(), os.geteuid()})
        if users != [owner]:
            raise RefusedError(
                f"the project's state belongs to user {owner}, this is user {' as '.join(map(str, users))}",
                where=str(self._root / ".millrace"),
                next_step="run Millrace as that user; or stop the streams, then give the folder and its files to "
                "this user with `chown -R`",
                code=Code.OTHER_USER,
            )

    def _make_folder(self, folder: Path, name: AppName, stuck_after: timedelta) -> None:
        for parent in (self._root / ".millrace" / "streams", folder.parent):
            parent.mkdir(mode=0o700, exist_ok=True)
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            raise RefusedError(
                "this epoch is already submitted",
                where=f"{name.stream} epoch {name.epoch}",
                next_step="raise the epoch",
                code=Code.ALREADY_EXISTS,
            ) from None
        write_json(
            folder / "submission.json",
            {
                "schema": "millrace.submission/1",
                "name": str(name),
                "at": datetime.now(UTC).isoformat(),
                "stuck_after_seconds": stuck_after.total_seconds(),
            },
        )

    def _not_started(self, name: AppName, why: str) -> PartFailedError:
        return PartFailedError(
            f"the app could not be started: {why}",
            where=f"{name.stream} epoch {name.epoch}",
            next_step=f"read {self.folder(name.stream, name.epoch) / 'driver.log'}",
            code=Code.APP_FAILED,
        )

    def _living(self, wanted: Callable[[AppName], bool], *, fresh: bool = False) -> list[RunningApp]:
        scanned = self.scan.apps(fresh=fresh)
        living = [found for found in scanned if wanted(found.name) and (found.guard or found.driver)]
        return sorted((self._running(found) for found in living), key=lambda app: -app.epoch)

    def _running(self, found: AppProcesses) -> RunningApp:
        oldest = found.guard or found.driver
        detail = "its guard is gone" if found.driver and not found.guard else ""
        return self._app(found.name, RunState.RUNNING, detail=detail, started_at=oldest.started_at if oldest else None)

    def _app(
        self, name: AppName, state: RunState, *, detail: str = "", started_at: datetime | None = None
    ) -> RunningApp:
        folder = self.folder(name.stream, name.epoch)
        asked = _read_json(folder / "stopping.json")
        status = _read_json(folder / "status.json") or {}
        began = started_at or _submitted_at(folder)
        return RunningApp(
            stream=name.stream,
            epoch=name.epoch,
            instance=name.instance,
            handle=str(name),
            state=state,
            started_at=began,
            stopping_since=datetime.fromisoformat(str(asked["since"])) if asked else None,
            detail=detail,
            phase=str(status.get("phase", "")),
            vitals=_vitals(folder, status, began) if state is RunState.RUNNING else None,
        )

    def _recorded_process_lives(self, folder: Path, name: AppName) -> bool:
        """Whether the guard or the driver that the guard noted still lives: a look at two processes, not at all."""
        noted = _read_json(folder / "guard.json") or {}
        for role in ("guard", "driver"):
            identity = noted.get(role)
            if not isinstance(identity, dict):
                continue
            found = process(int(identity["pid"]))
            known = found and found.started_ticks == identity["started_ticks"]
            if found and known and name_of(found.pid, self._root) == name:
                return True
        return False

    def _let_guard_write(self, app: RunningApp) -> None:
        """Wait a moment for the guard to notice that its driver is dead and to write the exit code."""
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline:
            guards = [found.guard for found in apps_of(self._root, lambda name: _same(name, app)) if found.guard]
            if not guards:
                return
            for guard in guards:
                send(guard, signal.SIGCONT)
            time.sleep(0.05)

    def _remove_old_epochs(self, stream: str) -> None:
        folders = [entry for entry in self.folder(stream, 0).parent.iterdir() if entry.name.isdigit()]
        alive = {app.epoch for app in self.find(stream, fresh=True)}
        for old in sorted(folders, key=lambda entry: int(entry.name))[:-KEPT_EPOCHS]:
            if int(old.name) not in alive:
                shutil.rmtree(old, ignore_errors=True)


def _vitals(folder: Path, status: Mapping[str, object], began: datetime | None) -> Vitals | None:
    """How a living app gets on; None for the app of another version of Millrace."""
    if status:
        beat = beat_of(status)
        return beat.vitals(phase=status.get("phase"), now=time.monotonic()) if beat else None
    bound = (_read_json(folder / "submission.json") or {}).get("stuck_after_seconds")
    if began is None or not isinstance(bound, int | float):
        return None
    return Vitals(starting_for=datetime.now(UTC) - began, step_since=began, bound=timedelta(seconds=bound))


def _same(name: AppName, app: RunningApp) -> bool:
    return (name.stream, name.epoch, name.instance) == (app.stream, app.epoch, app.instance)


def _submitted_at(folder: Path) -> datetime | None:
    submitted = _read_json(folder / "submission.json")
    return datetime.fromisoformat(str(submitted["at"])) if submitted else None


def _ended_app(document: Mapping[str, object], folder: Path) -> RunningApp:
    lines = document.get("last_lines")
    text = [line for line in lines if str(line).strip()] if isinstance(lines, list) else []
    name = AppName(str(document["stream"]), int(str(document["epoch"])), str(document["instance"]))
    return RunningApp(
        stream=name.stream,
        epoch=name.epoch,
        instance=name.instance,
        handle=str(name),
        state=RunState.EXITED,
        started_at=_submitted_at(folder),
        ended_at=datetime.fromisoformat(str(document["ended_at"])),
        exit_code=int(str(document["exit_code"])),
        detail=str(text[-1]) if text else "",
    )


def _read_json(path: Path) -> dict[str, object] | None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError):
        return None
    return document if isinstance(document, dict) else None
