"""What a backup need not keep any more: asked of its app, which lets it expire in the chain, and then deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from millrace.domain.archive.audits.acknowledgement import Known
from millrace.domain.archive.audits.findings import Breach, BreachKind
from millrace.domain.archive.audits.memory import unforgiven
from millrace.domain.archive.expiry import Collectable, Deleted, Expiry
from millrace.domain.archive.names import Incarnation
from millrace.domain.formats.shortened import shortened_lines
from millrace.usecases.archive.audits import Backed, look_at

if TYPE_CHECKING:
    from millrace.ports.platform import Platform

_TOLD = 20


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for.

    Attributes:
        actor: who asks, and `reason` why; for the action log.
        grace: nothing that was written within it is deleted.
        dry_run: ask for nothing and delete nothing; count.
    """

    actor: str
    reason: str
    grace: timedelta
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Collected:
    """What became of one archive.

    Attributes:
        due: offsets that need not be kept, and that the chain has not let expire yet.
        asked: whether the app was asked now to let them expire; `waits`: it was asked before, and has not yet.
        expired: objects that the chain had let expire and that were deleted, or would be.
        orphans: the same of orphaned objects.
        too_young: how many were left as they were written within the grace period.
        more_orphans: how many are for the next run.
        wrong: why nothing was asked and deleted, or what a store did not delete; empty where all is well.
    """

    topic: str
    topic_id: str
    due: int = 0
    asked: bool = False
    waits: bool = False
    expired: int = 0
    expired_bytes: int = 0
    orphans: int = 0
    orphan_bytes: int = 0
    too_young: int = 0
    more_orphans: int = 0
    wrong: tuple[str, ...] = ()


def collect(platform: Platform, backed: Backed, here: Incarnation, request: Request) -> Collected:
    """Collect one archive. Where something is wrong with it, nothing is asked for and nothing deleted.

    Repeatable: killed anywhere and run again, it does what is left.

    Raises:
        CorruptArchiveError: the chain was cut off while objects were deleted.
        UnreachableError: store, broker or control database do not answer.
    """
    now = datetime.now(UTC)
    known = Known.of(platform.control.backups.known(here))
    audited = look_at(platform, backed, here)
    wrong = [breach for breach in audited.breaches if breach.kind is not BreachKind.LATE]
    if wrong:
        return _refused(here, map(str, wrong))
    assert backed.topic.backup is not None
    collector = platform.archive.collector(backed.app, backed.kafka)
    seen = collector.look(here, backed.topic.backup.keep, now, request.grace)
    if faults := list(_faults(seen, known)):
        return _refused(here, faults)
    due, asked = seen.due.offsets(seen.tiling), False
    if due and not request.dry_run:
        expiry = Expiry(None, backed.app.qualified_name, here, seen.due.sequence, request.actor, request.reason)
        asked = platform.control.backups.expire(expiry) is not None
    before = platform.control.backups.last_fault(backed.app.qualified_name, here)
    log = _Log(platform, here, request)
    expired = log.told("expired objects", lambda begin: collector.delete_expired(seen, now - request.grace, begin))
    what = "orphaned objects"
    orphans = log.told(what, lambda begin: collector.delete_orphans(seen, now - request.grace, begin))
    return Collected(
        topic=here.topic,
        topic_id=here.topic_id,
        due=due,
        asked=asked,
        waits=bool(due) and not asked and not request.dry_run,
        expired=expired.objects,
        expired_bytes=expired.size_bytes,
        orphans=orphans.objects,
        orphan_bytes=orphans.size_bytes,
        too_young=expired.young + orphans.young,
        more_orphans=seen.orphans.total - len(seen.orphans.found),
        wrong=(*_not_let_go(before, due), *_not_deleted(expired), *_not_deleted(orphans)),
    )


def _refused(here: Incarnation, why: Iterable[str]) -> Collected:
    lines = list(why)
    return Collected(here.topic, here.topic_id, wrong=tuple(shortened_lines(lines, _TOLD)))


def _faults(seen: Collectable, known: Known) -> Iterator[str]:
    """What is wrong with chain and objects, and nobody has said that they know."""
    problems = seen.problems
    breaches = [Breach.of_problem(each) for each in problems.found]
    yield from map(str, unforgiven(breaches, known, seen.tiling.incarnation))
    if more := problems.total - len(problems.found):
        yield f"and {more:,} more faults"


@dataclass(frozen=True, slots=True)
class _Log:
    """An entry in the action log before the first object of a kind is deleted, and one after the last."""

    platform: Platform
    here: Incarnation
    request: Request

    def told(self, what: str, delete: Callable[[Callable[[], None] | None], Deleted]) -> Deleted:
        """Delete, or only count in a dry run."""
        if self.request.dry_run:
            return delete(None)
        done = delete(lambda: self._append("begun", {"what": what}))
        if done.objects or done.kept:
            after = {"what": what, "objects": str(done.objects), "bytes": str(done.size_bytes)}
            self._append("incomplete" if done.kept else "done", after)
        return done

    def _append(self, outcome: str, after: dict[str, str]) -> None:
        self.platform.control.log.append(
            actor=self.request.actor,
            action="backup.collect",
            subject=str(self.here),
            reason=self.request.reason,
            after=after,
            outcome=outcome,
        )


def _not_let_go(fault: str, due: int) -> Iterator[str]:
    if fault and due:
        yield f"{due:,} offsets are due, and the app released only a part at the last request: {fault}"


def _not_deleted(done: Deleted) -> Iterator[str]:
    yield from (f"{key} was not deleted: {why}" for key, why in done.refused.items())
    if more := done.kept - len(done.refused):
        yield f"and {more:,} more"
