"""One change of a project's stack at a time: a file lock that tells who holds it."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from millrace.embedded.layout import PRIVATE_FILE
from millrace.embedded.progress import Progress


@contextmanager
def only_one(lock: Path, doing: str, progress: Progress) -> Iterator[None]:
    """Hold the lock; while another process holds it, show which one and wait.

    The system frees the lock when its holder dies, however that happens.
    """
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, PRIVATE_FILE)
    try:
        tries = 0
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                tries += 1
                if tries > 1:  # by now the holder has written down who it is
                    holder = _holder(lock)
                    if tries == 2:
                        progress.say(f"waiting: {holder} is working on this stack")
                    progress.tell("lock", f"waiting for {holder}")
                time.sleep(0.2)
        owner = {"pid": os.getpid(), "doing": doing, "since": datetime.now(UTC).isoformat(timespec="seconds")}
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(owner).encode(), 0)
        progress.done("lock")
        yield
    finally:
        os.close(descriptor)


def _holder(lock: Path) -> str:
    try:
        owner = json.loads(lock.read_text(encoding="utf-8"))
        return f"`{owner['doing']}` (process {owner['pid']}, since {owner['since']})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
