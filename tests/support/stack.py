"""The one embedded stack of a test run, in a project folder of its own that tests may add files to."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path

from millrace.embedded.processes import Identity
from millrace.embedded.progress import Progress, Silent
from millrace.embedded.stack import Stack

CHECKOUT = Path(__file__).resolve().parents[2]
COPIED = ("dags", "plugins", "spark_apps", "sources", "include/pipelines", "include/environments", "include/quality")
OWNER = "owner.json"


def runs_folder() -> Path:
    """Where test runs of this user keep their project folders."""
    return Path(tempfile.gettempdir()) / f"millrace-tests-{os.geteuid()}"


def make_project(folder: Path) -> Path:
    """A project like the checkout: its dags, plugins, apps and declarations copied, so that tests may change them."""
    for name in COPIED:
        if (CHECKOUT / name).is_dir():
            shutil.copytree(CHECKOUT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (folder / name).mkdir(parents=True)
    return folder


def open_run() -> Stack:
    """A new project folder with a stack that is not started yet."""
    runs_folder().mkdir(mode=0o700, exist_ok=True)
    root = Path(tempfile.mkdtemp(prefix="run-", dir=runs_folder()))
    identity = Identity.of(os.getpid())
    assert identity is not None
    (root / OWNER).write_text(json.dumps(asdict(identity)))
    return Stack(make_project(root))


def close_run(stack: Stack) -> None:
    """Stop everything of a run and remove its folder; its logs are kept when MILLRACE_KEEP_LOGS names a folder."""
    stack.stop(Silent())
    if (kept := os.environ.get("MILLRACE_KEEP_LOGS")) and stack.layout.logs.is_dir():
        shutil.copytree(stack.layout.logs, Path(kept) / stack.root.name, dirs_exist_ok=True)
    shutil.rmtree(stack.root, ignore_errors=True)


def close_forgotten_runs() -> None:
    """Stop the stacks of former test runs that were killed before they could."""
    for root in runs_folder().glob("run-*"):
        try:
            owner = Identity(**json.loads((root / OWNER).read_text()))
        except (OSError, ValueError, TypeError):
            continue
        if not owner.is_alive():
            close_run(Stack(root))


def start(stack: Stack, *parts: str) -> Stack:
    """Start these parts unless they run, with what is waited for on standard error."""
    ready = {status.name for status in stack.status() if status.healthy}
    if not set(parts) <= ready:
        stack.start(Progress(), parts)
    return stack
