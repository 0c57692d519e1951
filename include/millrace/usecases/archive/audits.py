"""Audits of a pipeline's backups: run, kept as evidence, told as alarms; and what people say to know of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from millrace.domain.alarms.extent import Extent
from millrace.domain.alarms.kinds import AlarmKind
from millrace.domain.archive.audits.acknowledgement import Acknowledgement, Known
from millrace.domain.archive.audits.findings import Audit, Basis, Breach, BreachKind, Depth
from millrace.domain.archive.audits.turn import is_deep_due
from millrace.domain.archive.manifest import PartitionSpan
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.proof.coverage import lost_text
from millrace.domain.archive.proof.partition import Tile
from millrace.domain.archive.proof.spans import Spans
from millrace.domain.declaration.pipeline import BackupApp, Pipeline, Topic
from millrace.errors import Code, MillraceError, RefusedError, UnreachableError, UsageError
from millrace.usecases.archive.audit_page import page_of

if TYPE_CHECKING:
    from millrace.ports.platform import Platform

ALARMS = {
    BreachKind.LOST: AlarmKind.BACKUP_LOST,
    BreachKind.BROKEN: AlarmKind.BACKUP_BROKEN,
    BreachKind.LATE: AlarmKind.BACKUP_LATE,
}
MOST_SPANS = 1_000
_TOLD = 5


@dataclass(frozen=True, slots=True)
class Backed:
    """A declared topic with a backup: whose app, on which cluster."""

    app: BackupApp
    kafka: str
    topic: Topic


@dataclass(frozen=True, slots=True)
class Kept:
    """An audit, where its evidence lies, and what could not be done for it."""

    audit: Audit
    evidence: str
    page: str
    failures: tuple[str, ...] = ()


def backed_topics(pipelines: Sequence[Pipeline], topic: str | None = None) -> list[Backed]:
    """The declared topics that are backed up, or the one of a name.

    Raises:
        UsageError: no topic of this name is declared with `backup`.
    """
    found = [
        Backed(pipeline.backup, pipeline.kafka, each)
        for pipeline in pipelines
        if pipeline.backup is not None
        for each in pipeline.backup.topics
    ]
    if topic is None:
        return found
    named = [each for each in found if each.topic.name == topic]
    if not named:
        names = ", ".join(sorted(each.topic.name for each in found)) or "none"
        raise UsageError(
            f"{topic} is not declared with a backup", next_step=f"choose one of: {names}", code=Code.UNKNOWN_NAME
        )
    return named


def incarnations(platform: Platform, backed: Backed) -> list[Incarnation]:
    """Every incarnation of a topic that has an archive or should have one, by all who know of any.

    Raises:
        UnreachableError: the store or a broker does not answer.
    """
    topic = backed.topic.name
    ids = {here.topic_id for here in platform.archive.reader(backed.app.store).incarnations(topic)}
    ids |= set(platform.archive.evidence(backed.app.store).topic_ids(topic))
    ids |= platform.archive.claims(backed.app, backed.kafka).topic_ids(topic)
    return sorted(_valid(topic, ids))


def _valid(topic: str, ids: set[str]) -> Iterator[Incarnation]:
    for each in ids:
        try:
            yield Incarnation(topic, each)
        except ValueError:
            continue  # a folder that somebody made; it belongs to no topic


def audit(platform: Platform, backed: Backed, here: Incarnation, depth: Depth | None) -> Kept:
    """Audit one incarnation, keep the evidence, and open or close its alarms.

    Args:
        platform: the adapters.
        backed: the topic.
        here: which of its incarnations.
        depth: how closely; None: as the daily turn has it.

    Raises:
        UnreachableError: the store or a broker does not answer; or something is wrong, and the control database, that
            could say whether somebody knows of it, does not. That is no verdict.
    """
    now = datetime.now(UTC)
    evidence = platform.archive.evidence(backed.app.store)
    if depth is None:
        deep = evidence.remembered(here, now).last_deep
        depth = Depth.DEEP if is_deep_due(deep.at if deep else None, now) else Depth.SHALLOW
    found = look_at(platform, backed, here, depth)
    key, page = evidence.put(found, page_of(found))
    return Kept(found, key, page, tuple(_tell(platform, found)))


def look_at(platform: Platform, backed: Backed, here: Incarnation, depth: Depth = Depth.SHALLOW) -> Audit:
    """The same without evidence and alarms: only a summary may be written.

    Raises:
        UnreachableError: as `audit` says.
    """
    known, silent = Known(), None
    try:
        known = Known.of(platform.control.backups.known(here))
    except UnreachableError as error:
        silent = error
    auditor = platform.archive.auditor(backed.app, backed.kafka)
    backup = backed.topic.backup
    assert backup is not None
    found = auditor.audit(here, depth, backup.max_lag, known)
    if silent is not None and any(_could_be_known(breach) for breach in found.breaches):
        raise silent
    return found


def _could_be_known(breach: Breach) -> bool:
    """Whether the control database may have an acknowledgement of it; of what the chain calls lost the chain has it."""
    return breach.kind is BreachKind.BROKEN or breach.basis is Basis.MEMORY


def exit_code_of(audits: Sequence[Audit]) -> int:
    """1 where something is wrong, else 3 where a partition could not be looked at, else 0."""
    if any(each.counts for each in audits):
        return MillraceError.exit_code
    return UnreachableError.exit_code if any(each.unseen for each in audits) else 0


def in_a_line(found: Audit) -> str:
    """What an audit came to, in one line."""
    lost = sum(count for kind, count in found.counts if kind is BreachKind.LOST)
    wrong = ", ".join(f"{count:,} {kind}" for kind, count in found.counts)
    looked = found.looked
    return (
        f"{found.incarnation}, {found.depth}: {wrong or found.verdict}; {found.records:,} records archived, "
        f"{looked.objects:,} objects looked at, {looked.read_objects:,} read, {looked.compared_objects:,} held against "
        f"Kafka; {'no' if not lost else f'{lost:,}'} unacknowledged loss; {found.took_seconds:.1f} s"
    )


def _tell(platform: Platform, found: Audit) -> Iterator[str]:
    """Open and close the alarms of an audit; what could not be told."""
    for kind, alarm in ALARMS.items():
        try:
            if found.count(kind):
                extent = Extent(_measure(found, kind))
                platform.control.alarms.open(alarm, str(found.incarnation), _detail(found, kind), extent)
            elif not found.unseen:
                platform.control.alarms.close(alarm, str(found.incarnation), opened_before=found.at)
        except MillraceError as error:
            yield f"the alarms were not set: {error}"
            return


def _measure(found: Audit, kind: BreachKind) -> int:
    """Return how bad a breach is: the offsets that are lost, else how many faults or late partitions there are."""
    if kind is not BreachKind.LOST:
        return found.count(kind)
    lost = sum(tile.next - tile.first for partition in found.partitions for tile in partition.unacknowledged)
    known = sum((each.next or 0) - (each.first or 0) for each in found.breaches if each.kind is kind)
    return max(lost, known)  # the archive knows the former; of the latter, only the first thousand ranges are named


def _detail(found: Audit, kind: BreachKind) -> str:
    """What the alarm says; of what is lost the same as the backup's own app says, so that both mean one alarm."""
    breaches = [breach for breach in found.breaches if breach.kind is kind]
    if kind is BreachKind.LOST and all(breach.basis is Basis.ARCHIVE for breach in breaches):
        tiles: list[Tile] = [tile for partition in found.partitions for tile in partition.unacknowledged]
        return lost_text(found.topic, tiles)
    more = found.count(kind) - len(breaches[:_TOLD])
    return "; ".join(map(str, breaches[:_TOLD])) + (f"; and {more:,} more" if more > 0 else "")


