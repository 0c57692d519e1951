"""What stands in for a container engine inside new namespaces: it makes a root folder of layers and starts a command.

    container_child.py start SPEC.json      as process 1 of new mount and process namespaces
    container_child.py enter SPEC.json      in the namespaces of a started one

Standard library only: it runs before there is anything of the container.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


def lay_out(spec: dict[str, Any]) -> None:
    """Mount the layers, then everything that is bound into them."""
    root = Path(spec["merged"])
    layers = f"lowerdir={':'.join(spec['lower'])},upperdir={spec['upper']},workdir={spec['work']}"
    mount("-t", "overlay", "overlay", "-o", layers, str(root))
    for source, target, read_only in spec["binds"]:
        place = root / target.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        if Path(source).is_dir():
            place.mkdir(exist_ok=True)
        elif not place.exists():
            place.touch()
        mount("--bind", source, str(place))
        if read_only:
            mount("-o", "remount,bind,ro", str(place))
    mount("-t", "proc", "proc", str(root / "proc"))
    mount("--bind", "/dev", str(root / "dev"))
    mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", str(root / "dev" / "shm"))


def become(spec: dict[str, Any]) -> None:
    """Go into the root folder, as the user, and be the command."""
    os.chroot(spec["merged"])
    os.chdir(spec["working_in"])
    os.setgroups([])
    os.setgid(spec["group"])
    os.setuid(spec["user"])
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # the change of user has taken it back
    os.umask(0o022)
    variables = spec["environment"]
    os.environ["PATH"] = variables["PATH"]  # where execvpe looks
    os.execvpe(spec["command"][0], spec["command"], variables)


def be_first_process(spec: dict[str, Any]) -> int:
    """Start the command, pass signals on to it, and wait for it and for every orphan; its exit code."""
    child = os.fork()
    if child == 0:
        become(spec)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda caught, _frame: os.kill(child, caught))
    while True:
        pid, status = os.wait()
        if pid == child:
            return os.waitstatus_to_exitcode(status) % 256


def main() -> int:
    verb, file = sys.argv[1:]
    spec = json.loads(Path(file).read_text(encoding="utf-8"))
    if verb == "start":
        lay_out(spec)
        if spec["init"]:
            return be_first_process(spec)
    become(spec)
    return 127


if __name__ == "__main__":
    sys.exit(main())
