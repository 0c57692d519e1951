"""Put records in quarantine through again: plan it by trying, then do it, and look at what came of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from millrace.domain.declaration import BackupApp, Pipeline, Stream
from millrace.domain.offsets import OffsetRange, TopicPartition
from millrace.domain.plan import (
    LIFETIME,
    ChangeResult,
    Outcome,
    Plan,
    PlanKind,
    PlanStatus,
    StoredPlan,
    facts,
)
from millrace.domain.quality.books import OPEN, Finding, judged
from millrace.domain.redrive import (
    Redrive,
    Redriven,
    RedrivenRecord,
    Selection,
    WrongSelectionError,
    about,
    changes_of,
    parse_selection,
    redrive_of,
    stayed,
)
from millrace.errors import RefusedError, StalePlanError, UsageError
from millrace.usecases.declared_apps import declared_app

if TYPE_CHECKING:
    from millrace.wiring import Platform

Tell = Callable[[str], object]

_STEP = "redrive"
_VERIFY = "books"
_MOST_FINDINGS = 20


def selection_of(*, rule: str, since: str, offsets: Sequence[str], now: datetime) -> Selection:
    """What a person selects; what is empty selects nothing out.

    Args:
        rule: a rule's name.
        since: a time with its zone.
        offsets: TOPIC/PARTITION@OFFSET or TOPIC/PARTITION@FIRST-LAST each.
        now: the present.

    Raises:
        UsageError: one of them is none.
    """
    try:
        return parse_selection(rule, since, offsets, now)
    except WrongSelectionError as error:
        raise UsageError(str(error), where="the selection", next_step="see `millrace quarantine list`") from error


def make_plan(
    platform: Platform,
    stream: str,
    selection: Selection,
    *,
    by: str,
    reason: str,
    asked_in: str = "",
    now: datetime | None = None,
    tell: Tell = lambda text: None,
) -> Plan:
    """Store a plan that puts records through again, after each was tried with the app as it is now.

    Trying writes rows and takes them back in one transaction a part, so the table's own constraints have their say.

    Args:
        platform: the adapters.
        stream: PIPELINE.STREAM.
        selection: which records.
        by: who asks.
        reason: why.
        asked_in: the run of a DAG, as DAG/RUN@TIME, that the plan shall be bound to; none by default.
        now: the present; default the clock.
        tell: told how it gets on.

    Raises:
        UsageError: there is no such stream.
        RefusedError: nothing is selected, or nothing of it would leave quarantine; it says why it would stay.
        DeclarationError: the app or its table is not what it has to be.
        UnreachableError: the sink or the control database does not answer.
        PartFailedError: Spark ended without an answer.
    """
    given, at = _declared(platform, stream), now or datetime.now(UTC)
    code = code_of(platform.settings.root, given)
    tried = platform.redriving().attempt(
        stream, selection, given.connections, lambda done: tell(f"{stream}: {done:,} records tried")
    )
    changes = changes_of(tried.sums)
    if not changes:
        raise _nothing(stream, tried)
    redrive = Redrive(stream, selection, code, tried.upto)
    plan = Plan(
        kind=PlanKind.REDRIVE,
        target=stream,
        cluster_id=platform.sink(given.stream.sink.connection).address,
        connection=given.stream.sink.connection,
        changes=changes,
        refusals=(),
        created=at,
        expires=at + LIFETIME,
        by=by,
        reason=reason,
        about=about(redrive, tried),
    )
    return platform.control().plans.add(plan, asked_in=asked_in)


def _nothing(stream: str, tried: Redriven) -> RefusedError:
    if not tried.sums:
        return RefusedError(
            "no such record is in quarantine",
            where=stream,
            next_step=f"see `millrace quarantine list --stream {stream}`",
        )
    why = ", ".join(f"{one.records:,} {one.now or one.fate} (as {one.first})" for one in tried.sums)
    return RefusedError(
        f"none of {tried.records():,} records would leave quarantine: {why}",
        where=stream,
        next_step="mend the schema, the app or the sink first; `millrace quarantine show` has a record's bytes",
    )


def run(platform: Platform, stored: StoredPlan, *, actor: str, reason: str, now: datetime, tell: Tell) -> None:
    """Put through what a plan selects, and hold the books of what was touched.

    What stays bad changes its rule where it breaks another one now; that is no failure of the plan. A run that was
    killed is gone on with: what it has done stays done.

    Args:
        platform: the adapters.
        stored: the plan, open or running.
        actor: who runs it.
        reason: why; the plan's own where it is empty.
        now: the present.
        tell: told how it gets on.

    Raises:
        StalePlanError: it expired, or the app, its schemas or the sink are not those that it was tried with.
        DeclarationError, PartFailedError: as `make_plan`; run it again.
        UnreachableError: a server does not answer; run it again.
    """
    plan, plans = stored.plan, platform.control().plans
    redrive, given = redrive_of(plan), _declared(platform, plan.target)
    _must_hold(platform, stored, redrive, given, now)
    plans.begin(plan.id)
    plans.begin_step(plan.id, _STEP)
    told = platform.redriving().run(
        plan.target,
        redrive.selection,
        given.connections,
        lambda done: tell(f"{plan.target}: {done:,} records put through"),
        upto=redrive.upto,
        plan=plan.id,
    )
    records = platform.sink(given.stream.sink.connection).redriven(plan.target, plan.id)
    rows, dropped = sum(one.rows for one in records), sum(not one.rows for one in records)
    done = {
        "became_rows": len(records) - dropped,
        "rows": rows,
        "dropped_by_the_transform": dropped,
        **stayed(told.sums),
    }
    plans.end_step(plan.id, _STEP, facts(done))
    tell(f"{plan.target}: " + ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in done.items() if count))
    platform.control().log.append(
        actor=actor,
        action=plan.changes[0].action,
        subject=plan.target,
        reason=f"{reason or plan.reason} (plan {plan.id})",
        before={},
        after={name: str(count) for name, count in done.items()},
    )
    plans.begin_step(plan.id, _VERIFY)
    tell(f"{plan.target}: holding the books of what was touched")
    results = [ChangeResult(change.action, change.subject, Outcome.DONE) for change in plan.changes]
    findings = _unbalanced(platform, given.stream, records)
    plans.end_step(plan.id, _VERIFY, facts({"findings": len(findings)}))
    results += [ChangeResult(_VERIFY, plan.target, Outcome.FAILED, str(one)) for one in findings[:_MOST_FINDINGS]]
    plans.finish(plan.id, PlanStatus.FAILED if findings else PlanStatus.DONE, results)


def _must_hold(platform: Platform, stored: StoredPlan, redrive: Redrive, given: _Given, now: datetime) -> None:
    """Raise, and write down, why the plan is no longer true."""
    plan, sink = stored.plan, platform.sink(given.stream.sink.connection)
    why = ""
    if (given.stream.sink.connection, sink.address) != (plan.connection, plan.cluster_id):
        why = f"it was made for the sink {plan.cluster_id}, and the stream writes to {sink.address} now"
    elif stored.status is PlanStatus.OPEN and now >= plan.expires:
        why = f"it expired at {plan.expires:%Y-%m-%d %H:%M} UTC"
    elif code_of(platform.settings.root, given) != redrive.code:
        why = "the apps' code, or the declaration of the stream or its topics, changed since the records were tried"
    if why:
        platform.control().plans.finish(plan.id, PlanStatus.STALE)
        raise StalePlanError(
            f"this plan is no longer true: {why}",
            where=plan.id,
            next_step=f"make a new one with `millrace quarantine redrive {plan.target} --reason ...`",
        )


def _unbalanced(platform: Platform, stream: Stream, records: Sequence[RedrivenRecord]) -> list[Finding]:
    """What does not balance in the entries of the ledger that records were in."""
    found: list[Finding] = []
    reached: dict[TopicPartition, int] = {}
    with platform.sink_books(stream.sink.connection).opened(stream.qualified_name, stream.sink.table) as books:
        for one in records:
            if one.offset < reached.get(one.partition, 0):
                continue
            part = books.part(OffsetRange(one.partition, one.offset, one.offset + 1))
            reached[one.partition] = part.range.next
            found += [finding for finding in judged(part) if finding.fault not in OPEN]
    return found


@dataclass(frozen=True, slots=True)
class _Given:
    """A stream with its pipeline."""

    pipeline: Pipeline
    stream: Stream

    @property
    def connections(self) -> tuple[str, ...]:
        """The Connections that its app may see, and its sink's."""
        return tuple(dict.fromkeys((self.stream.sink.connection, *self.stream.connections)))


def _declared(platform: Platform, stream: str) -> _Given:
    pipeline, app = declared_app(platform.settings.root, stream)
    if isinstance(app, BackupApp):
        raise UsageError(
            f"{stream} has no quarantine: a backup keeps every record as it is",
            next_step="name a stream that reads the topic; see `millrace streams list`",
        )
    return _Given(pipeline, app)


def code_of(root: Path, given: _Given) -> str:
    """A digest of all that decides what becomes of a record: the apps' files, the stream, the schemas of its topics."""
    topics = [given.pipeline.topic(name) for name in given.stream.reads]
    digest = hashlib.sha256(msgspec.json.encode([given.stream, topics], order="deterministic"))
    folder = root / "spark_apps"
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(f"\0{path.relative_to(folder)}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