def acknowledge_loss(
    platform: Platform, backed: Backed, here: Incarnation, span: PartitionSpan, *, actor: str, reason: str
) -> list[PartitionSpan]:
    """Say that somebody knows of what is wrong with these offsets now: the app writes it into the chain.

    Only what is wrong at this moment is acknowledged, so a wide range forgives nothing that comes later.

    Returns:
        The offsets that are acknowledged.

    Raises:
        RefusedError: nothing is wrong with these offsets, or more than a thousand ranges are.
        UnreachableError: store, broker or control database do not answer.
    """
    found = look_at(platform, backed, here)
    lost = Spans((tile.first, tile.next) for part in found.partitions for tile in _of(part.unacknowledged, span))
    faults: dict[str, PartitionSpan] = {}
    for breach in found.breaches:
        if breach.partition != span.partition or breach.first is None or breach.next is None:
            continue
        if breach.kind is BreachKind.LOST:
            lost.add(breach.first, breach.next)
        elif _is_of_the_archive(breach) and span.first <= breach.first and breach.next <= span.next:
            faults[breach.text] = PartitionSpan(span.partition, breach.first, breach.next)
    about = [("", PartitionSpan(span.partition, *rest)) for rest in lost.within(span.first, span.next)]
    about += faults.items()
    place = f"partition {span.partition} [{span.first}, {span.next})"
    if not about:
        raise RefusedError(
            f"no fault to acknowledge in {place}",
            where=str(here),
            next_step="run `millrace backup coverage` to see lost ranges; acknowledge the fault of an object for its "
            "whole range",
            code=Code.NOTHING_TO_DO,
        )
    if len(about) > MOST_SPANS:
        what = f"{len(about):,} ranges are too many for {place}"
        raise RefusedError(what, where=str(here), next_step=f"acknowledge at most {MOST_SPANS} ranges at a time")
    app = backed.app.qualified_name
    asked = [Acknowledgement(None, app, here, each, None, actor, reason, fault) for fault, each in about]
    spans = sorted({each for _, each in about}, key=lambda each: each.first)
    words = f"partition {span.partition} " + ", ".join(f"[{each.first}, {each.next})" for each in spans[:20])
    platform.control.backups.acknowledge(asked, words + (", ..." if len(spans) > 20 else ""))
    return spans


