"""Services of a loaded Compose file, started without a container engine: each with its exact command and environment.

Each service has a mount and a process namespace of its own, a root folder of its image's layers, the volumes, secrets
and configurations that the file gives it, and nothing else; all share one network namespace without a way out, in which
each service's name has an address of its own. What is published is not: a test asks from inside, by `run_in`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from support.stack.images import CHILD, OWN_NAMESPACES, Builder, Image
from support.waiting import Deadline, eventually, exit_code_of, output_of

DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL")
NETWORK_SECONDS = 3600
"""How long the network may stay; what holds it ends by itself then."""

LAST_BYTES = 4000


@dataclass
class Running:
    """A service at work."""

    process: subprocess.Popen[bytes]
    spec: dict[str, Any]
    log: Path

    @property
    def first(self) -> psutil.Process:
        """Its process 1, as it is called from outside."""
        return psutil.Process(self.process.pid).children()[0]

    def said(self) -> str:
        """The end of what it wrote."""
        return self.log.read_text(encoding="utf-8", errors="replace")[-LAST_BYTES:]


@dataclass
class Containers:
    """The services of one project.

    Args:
        builder: made the images; its folder is this one's too.
        project: what the Compose loader made of the file.
        images: by the names that the file uses.
    """

    builder: Builder
    project: Mapping[str, Any]
    images: Mapping[str, Image]
    running: dict[str, Running] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    _network: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __enter__(self) -> Containers:
        hold = f"ip link set lo up && exec sleep {NETWORK_SECONDS}"
        self._network.append(subprocess.Popen([*DIES_WITH_US, "unshare", "--net", "sh", "-c", hold]))
        eventually(self._is_up, within=Deadline.PROCESS, what="the services' network")
        hosts = ["127.0.0.1 localhost", *(f"127.1.0.{n} {name}" for n, name in enumerate(self._services(), 1))]
        (self.builder.folder / "hosts").write_text("\n".join(hosts) + "\n", encoding="utf-8")
        return self

    def __exit__(self, *_error: object) -> None:
        for running in self.running.values():
            running.process.kill()  # its process 1 ends with it, and so everything
            running.process.wait()
        for holder in self._network:
            holder.kill()
            holder.wait()

    def _is_up(self) -> bool:
        looked = subprocess.run([*self._inside(), "ip", "-o", "addr", "show", "lo"], capture_output=True, text=True)
        return "127.0.0.1" in looked.stdout and os.readlink("/proc/self/ns/net") != os.readlink(
            f"/proc/{self._network[0].pid}/ns/net"
        )

    def _inside(self) -> list[str]:
        return ["nsenter", f"--net=/proc/{self._network[0].pid}/ns/net"]

    def _services(self) -> Mapping[str, Any]:
        services: Mapping[str, Any] = self.project["services"]
        return services

    def up(self, name: str) -> None:
        """Start a service after those it depends on, each waited for as the file says; nothing where it was started."""
        if name in self.running or name in self.done:
            return
        service = self._services()[name]
        for other, how in (service.get("depends_on") or {}).items():
            self.up(other)
            if how["condition"] == "service_healthy":
                self.wait_healthy(other)
            elif how["condition"] == "service_completed_successfully":
                self.wait_done(other)
        self.running[name] = self._start(name, service)

    def wait_healthy(self, name: str) -> None:
        """Wait until the service's own health check is content."""
        test = self._services()[name]["healthcheck"]["test"]
        assert test[0] == "CMD"

        def look() -> bool:
            running = self.running[name]
            assert running.process.poll() is None, f"{name} ended:\n{running.said()}"
            code, met[0] = self.run_in(name, test[1:])
            return code == 0

        met = [""]
        try:
            eventually(look, within=Deadline.AIRFLOW, what=f"{name} to be healthy")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{met[0]}\n{self.running[name].said()}") from error

    def wait_done(self, name: str) -> str:
        """Wait for the end of a service that ends by itself, well; what it wrote."""
        if name not in self.done:
            running = self.running[name]
            code = exit_code_of(running.process, within=Deadline.AIRFLOW, what=f"{name} to be done")
            assert code == 0, f"{name} ended with {code}:\n{running.said()}"
            self.done.add(name)
            del self.running[name]
            self._remove(running)
        return (self.builder.folder / f"{name}.log").read_text(encoding="utf-8")

    def stop(self, name: str) -> int:
        """Ask a service's first process to end, as an engine does, and wait; its exit code. Its root folder goes."""
        running = self.running.pop(name)
        asked = self._services()[name].get("stop_signal", "SIGTERM")
        running.first.send_signal(signal.Signals[asked])
        code = exit_code_of(running.process, within=Deadline.STREAM, what=f"{name} to end")
        self._remove(running)
        return code

    def run_in(self, name: str, command: Sequence[str]) -> tuple[int, str]:
        """Run a command in a running service, as its user; exit code, and what it wrote."""
        running = self.running[name]
        file = self.builder.write(f"{name}-{abs(hash(tuple(command)))}", running.spec | {"command": list(command)})
        first = str(running.first.pid)
        process = subprocess.Popen(
            ["nsenter", "-t", first, "-m", "-p", "-n", sys.executable, str(CHILD), "enter", str(file)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        said = output_of(process, within=Deadline.COMMAND, what=f"{name}: {' '.join(command)}")
        return process.returncode, said

    def run_beside(self, name: str, command: Sequence[str]) -> tuple[int, str]:
        """Run a command in one more container of a service, as `docker compose run --rm` does; code, and output."""
        self.running[f"{name}-run"] = running = self._start(
            f"{name}-run", {**self._services()[name], "command": command}
        )
        code = exit_code_of(running.process, within=Deadline.COMMAND, what=f"{name}: {' '.join(command)}")
        del self.running[f"{name}-run"]
        self._remove(running)
        return code, running.said()

    def command_lines(self, name: str) -> dict[psutil.Process, list[str]]:
        """Everything that runs in a service now, by what it is called outside, and its command."""
        lines = {}
        for process in (self.running[name].first, *self.running[name].first.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended, or nobody has waited for it yet
                lines[process] = process.cmdline()
        return lines

    def _start(self, name: str, service: Mapping[str, Any]) -> Running:
        image = self.images[service["image"]]
        command = [*(service.get("entrypoint") or image.entrypoint), *(service.get("command") or [])]
        spec = self.builder.spec(name, image, command, self._binds(image, service))
        home = "/root" if image.user == "root" else f"/home/{image.user}"
        spec["environment"] = {"HOME": home, **image.environment, **(service.get("environment") or {})}
        spec["init"] = bool(service.get("init"))
        file = self.builder.write(name, spec)
        log = self.builder.folder / f"{name}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                [*DIES_WITH_US, *self._inside(), *OWN_NAMESPACES, sys.executable, str(CHILD), "start", str(file)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        running = Running(process, spec, log)
        eventually(lambda: self._is_itself(running), within=Deadline.PROCESS, what=f"{name} to be started")
        return running

    def _is_itself(self, running: Running) -> bool:
        """Whether it has its root folder: before that a command in it would see this machine's."""
        if running.process.poll() is not None:
            return True
        try:
            first = running.first
            asked = [first, *first.children()] if running.spec["init"] else [first]
            return any(os.readlink(f"/proc/{each.pid}/root") != "/" for each in asked)
        except (IndexError, psutil.NoSuchProcess, FileNotFoundError):
            return False

    def _binds(self, image: Image, service: Mapping[str, Any]) -> list[tuple[str, str, bool]]:
        binds = [(str(self.builder.folder / "hosts"), "/etc/hosts", True)]
        for volume in sorted(service.get("volumes") or [], key=lambda each: str(each["target"])):
            assert volume["type"] == "volume", volume
            binds.append((str(self._volume(image, volume)), volume["target"], bool(volume.get("read_only"))))
        for secret in service.get("secrets") or []:
            binds.append((self.project["secrets"][secret["source"]]["file"], secret["target"], True))
        for config in service.get("configs") or []:
            file = self.builder.folder / "configs" / config["source"]
            file.parent.mkdir(exist_ok=True)
            file.write_text(self.project["configs"][config["source"]]["content"], encoding="utf-8")
            file.chmod(0o444)
            binds.append((str(file), config["target"], True))
        return binds

    def _volume(self, image: Image, volume: Mapping[str, Any]) -> Path:
        """A volume's folder: a new one has what the image has in its place, owner and all."""
        place = self.builder.folder / "volumes" / str(volume["source"])
        if not place.exists():
            place.parent.mkdir(exist_ok=True)
            subprocess.run(["cp", "-a", str(image.find(str(volume["target"]))), str(place)], check=True)
        return place

    def _remove(self, running: Running) -> None:
        for part in ("upper", "work", "merged"):
            shutil.rmtree(running.spec[part])
