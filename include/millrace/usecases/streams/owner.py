"""The host that a stream belongs to: whether that is this one, what is known of another, and taking a stream over."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import structlog

from millrace.domain.streams.hosts import HEARTBEAT_EVERY, HOST_LOST_AFTER, Elsewhere, Heartbeat
from millrace.errors import MillraceError, RefusedError
from millrace.ports.runner import RunningApp
from millrace.usecases.declaration.environment import environment_of

if TYPE_CHECKING:
    from datetime import timedelta

    from millrace.domain.streams.control import Attempt, DesiredStream
    from millrace.ports.platform import Platform

log = structlog.get_logger()


def give_sign(platform: Platform) -> None:
    """Note in the control database that this host supervises, at most once in ten seconds.

    Raises:
        UnreachableError: the control database does not answer.
    """
    host = platform.apps.host()
    before = platform.signed.get(host.identity, -math.inf)
    if host.identity and time.monotonic() - before >= HEARTBEAT_EVERY.total_seconds():
        platform.control.hosts.give_sign(host)
        platform.signed[host.identity] = time.monotonic()


def elsewhere(
    platform: Platform, desired: DesiredStream | None, attempts: Sequence[Attempt], apps: Sequence[RunningApp]
) -> Elsewhere | None:
    """Return what is known of a stream that belongs to another host; None where it belongs to this host or to none.

    An app that lives here keeps its stream here while its attempt is open: an adoption would have ended that. So does
    an app of an epoch that the control database does not know: a restored one may have forgotten it.

    Args:
        platform: the adapters.
        desired: what is wanted of the stream.
        attempts: its last attempts, newest epoch first.
        apps: its apps that are alive here.

    Raises:
        UnreachableError: the control database does not answer.
    """
    if desired is None or _keeps_it_here(desired, attempts, apps):
        return None
    owner = desired.host if desired.host is not None else _older_version_elsewhere(platform, attempts, apps)
    if owner is None or owner == platform.apps.host().identity:
        return None
    control = platform.control
    sign = control.hosts.sign(owner)
    open_epoch = next((attempt.epoch for attempt in attempts if attempt.ended_at is None), None)
    seen = control.streams.look(desired.stream)
    knows_wish = seen is not None and (seen.wished_at, seen.host) == (desired.changed_at, owner)
    return Elsewhere(
        host=owner,
        name=sign.name if sign else owner,
        wanted=desired.state,
        open_epoch=open_epoch,
        heartbeat=_heartbeat(platform, desired.stream, open_epoch),
        sign=sign,
        seen=seen.state if seen and knows_wish else None,
        seen_why=seen.why if seen and knows_wish else "",
        lost_after=_lost_after(platform),
    )


def _keeps_it_here(desired: DesiredStream, attempts: Sequence[Attempt], apps: Sequence[RunningApp]) -> bool:
    left_open = {attempt.epoch for attempt in attempts if attempt.ended_at is None}
    return any(app.epoch in left_open or app.epoch > desired.epoch for app in apps)


def _heartbeat(platform: Platform, stream: str, epoch: int | None) -> Heartbeat | None:
    found = platform.control.hosts.heartbeat(stream) if epoch is not None else None
    return found if found and epoch is not None and found.epoch >= epoch else None


def _older_version_elsewhere(platform: Platform, attempts: Sequence[Attempt], apps: Sequence[RunningApp]) -> str | None:
    """Return the name of the host on which a version without host identities left an attempt open; None: here, or none.

    Such an attempt belongs to the host that finds it alive, or has the files of its start.
    """
    left_open = [attempt for attempt in attempts if attempt.ended_at is None]
    if not left_open or apps:
        return None
    newest = left_open[0]
    claim = platform.control.streams.claimed(newest.stream, newest.epoch)
    if claim is None or claim.host in (platform.apps.host().name, platform.apps.host().identity):
        return None
    is_known_here = any(platform.apps.runner().status(each.stream, each.epoch) is not None for each in left_open)
    return None if is_known_here else claim.host


def _lost_after(platform: Platform) -> timedelta:
    try:
        return environment_of(platform.settings.root).host_lost_after
    except MillraceError:  # `spec check` names what is wrong with the file
        return HOST_LOST_AFTER


def take_if_found(platform: Platform, desired: DesiredStream | None, apps: Sequence[RunningApp]) -> None:
    """Have a stream whose app was found alive here belong to this host.

    Raises:
        UnreachableError: the control database does not answer.
    """
    identity = platform.apps.host().identity
    if desired is not None and apps and (not identity or desired.host != identity):
        try:
            host = platform.apps.make_host()
        except RefusedError as error:  # a damaged identity: its apps live on, and nothing is started
            log.error("host_not_known", stream=desired.stream, error=str(error))
            return
        give_sign(platform)
        platform.control.hosts.take(desired.stream, host, was=desired.host, epoch=apps[0].epoch)
