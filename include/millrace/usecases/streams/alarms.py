"""Alarms of streams: opened for a stream that is dead, doomed, stuck or without its host, closed when it is well."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from millrace.domain.alarms.extent import Extent
from millrace.domain.alarms.kinds import AlarmKind
from millrace.domain.streams.supervision import (
    Adopt,
    DesiredState,
    ExitReason,
    GiveUp,
    Phase,
    Restart,
    Stuck,
)
from millrace.usecases.streams.look import Ended, Seen

if TYPE_CHECKING:
    from millrace.domain.streams.control import Attempt
    from millrace.ports.platform import Platform

OVER_WHEN_WELL = (
    AlarmKind.STREAM_DIED,
    AlarmKind.STREAM_GAVE_UP,
    AlarmKind.STREAM_RECREATED,
    AlarmKind.STREAM_STUCK,
    AlarmKind.STREAM_HOST_LOST,
)
WELL_AFTER = timedelta(seconds=60)


def set_alarms(platform: Platform, seen: Seen) -> None:
    """Open an alarm for a dead, doomed or stuck stream; close it once it has run well, or is stopped as desired.

    An app whose end is given up at once is one breach and one alarm, which says both.
    """
    alarms = platform.control.alarms
    wanted = seen.desired is not None and seen.desired.state is DesiredState.RUNNING
    ends = [
        (_end_text(found), Extent(fault=found.outcome))
        for found in seen.ended
        if wanted and found.exit_code != ExitReason.STOPPED and not seen.apps
    ]
    if isinstance(seen.action, GiveUp):
        kind = AlarmKind.STREAM_RECREATED if seen.action.reason is ExitReason.RECREATED else AlarmKind.STREAM_GAVE_UP
        past = [each for each in seen.attempts[:1] if each.ended_at and each.exit_code != ExitReason.STOPPED]
        texts = [text for text, _ in ends[:1]] or [_end_text(each) for each in past]  # the latter after the first look
        extent = Extent(fault=seen.action.reason.name.lower().replace("_", " "))
        alarms.open(kind, seen.stream, "; ".join([*texts, seen.action.why]), extent)
        return
    for text, extent in ends:
        alarms.open(AlarmKind.STREAM_DIED, seen.stream, text, extent)
    if isinstance(seen.action, Restart | Stuck):
        extent = Extent(fault=seen.action.fault)
        alarms.open(
            AlarmKind.STREAM_STUCK, seen.stream, f"epoch {seen.action.epoch} is stuck: {seen.action.why}", extent
        )
        return
    if seen.problem:
        extent = Extent(fault="declaration")
        alarms.open(AlarmKind.STREAM_GAVE_UP, seen.stream, f"its declaration is wrong: {seen.problem.what}", extent)
    elif _is_well(seen):
        for kind in OVER_WHEN_WELL:
            alarms.close(kind, seen.stream)
        if not seen.apps:  # stopped as desired: nobody waits for the sink any more
            alarms.close(AlarmKind.STREAM_SINK_EXHAUSTED, seen.stream)


def _end_text(end: Ended | Attempt) -> str:
    return f"epoch {end.epoch} ended: {end.outcome}. {end.detail or ''}".strip()


def _is_well(seen: Seen) -> bool:
    if isinstance(seen.action, Adopt):
        app = seen.apps[0]
        return app.phase == Phase.RUNNING and app.started_at is not None and seen.at - app.started_at >= WELL_AFTER
    return seen.desired is not None and seen.desired.state is DesiredState.STOPPED and not seen.apps


def set_host_alarm(platform: Platform, seen: Seen) -> None:
    """Open an alarm for a wanted stream of another host that is lost; close it once that host gives signs again.

    A host that another environment calls lost, and this one does not yet, changes nothing.
    """
    there, alarms = seen.elsewhere, platform.control.alarms
    if there is None:
        return
    is_wanted = there.wanted is DesiredState.RUNNING
    if there.misses_host and is_wanted:
        alarms.open(AlarmKind.STREAM_HOST_LOST, seen.stream, f"it should run and belongs to {there.name}: {there.why}")
    elif not is_wanted or there.is_well:
        alarms.close(AlarmKind.STREAM_HOST_LOST, seen.stream)
