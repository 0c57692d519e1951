"""Records out of an archive back into a topic, each once, however often the restore is killed on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING

from millrace.domain.archive.manifest import MOST
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.proof.partition import Cause, PartitionState
from millrace.domain.archive.proof.spans import Spans
from millrace.domain.archive.proof.tiling import Tiling
from millrace.domain.archive.restore.records import Placement
from millrace.domain.archive.restore.target import Survey, refusals
from millrace.domain.archive.selection import Selection
from millrace.domain.formats.printable import printable
from millrace.domain.topics.changes import ObservedTopic
from millrace.errors import Code, MillraceError, RecreatedTopicError, RefusedError, UsageError
from millrace.usecases.archive.archived import ArchivedTopic
from millrace.usecases.archive.restore_run import Phase, RestoreReport, Run, Surveyed

if TYPE_CHECKING:
    from millrace.ports.platform import Platform

_TOLD = 20  # ranges that are lost or have diverged
_DEFAULT_MAX_MESSAGE_BYTES = 1_048_588


@dataclass(frozen=True, slots=True)
class RestoreProgress:
    """How far it is: records of this phase, of as many at most where that is known."""

    phase: Phase
    records: int = 0
    total: int | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """What is restored, and where to.

    Attributes:
        topic: whose archive.
        into: the topic that is written.
        selection: which records.
        placement: into which of its partitions they go.
        append: also where the target holds other records.
        topic_id: of which incarnation; None: the one whose chain began last.
        store: the `aws` Connection that leads to the bucket.
        kafka: the `kafka` Connection that leads to the target.
        actor: who asks for it, and `reason` why; for the action log.
    """

    topic: str
    into: str
    selection: Selection
    actor: str
    reason: str
    placement: Placement = Placement.SAME
    append: bool = False
    topic_id: str | None = None
    store: str = "millrace_s3"
    kafka: str = "millrace_kafka"


@dataclass(slots=True)
class Restore:
    """One try at a restore.

    Attributes:
        platform: gives the bucket, the cluster and the action log.
        request: what is asked for.
        tell: told, a line each, what is wrong, and what a reader should know.
        progress: told how far it is.
    """

    platform: Platform
    request: Request
    tell: Callable[[str], object]
    progress: Callable[[RestoreProgress], object]
    _total: int | None = field(default=None, init=False)
    _logs: bool = field(default=True, init=False)

    def run(self) -> RestoreReport:
        """Write what the target has not of the records that are asked for, and read all of them back.

        Guarantees: killed anywhere and run again, each record is in the target once, in the order of its partition.

        Raises:
            UsageError: there is no such archive or partition of it, or no such topic to write to.
            RefusedError: the target would not take or not keep the records, or is not empty.
            FencedError: another restore into the same topic has taken over.
            RecreatedTopicError: the target was deleted and made again meanwhile.
            DataLossError: what was read of the target is gone.
            UnreachableError: bucket or broker do not answer; run again, it goes on.
        """
        request = self.request
        archived = ArchivedTopic(
            self.platform, request.topic, request.selection, self.tell, request.topic_id, request.store
        )
        source = archived.incarnation()
        self._say(Phase.SURVEYING)
        survey = Survey(request.selection)
        chain = self.platform.archive.reader(request.store).look_through(source, survey.see)
        survey.partitions = chain.known
        _must_have(chain, request.selection)
        self._total = None if request.selection.key is not None else survey.records
        target = self._target(source, survey)
        for line in _lost(chain, request.selection):
            archived.tell_problem(line)
        return self._into(target, archived, Surveyed(source, chain, survey))

    def _into(self, target: ObservedTopic, archived: ArchivedTopic, surveyed: Surveyed) -> RestoreReport:
        """Open the target, see that it can be restored into, and only then end whoever else restores into it."""
        request, most = self.request, target.setting("max.message.bytes")
        with self.platform.kafka.restore_target(
            request.into,
            f"millrace.restore.{target.name}",
            int(most) if most.isdigit() else _DEFAULT_MAX_MESSAGE_BYTES,
            request.kafka,
        ) as opened:
            run = Run(
                archived,
                surveyed,
                target,
                opened,
                self._say,
                lambda: self._must_be(target),
                placement=request.placement,
                append=request.append,
                any_incarnation=request.topic_id is None,
            )
            run.glance()
            self._say(Phase.FENCING)
            opened.fence()
            return self._logged(run)

    def _logged(self, run: Run) -> RestoreReport:
        """Do it, with an entry in the action log before the first record is written and one at the end."""
        run.look_first()
        before = {"archive": str(run.source), "into": f"{run.target.name} ({run.target.topic_id})"}
        before |= {"selection": run.selection, "already_there": str(run.already_found)}
        self._append(before, {}, "begun")
        try:
            run.restore()
            report = run.verified()
        except MillraceError as error:
            self._append(before, {"restored": str(run.restored)}, type(error).__name__)
            raise
        after = {"restored": str(report.restored), "verified": str(report.verified)}
        self._append(before, after, "done" if report.is_whole else "incomplete")
        return report

    def _append(self, before: dict[str, str], after: dict[str, str], outcome: str) -> None:
        """An entry in the action log, unless the control database is away: nothing here needs it."""
        if not self._logs:
            return
        try:
            self.platform.control.log.append(
                actor=self.request.actor,
                action="backup.restore",
                subject=self.request.into,
                reason=self.request.reason,
                before=before,
                after=after,
                outcome=outcome,
            )
        except MillraceError as error:
            self._logs = False
            self.tell(f"the action log lacks this restore: {error.what}")

    def _target(self, source: Incarnation, survey: Survey) -> ObservedTopic:
        """The topic that is restored into, which can take the records and will keep them."""
        into = self.request.into
        target = self.platform.kafka.topics(self.request.kafka).observe([into]).get(into)
        if target is None:
            settings = f"retention.ms=-1,cleanup.policy=delete,message.timestamp.after.max.ms={MOST}".split(",")
            options = " ".join(f"--config {setting}" for setting in settings)
            raise UsageError(
                f"topic {printable(into)} does not exist: nothing was restored",
                where=f"connection {self.request.kafka}",
                next_step="create it, for instance: `kafka-topics --bootstrap-server ... --create "
                f"--topic {printable(into)} --partitions {survey.partitions} {options}`",
                code=Code.MISSING_TOPIC,
            )
        now_ms = int(datetime.now(UTC).timestamp() * 1000)
        found = list(refusals(target, source, survey, self.request.placement, now_ms))
        if found:
            raise RefusedError(
                "this topic cannot take the records: " + "; ".join(each.what for each in found),
                where=into,
                next_step="\n        ".join(each.next_step for each in found),
                code=Code.WRONG_TARGET,
            )
        return target

    def _must_be(self, target: ObservedTopic) -> None:
        """See that the target is still the topic that it was, and that keys have the partitions that they had."""
        now = self.platform.kafka.topics(self.request.kafka).observe([target.name]).get(target.name)
        if now is None or now.topic_id != target.topic_id:
            raise RecreatedTopicError(
                "the topic was deleted during the restore",
                where=target.name,
                next_step="restore into an empty topic: records in flight may lie in a topic that was created again",
            )
        if self.request.placement is Placement.KEY and now.partitions != target.partitions:
            raise RefusedError(
                f"the topic had {target.partitions} partitions when the restore by key began, and has "
                f"{now.partitions} now",
                where=target.name,
                next_step="restore into another topic, and keep its number of partitions",
                code=Code.WRONG_TARGET,
            )

    def _say(self, phase: Phase, records: int = 0) -> None:
        self.progress(RestoreProgress(phase, records, self._total if phase is Phase.RESTORING else None))


def _must_have(chain: Tiling, selection: Selection) -> None:
    """See that the topic had the partition that is asked for, as far as its chain can be read."""
    if selection.partition is not None and selection.partition >= chain.known > 0:
        raise UsageError(
            f"the archived topic has no partition {selection.partition}",
            where=str(chain.incarnation),
            next_step=f"choose a partition from 0 to {chain.known - 1}",
            code=Code.UNKNOWN_NAME,
        )


def _lost(chain: Tiling, selection: Selection) -> Iterator[str]:
    """What the chain knows to be lost or diverged of what is asked for, unless somebody acknowledged it."""
    found = (
        f"{what}: [{first}, {next_}) of partition {number}{why}"
        for number, state in sorted(chain.partitions.items())
        if selection.partition in (None, number)
        for what, spans, why in _doubtful(state, chain)
        for first, next_ in spans.within(selection.first, selection.next)
    )
    yield from islice(found, _TOLD)
    if more := sum(1 for _ in found):
        yield f"{more} more ranges are lost or have diverged"


def _doubtful(state: PartitionState, chain: Tiling) -> Iterator[tuple[str, Spans, str]]:
    """Ranges of one partition that nobody has acknowledged: what of them is told, and why they are what they are."""
    for cause, spans in sorted(state.lost.items()):
        if cause is not Cause.UNEXPLAINED or not chain.problems.total:  # else whoever reads the chain is told of it
            yield "not restored: lost", spans.minus(state.acknowledged), f", {cause.value}"
    yield (
        "restored as archived: diverged from the topic",
        state.diverged_unknown().minus(state.expired),
        ": an unclean leader election removed it from the log",
    )
    yield "not restored as it was", state.cut, f": {Cause.CUT.value}"