def _is_of_the_archive(breach: Breach) -> bool:
    """Whether something is wrong with the offsets themselves: those of a foreign object's name are unharmed."""
    return breach.kind is BreachKind.BROKEN and (breach.sequence is not None or breach.basis is Basis.LOG)


def _of(tiles: Sequence[Tile], span: PartitionSpan) -> Iterator[Tile]:
    return (tile for tile in tiles if tile.partition == span.partition)


def acknowledge_chain(
    platform: Platform, backed: Backed, here: Incarnation, sequence: int, *, actor: str, reason: str
) -> None:
    """Say that somebody knows that manifests up to this one are missing or changed.

    Raises:
        RefusedError: no manifest up to there is at fault, or a later number is asked for than is at fault.
        UnreachableError: store, broker or control database do not answer.
    """
    found = look_at(platform, backed, here)
    faults = [_sequence(breach, here) for breach in found.breaches if breach.kind is BreachKind.BROKEN]
    last = max((each for each in faults if each is not None), default=-1)
    if last < 0 or sequence > last or all(each is None or each > sequence for each in faults):
        said = f"the last faulty manifest is {last}" if last >= 0 else "no manifest is faulty"
        raise RefusedError(
            f"manifest {sequence} cannot be acknowledged: {said}",
            where=str(here),
            next_step="run `millrace backup audit --deep` to see the faults",
            code=Code.NOTHING_TO_DO,
        )
    asked = Acknowledgement(None, backed.app.qualified_name, here, None, sequence, actor, reason)
    platform.control.backups.acknowledge([asked], f"manifests up to {sequence}")


def _sequence(breach: Breach, here: Incarnation) -> int | None:
    """The manifest a breach is about, where it is about one and not about offsets."""
    if breach.partition is not None:
        return None
    return breach.sequence if breach.sequence is not None else here.sequence_of(breach.key)
