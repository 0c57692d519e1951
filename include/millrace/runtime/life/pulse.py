"""A driver's heartbeat: what it is at and since when, written by a thread of its own, apart from its batches."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import structlog

from millrace.adapters.apps.status import Beat, write_status
from millrace.domain.streams.supervision import Phase

log = structlog.get_logger()

_LONGEST_BEAT_SECONDS = 5.0
_BEATS_IN_BOUND = 8
_REMEMBERED_MINUTES = 60


class Pulse:
    """What a driver says of itself in `status.json`: at each change of its phase at once, and again with every beat.

    Safe between threads. It counts for nobody's correctness.

    Args:
        status_file: where it is written, replaced as a whole.
        bound: how long anything may last before supervision says that the stream is stuck; written with each beat.
        clock: seconds of the machine's monotonic clock.
    """

    def __init__(self, status_file: Path, bound: timedelta, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = status_file
        self._bound_seconds = bound.total_seconds()
        self._clock = clock
        self._lock = threading.Lock()
        self._writing = threading.Lock()  # taken before the other, so that a slow disk holds no batch up
        self._closing = threading.Event()
        self._phase, self._phase_at = Phase.STARTING, clock()
        self._batch_id: int | None = None
        self._error: str | None = None
        self._step, self._step_since, self._step_at = "", datetime.now(UTC), clock()
        self._sink_is_asked = False
        self._waits_for = ""
        self._batch_at: float | None = None
        self._ready_at: float | None = None  # since when Spark may begin a batch and has none
        self._behind: int | None = 0
        self._behind_at: float | None = None
        self._jvm_at: float | None = None
        self._longest: dict[int, float] = {}  # the longest batch of each of the last minutes that had one
        self._waited = False  # whether the batch in flight did: how long such a one takes says nothing of others
        self._failing = False
        self._notice = ""
        self._thread = threading.Thread(target=self._beat, name="pulse", daemon=True)

    @property
    def every_seconds(self) -> float:
        """How often it beats."""
        return min(_LONGEST_BEAT_SECONDS, self._bound_seconds / _BEATS_IN_BOUND)

    @property
    def closing(self) -> threading.Event:
        """Set when the driver ends: what looks after it ends too."""
        return self._closing

    def phase(self, phase: Phase, *, error: str | None = None) -> None:
        """Say what the driver is doing as a whole; the first time, begin to beat."""
        with self._lock:
            if phase is not self._phase:
                self._phase, self._phase_at = phase, self._clock()
            self._error = error
        self._write()
        if self._thread.ident is None:
            self._thread.start()

    def close(self) -> None:
        """Beat no more."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=_LONGEST_BEAT_SECONDS)

    def at(self, step: str, *, in_sink: bool = False) -> None:
        """Begin a step. `in_sink`: it may wait for locks of the sink's database."""
        with self._lock:
            self._begin(step, in_sink=in_sink)

    @contextmanager
    def batch(self, batch_id: int) -> Iterator[None]:
        """A batch in flight."""
        began = self._clock()
        with self._lock:
            self._batch_at, self._ready_at = began, None
            self._behind, self._behind_at = 0, None
            self._waited = False
        went_through = False
        try:
            yield
            went_through = True
        finally:
            with self._lock:
                self._batch_at = None
                if went_through and not self._waited:
                    self._remember(self._clock() - began)
                if self._phase is not Phase.RUNNING:
                    self._phase_at = self._clock()
                self._begin(f"rest after batch {batch_id}", in_sink=False)

    def done(self, batch_id: int) -> None:
        """A batch went through."""
        with self._lock:
            self._batch_id = batch_id
        self._write()

    def ready(self) -> None:
        """From now on Spark begins a batch as soon as there are records, if it has not begun one already."""
        with self._lock:
            if self._batch_at is None:
                self._begin("ready for the next batch", in_sink=False)
                self._ready_at = self._clock()

    def notice(self, text: str) -> None:
        """Say what people should know though the app gets on; empty: nothing."""
        with self._lock:
            self._notice = text

    def waits_for(self, what: str) -> None:
        """Say what the present step waits for; empty where it waits no more."""
        with self._lock:
            self._wait_for(what)

    def waits_for_lock(self, step: str, what: str) -> None:
        """The same, unless that step is over."""
        with self._lock:
            if self._step == step:
                self._wait_for(what)

    def jvm_answered(self) -> None:
        """Spark's JVM has answered."""
        with self._lock:
            self._jvm_at = self._clock()

    def behind(self, records: int | None, *, why: str = "") -> None:
        """How many records wait while no batch is in flight; None where the brokers do not say, for this reason."""
        with self._lock:
            if self._ready_at is None:
                return
            self._behind, self._waits_for = records, why
            if records == 0:
                self._behind_at = None
            elif self._behind_at is None:
                self._behind_at = self._clock()

    @property
    def doing(self) -> tuple[str, str]:
        """Return the present phase and step."""
        with self._lock:
            return self._phase.value, self._step

    @property
    def in_sink_step(self) -> tuple[str, float] | None:
        """The present step and its age in seconds, if it may wait for locks of the sink's database."""
        with self._lock:
            return (self._step, self._clock() - self._step_at) if self._sink_is_asked else None

    @property
    def ready_for(self) -> float:
        """For how many seconds Spark could have begun a batch and did not; 0 with a batch in flight."""
        with self._lock:
            return 0.0 if self._ready_at is None else self._clock() - self._ready_at

    def _wait_for(self, what: str) -> None:
        self._waits_for = what
        self._waited = self._waited or bool(what)

    def _begin(self, step: str, *, in_sink: bool) -> None:
        self._step, self._step_since, self._step_at = step, datetime.now(UTC), self._clock()
        self._sink_is_asked, self._waits_for = in_sink, ""

    def _remember(self, seconds: float) -> None:
        minute = int(self._clock() // 60)
        self._longest[minute] = max(seconds, self._longest.get(minute, 0.0))
        for old in [known for known in self._longest if known <= minute - _REMEMBERED_MINUTES]:
            del self._longest[old]

    def _beat(self) -> None:
        while not self._closing.wait(self.every_seconds):
            self._write()

    def _write(self) -> None:
        """Write the file; where that fails say so, once. Spark's checkpoint, on the same disk, is what fails then."""
        with self._writing:
            with self._lock:
                said = self._phase.value, self._batch_id, self._error, self._now()
            try:
                write_status(self._file, *said)
                self._failing = False
            except OSError as error:
                if not self._failing:
                    log.warning("status_not_written", error=str(error))
                self._failing = True

    def _now(self) -> Beat:
        minute = int(self._clock() // 60)
        recent = [seconds for at, seconds in self._longest.items() if at > minute - _REMEMBERED_MINUTES]
        return Beat(
            at=self._clock(),
            phase_at=self._phase_at,
            step=self._step,
            step_since=self._step_since.isoformat(),
            bound_seconds=self._bound_seconds,
            jvm_at=self._jvm_at,
            batch_at=self._batch_at,
            longest_batch_seconds=max(recent or self._longest.values(), default=0.0),
            behind=self._behind,
            behind_at=self._behind_at,
            waits_for=self._waits_for,
            notice=self._notice,
        )
