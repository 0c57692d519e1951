"""`status.json`: what a driver says of itself, as its runner reads it.

Ages are counted by the machine's monotonic clock, which all of its processes share: neither a new date nor a machine
that slept makes an app look dead. So whoever reads it must stand on the driver's own machine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from millrace.domain.streams.supervision import Phase
from millrace.domain.streams.vitals import Vitals

SCHEMA = "millrace.stream-status/2"


@dataclass(frozen=True, slots=True)
class Beat:
    """One beat of a driver's heart. All that ends in `_at` is in seconds of the monotonic clock.

    Attributes:
        at: when it beat.
        phase_at: since when it is in its phase; while it ends, since its last batch.
        step: what it is at, in words.
        step_since: since when, by the date (ISO 8601).
        bound_seconds: how long anything may last.
        jvm_at: when Spark's JVM answered last; None before it was first asked.
        batch_at: since when the batch in flight is; None where there is none.
        longest_batch_seconds: of the last hour.
        behind: records that no batch has taken up; None where the brokers do not say.
        behind_at: since when; None where there are none.
        waits_for: what the step waits for.
        notice: what people should know though it gets on.
    """

    at: float
    phase_at: float
    step: str
    step_since: str
    bound_seconds: float
    jvm_at: float | None = None
    batch_at: float | None = None
    longest_batch_seconds: float = 0.0
    behind: int | None = 0
    behind_at: float | None = None
    waits_for: str = ""
    notice: str = ""

    def vitals(self, *, phase: object, now: float) -> Vitals:
        """What it means at a later moment of the same clock.

        All but the silence is as it was at the last beat: a driver that was stopped has not asked its JVM since.
        """

        def since(at: float | None) -> timedelta | None:
            return None if at is None else timedelta(seconds=max(0.0, self.at - at))

        ending = phase in (Phase.DRAINING, Phase.ENDED) and self.batch_at is None
        return Vitals(
            starting_for=since(self.phase_at) if phase == Phase.STARTING else None,
            ending_for=since(self.phase_at) if ending else None,
            step=self.step,
            step_since=datetime.fromisoformat(self.step_since),
            silent=timedelta(seconds=max(0.0, now - self.at)),
            jvm_silent=since(self.jvm_at) or timedelta(),
            batch_for=since(self.batch_at),
            longest_batch=timedelta(seconds=self.longest_batch_seconds),
            behind=self.behind,
            behind_for=since(self.behind_at) or timedelta(),
            waits_for=self.waits_for,
            notice=self.notice,
            bound=timedelta(seconds=self.bound_seconds),
        )


def write_status(file: Path, phase: str, batch_id: int | None, error: str | None, beat: Beat) -> None:
    """Replace the file as a whole, or what is in it on a disk that is full.

    Args:
        file: the status file.
        phase: what the driver is doing as a whole.
        batch_id: the last batch that went through.
        error: what it ended of.
        beat: the beat.

    Raises:
        OSError: neither went.
    """
    document = {
        "schema": SCHEMA,
        "phase": phase,
        "batch_id": batch_id,
        "at": datetime.now(UTC).isoformat(),
        "error": error,
        "beat": asdict(beat),
    }
    text = json.dumps(document).encode()
    draft = file.with_suffix(".new")
    try:
        draft.write_bytes(text)
        os.replace(draft, file)
    except OSError:  # a full disk has no room for a second file; the first one keeps its block
        with file.open("r+b", buffering=0) as present:
            present.write(text)
            present.truncate()


def beat_of(status: Mapping[str, object]) -> Beat | None:
    """The last beat in a status document; None where it has none that this version can read."""
    found = status.get("beat")
    if status.get("schema") != SCHEMA or not isinstance(found, dict):
        return None
    try:
        return Beat(**found)
    except TypeError:
        return None
