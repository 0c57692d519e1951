"""Take over a stream whose host is lost, or that is to move to this host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.domain.formats.durations import roughly
from millrace.domain.streams.supervision import DesiredState
from millrace.errors import Code, RefusedError, UsageError
from millrace.usecases.declaration.lookup import declared_app
from millrace.usecases.streams.look import Supervised, look
from millrace.usecases.streams.owner import give_sign
from millrace.usecases.streams.supervise import supervise_at_once

if TYPE_CHECKING:
    from millrace.ports.platform import Platform


def adopt(platform: Platform, stream: str, actor: str, reason: str) -> Supervised:
    """Have a stream of a lost host, or one that is stopped there, belong to this host, and supervise it at once.

    Its open attempts end as `host lost`. An app of it that is alive after all is fenced by the next start.

    Raises:
        UsageError: nobody ever wanted anything of this stream, or it is wanted running and not declared here.
        InvalidDeclarationError: it is wanted running and its declaration is wrong.
        RefusedError: its host is there and may run it, or it has changed meanwhile.
    """
    seen = look(platform, stream)
    desired, there = seen.desired, seen.elsewhere
    if desired is None:
        raise UsageError(
            f"{stream} was never started",
            next_step="start it: it belongs to the host that starts it first",
            code=Code.NEVER_STARTED,
        )
    if desired.state is DesiredState.RUNNING:
        declared_app(platform.settings.root, stream)
    host = platform.apps.make_host()
    give_sign(platform)
    if there is None:
        if desired.host is None:
            platform.control.hosts.take(stream, host, was=None)
        return supervise_at_once(platform, stream, actor)
    if not there.may_be_adopted:
        raise RefusedError(
            f"its host is not lost: {there.why}",
            where=stream,
            next_step=f"stop it first with `millrace streams stop {stream}`, or wait until {there.name} has been "
            f"silent for {roughly(there.lost_after)}",
            code=Code.OTHER_HOST,
        )
    done = platform.control.hosts.adopt(
        desired,
        host,
        lost_after=there.lost_after if there.open_epoch is not None or there.is_lost else None,
        actor=actor,
        reason=reason,
        names=(there.name, host.name),
    )
    if not done:
        raise RefusedError(
            "the stream has changed meanwhile, or its host is back",
            where=stream,
            next_step="see `millrace streams show`, then run the command again",
            code=Code.CONCURRENT_CHANGE,
        )
    return supervise_at_once(platform, stream, actor)
