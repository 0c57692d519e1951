"""Take over a stream whose host is lost, or that is to move to this host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.domain.durations import roughly
from millrace.errors import RefusedError, UsageError
from millrace.usecases.stream_alarms import HOST_LOST
from millrace.usecases.stream_look import Supervised, look
from millrace.usecases.stream_owner import give_sign
from millrace.usecases.streams import supervise_at_once

if TYPE_CHECKING:
    from millrace.wiring import Platform


def adopt(platform: Platform, stream: str, actor: str, reason: str) -> Supervised:
    """Have a stream of a lost host, or one that is stopped there, belong to this host, and supervise it at once.

    Its open attempts end as `host lost`. An app of it that is alive after all is fenced by the next start.

    Raises:
        UsageError: nobody ever wanted anything of this stream.
        RefusedError: its host is there and may run it, or somebody else has adopted it meanwhile.
    """
    seen = look(platform, stream)
    if seen.desired is None:
        raise UsageError(f"nobody has started {stream} yet", next_step="it belongs to the host that starts it first")
    there = seen.elsewhere
    if there is None:
        return supervise_at_once(platform, stream, actor)
    if not there.may_be_adopted:
        raise RefusedError(
            f"its host is not lost: {there.why}",
            where=stream,
            next_step=f"stop it first: `millrace streams stop {stream}`; or wait until {there.name} has given no sign "
            f"for {roughly(there.lost_after)}",
        )
    host = platform.make_host()
    give_sign(platform)
    names = (there.name, host.name)
    hosts = platform.control().hosts
    if not hosts.adopt(stream, host, was=seen.desired.host, actor=actor, reason=reason, names=names):
        raise RefusedError("another host has adopted it meanwhile", where=stream, next_step="look at `streams show`")
    platform.control().alarms.close(HOST_LOST, stream)
    return supervise_at_once(platform, stream, actor)
