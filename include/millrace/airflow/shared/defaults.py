"""What all of Millrace's DAGs have in common."""

from __future__ import annotations

import hashlib
import os
from datetime import UTC, datetime, timedelta
from typing import Any

PLATFORM = "millrace"
"""The owner of DAGs that belong to no pipeline."""
FIRST_DAY = datetime(2026, 1, 1, tzinfo=UTC)
MINUTES_OF_A_DAY = 24 * 60
RETRIED: dict[str, Any] = {"retries": 2, "retry_delay": timedelta(seconds=5)}
"""For tasks that a worker runs: one that hung or was killed is no breach. What is wrong fails at once all the same."""

PATIENT: dict[str, Any] = {"retries": 10, "retry_delay": timedelta(seconds=30)}
"""For tasks in the middle of a plan: they sit out a server that is away for some minutes."""


def common(owner: str, tags: list[str], **more: Any) -> dict[str, Any]:
    """Return the arguments that all of Millrace's DAGs have in common."""
    environment = os.environ.get("MILLRACE_ENVIRONMENT") or "embedded"
    return {
        "start_date": FIRST_DAY,
        "catchup": False,
        "max_active_runs": 1,
        "is_paused_upon_creation": False,
        "tags": sorted({"millrace", environment, *tags}),
        "default_args": {"owner": owner, "retries": 0},
        **more,
    }


def continuous(owner: str, tags: list[str]) -> dict[str, Any]:
    """Return the arguments of a DAG whose runs follow one another. One by hand would stay queued behind the present."""
    return {"schedule": "@continuous", "allowed_run_types": ["scheduled"], **common(owner, tags)}


def every_five_minutes(owner: str, tags: list[str]) -> dict[str, Any]:
    """Return the arguments of a DAG that looks every five minutes; a run that hangs ends after two looks' time."""
    return {"schedule": "*/5 * * * *", "dagrun_timeout": timedelta(minutes=10), **common(owner, tags)}


def form(owner: str, tags: list[str], *, at_once: int) -> dict[str, Any]:
    """Return the arguments of a DAG that people trigger by its form, and nothing else.

    Args:
        owner: who answers for it.
        tags: what it is about.
        at_once: how many runs go at once: one that waits must not hold up the others.
    """
    return {"schedule": None, "allowed_run_types": ["manual"], **common(owner, tags, max_active_runs=at_once)}


def hourly(name: str) -> str:
    """An hourly schedule at a minute of this name's own."""
    return f"{_minute(name) % 60} * * * *"


def daily(name: str) -> str:
    """A daily schedule at a minute of this name's own, so that not all pipelines start at midnight at once."""
    minute = _minute(name)
    return f"{minute % 60} {minute // 60} * * *"


def often(name: str, every: timedelta) -> str | timedelta:
    """A schedule from minutes to a day, where it divides the hour or the day at a minute of this name's own."""
    minutes = every // timedelta(minutes=1)
    if every % timedelta(minutes=1) or MINUTES_OF_A_DAY % minutes or (minutes < 60 and 60 % minutes):
        return every
    at = _minute(name) % minutes
    if minutes < 60:
        return f"{','.join(str(minute) for minute in range(at, 60, minutes))} * * * *"
    if minutes % 60:
        return every
    hours = ",".join(str(hour) for hour in range(at // 60, 24, minutes // 60))
    return f"{at % 60} {hours if minutes > 60 else '*'} * * *"


def _minute(name: str) -> int:
    """A minute of the day, the same for a name for ever."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % MINUTES_OF_A_DAY
