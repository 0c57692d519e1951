"""The trigger that takes snapshots of clusters. As the other triggers it never raises: its DAG is @continuous."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.triggers.base import BaseTrigger, TaskFailedEvent, TaskSuccessEvent, TriggerEvent

from millrace.airflow.shared.settings import airflow_platform, forget_platform
from millrace.usecases.groups.snapshots import Taken, take_due, tidy
from millrace.usecases.retention.readers import Memory

SNAPSHOT_SECONDS = 60.0
_THREAD = ThreadPoolExecutor(1, "snapshots")
"""Of its own: brokers that do not answer hold up no trigger of a stream."""
_MEMORIES: dict[str, Memory] = {}


class SnapshotsTaken(BaseTrigger):
    """Takes snapshots of all clusters, one a minute, until the hour is over.

    Succeeds where one was taken, by whomever; fails where each try failed.
    """

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Where the trigger is."""
        return "millrace.airflow.groups.triggers.SnapshotsTaken", {}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Take what is due at each full minute; what fails is told and tried again a minute later."""
        until = end_of_hour(datetime.now(UTC))
        failed, well = False, False
        while True:
            went_well = await self._take()
            failed, well = failed or not went_well, well or went_well
            now = datetime.now(UTC)
            if now >= until:
                break
            await asyncio.sleep(
                min(SNAPSHOT_SECONDS - now.timestamp() % SNAPSHOT_SECONDS, (until - now).total_seconds())
            )
        yield TaskFailedEvent() if failed and not well else TaskSuccessEvent()

    async def _take(self) -> bool:
        """Whether every cluster has a snapshot of now."""
        try:
            work = copy_context().run
            taken = await asyncio.get_running_loop().run_in_executor(_THREAD, work, _take_snapshots)
        except Exception as error:
            forget_platform()
            self.log.warning("no snapshot was taken, retrying in a minute: %s", error)
            return False
        if any(one.failed for one in taken):
            forget_platform()  # the Connection may say something else by now
        for one in taken:
            self.log.log(logging.WARNING if one.failed else logging.INFO, "%s", one.text)
        return not any(one.failed for one in taken)


def _take_snapshots() -> Sequence[Taken]:
    platform, now = airflow_platform(), datetime.now(UTC)
    taken = take_due(platform, now, _MEMORIES)
    if taken:
        tidy(platform, now)
    return taken


def end_of_hour(now: datetime) -> datetime:
    """The next full hour that is at least five minutes away: the run before this one may have ended a little early."""
    return (now + timedelta(minutes=65)).replace(minute=0, second=0, microsecond=0)
