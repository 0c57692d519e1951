"""The trigger that waits for alarms. As the other triggers it never raises: its DAG is @continuous."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TaskSuccessEvent, TriggerEvent

from millrace.airflow.shared.settings import airflow_platform, forget_platform
from millrace.usecases.alarms.notify import untold

LOOK_SECONDS = 5.0
AFTER_ERROR_SECONDS = 10.0


class UntoldAlarm(BaseTrigger):
    """Succeeds when there is an alarm whose notifiers are to be called."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Where the trigger is."""
        return "millrace.airflow.alarms.triggers.UntoldAlarm", {}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Ask the control database every few seconds."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                found = await asyncio.to_thread(lambda: untold(airflow_platform()))
            except Exception as error:
                forget_platform()
                self.log.warning("the search for due alarms failed, retrying: %s", error)
                await asyncio.sleep(AFTER_ERROR_SECONDS)
                continue
            if found:
                self.log.info("%d alarms are due", len(found))
                yield TaskSuccessEvent()
                return
