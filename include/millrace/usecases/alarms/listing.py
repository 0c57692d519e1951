"""List, show and acknowledge alarms: what `millrace alarms` does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millrace.domain.alarms.alarm import Alarm
    from millrace.ports.platform import Platform


def list_alarms(platform: Platform, *, also_over: bool = False, limit: int = 200) -> Sequence[Alarm]:
    """Return the alarms whose cause is still there, acknowledged ones too, newest first.

    Args:
        platform: the adapters.
        also_over: return those that are over too.
        limit: how many at most.

    Raises:
        UnreachableError: the control database does not answer.
    """
    return platform.control.alarms.list(only_open=not also_over, limit=limit)


def show(platform: Platform, identity: int) -> Alarm:
    """Return one alarm.

    Raises:
        UsageError: there is none of this number.
        UnreachableError: the control database does not answer.
    """
    return platform.control.alarms.get(identity)


def acknowledge(platform: Platform, identity: int, *, actor: str, reason: str) -> tuple[Alarm, bool]:
    """Say that somebody has taken an alarm up: it stays open, and its notifiers are called no more until it grows.

    Returns:
        The alarm, and whether this was the first acknowledgement. A later one changes nothing.

    Raises:
        UsageError: there is none of this number.
        UnreachableError: the control database does not answer.
    """
    return platform.control.alarms.acknowledge(identity, actor=actor, reason=reason)
