"""Embedded stacks of a test run, in project folders of their own that tests may add files to."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from millrace.embedded.progress import Progress
from millrace.embedded.stack import Stack
from support.runs import RUN_VARIABLE, STACKS

CHECKOUT = Path(__file__).resolve().parents[2]
COPIED = ("dags", "plugins", "spark_apps", "sources", "include/pipelines", "include/environments", "include/quality")


def make_project(folder: Path) -> Path:
    """A project like the checkout: its dags, plugins, apps and declarations copied, so that tests may change them."""
    for name in COPIED:
        if (CHECKOUT / name).is_dir():
            shutil.copytree(CHECKOUT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (folder / name).mkdir(parents=True)
    return folder


def open_stack(name: str) -> Stack:
    """A stack of this run that is not started yet; it is stopped and removed with the run."""
    return Stack(make_project(Path(os.environ[RUN_VARIABLE]) / STACKS / name))


def start(stack: Stack, *parts: str) -> Stack:
    """Start these parts unless they run, with what is waited for on standard error."""
    ready = {status.name for status in stack.status() if status.healthy}
    if not set(parts) <= ready:
        stack.start(Progress(), parts)
    return stack
