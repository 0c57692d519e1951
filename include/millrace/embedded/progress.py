"""Showing what is being waited for: a spinner on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console

PLAIN_INTERVAL_SECONDS = 5.0


class Progress:
    """What goes on now, under one name each, shown as one line. Safe to call from several threads."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._lock = threading.Lock()
        self._current: dict[str, str] = {}
        self._said_at = 0.0
        self._status = self._console.status("") if self._console.is_terminal else None

    def __enter__(self) -> Progress:
        if self._status:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status:
            self._status.stop()

    def say(self, line: str) -> None:
        """Print a line that stays."""
        with self._lock:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)
            self._said_at = time.monotonic()

    @contextmanager
    def waiting(self, name: str, what: str) -> Iterator[None]:
        """Show `what` until the block ends."""
        self.tell(name, what)
        try:
            yield
        finally:
            self.done(name)

    def done(self, name: str) -> None:
        """Nothing is waited for under this name any more."""
        with self._lock:
            self._current.pop(name, None)

    def tell(self, name: str, what: str) -> None:
        """Say what the work of this name waits for now; also call it now and then while nothing changes."""
        with self._lock:
            self._current[name] = what
            line = "; ".join(self._current.values())
            if self._status:
                self._status.update(line)
            elif time.monotonic() - self._said_at > PLAIN_INTERVAL_SECONDS:
                self._said_at = time.monotonic()
                self._console.print(f"  ... {line}", markup=False, highlight=False, soft_wrap=True)


class Silent(Progress):
    """Shows nothing: for tests and for `--json`."""

    def __init__(self) -> None:
        super().__init__(Console(quiet=True))
