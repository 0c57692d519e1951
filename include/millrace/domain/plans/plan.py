"""A plan: a stored, hashed, expiring value that says what would change, and whether that is still true.

A plan never says how: a use case per kind carries out its changes. All facts are text, so that a plan reads
the same in a terminal, in a table and in the log.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

BODY_VERSION = 1
LIFETIME = timedelta(hours=24)

Facts = tuple[tuple[str, str], ...]


class PlanKind(StrEnum):
    """What a plan is about; each kind has one use case that makes and runs it."""

    TOPICS = "topics"
    REWIND = "rewind"
    REDRIVE = "redrive"

    @property
    def told_by_about(self) -> bool:
        """Return whether `Plan.about` is part of what a plan does, and not only of what is to be known of it.

        Two plans that differ in it are two then. A redrive names its records there.
        """
        return self is PlanKind.REDRIVE


class PlanStatus(StrEnum):
    """Where a stored plan is in its life. Only an open one can be started."""

    OPEN = "open"
    RUNNING = "running"  # started; left so by a runner that died
    DONE = "done"
    FAILED = "failed"
    STALE = "stale"
    ABORTED = "aborted"  # taken back by a person; what it had begun was undone, but for records that left quarantine
    REFUSED = "refused"  # who asked for it in Airflow rejected it, or confirmed nothing in its time


class Outcome(StrEnum):
    """How one change of a plan went."""

    DONE = "done"
    FOUND_DONE = "found done"  # by an earlier runner of this plan, which died before it could say so, or by others
    FAILED = "failed"


class Standing(StrEnum):
    """How one change of a plan meets what is there now."""

    PENDING = "pending"  # what was seen is still so
    DONE = "done"  # what is wanted is already so
    MOVED = "moved"  # neither


@dataclass(frozen=True, slots=True)
class Change:
    """One change: what is so `before` and what shall be so `after`, as sorted facts.

    `before` holds all that was seen and matters; a plan is stale once any of it is no longer so.
    `unsafe` is empty for a change the machine may run by itself, else the reason why a person has to.
    """

    action: str
    subject: str
    before: Facts
    after: Facts
    unsafe: str = ""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A difference no plan will ever remove, and the way out."""

    subject: str
    what: str
    next_step: str


@dataclass(frozen=True, slots=True)
class ChangeResult:
    """What running one change of a plan came to. `error` is empty unless it failed."""

    action: str
    subject: str
    outcome: Outcome
    error: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """What would change, against what was seen when it was made."""

    kind: PlanKind
    target: str
    cluster_id: str
    connection: str
    changes: tuple[Change, ...]
    refusals: tuple[Refusal, ...]
    created: datetime
    expires: datetime
    by: str
    reason: str = ""
    about: Facts = ()  # what else is to be known before it is run

    @property
    def hash(self) -> str:
        """SHA-256 over the canonical form, 64 hexadecimal digits."""
        return hashlib.sha256(canonical(self).encode()).hexdigest()

    @property
    def id(self) -> str:
        """`KIND-` and the first twelve digits of the hash."""
        return f"{self.kind}-{self.hash[:12]}"

    @property
    def seen(self) -> Mapping[str, Facts]:
        """All that was observed and matters, by subject."""
        facts: dict[str, dict[str, str]] = {}
        for change in self.changes:
            facts.setdefault(change.subject, {}).update(change.before)
        return {subject: tuple(sorted(values.items())) for subject, values in sorted(facts.items())}

    def because(self, reason: str = "") -> str:
        """Return a reason for the action log: the one given, or else the plan's own, with the plan's id."""
        given = reason or self.reason
        return f"{given} (plan {self.id})" if given else f"plan {self.id}"

    def says_the_same(self, other: Plan) -> bool:
        """Return whether both would do the same to the same, whoever made them and when."""
        if self.kind.told_by_about and self.about != other.about:
            return False
        return (self.kind, self.target, self.cluster_id, self.connection, self.changes, self.refusals) == (
            other.kind,
            other.target,
            other.cluster_id,
            other.connection,
            other.changes,
            other.refusals,
        )


@dataclass(frozen=True, slots=True)
class StepDone:
    """One step of a plan that is run in steps, as it was written down. `done_at` None: begun, and not known to be done.

    `detail` is what the steps after it, or another runner, have to know.
    """

    name: str
    begun_at: datetime
    done_at: datetime | None = None
    detail: Facts = ()


@dataclass(frozen=True, slots=True)
class Asked:
    """The run of a DAG that a plan is bound to for ever, and who confirmed there what.

    `run` is DAG/RUN@TIME, for an id may be given again once its run was deleted. `shown` is the hash of the plan that
    was shown, empty where none was yet; `by` is empty and `at` None until it is confirmed.
    """

    run: str
    shown: str = ""
    by: str = ""
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """A plan with its fate. `results` is empty until it was run; `steps` are those of a plan that is run in steps.

    `asked` is None for a plan that was not asked for by a form.
    """

    plan: Plan
    status: PlanStatus
    finished_at: datetime | None = None
    results: tuple[ChangeResult, ...] = ()
    steps: tuple[StepDone, ...] = ()
    asked: Asked | None = None

    @property
    def confirmed(self) -> bool:
        """Whether the very plan that is stored was shown and confirmed."""
        return self.asked is not None and bool(self.asked.by) and self.asked.shown == self.plan.hash


@dataclass(frozen=True, slots=True)
class PlanSummary:
    """A stored plan without what it would change, which may be megabytes: for lists. Its hash was not looked at."""

    id: str
    kind: PlanKind
    target: str
    status: PlanStatus
    created: datetime
    expires: datetime
    by: str
    reason: str
    confirmed_by: str


def facts(values: Mapping[str, object]) -> Facts:
    """Facts of a mapping, in the order they are compared and hashed in."""
    return tuple(sorted((key, str(value)) for key, value in values.items()))


def still_true(plan: Plan, standings: Sequence[Standing], *, cluster_id: str, now: datetime, resumed: bool) -> str:
    """Why the plan may no longer be run; empty where it may.

    Args:
        plan: the plan.
        standings: how each of its changes meets what is observed now, in the plan's order.
        cluster_id: the cluster that its connection leads to now.
        now: the time of asking.
        resumed: whether an earlier runner of this very plan died in the middle. Only then may changes be
            done already, and the plan does not expire: half of it would stay undone.
    """
    if cluster_id != plan.cluster_id:
        return f"it was made for cluster {plan.cluster_id}, but connection {plan.connection} leads to {cluster_id}"
    if not resumed and now >= plan.expires:
        return f"it expired at {plan.expires:%Y-%m-%d %H:%M} UTC"
    fine = {Standing.PENDING, Standing.DONE} if resumed else {Standing.PENDING}
    moved = sorted({c.subject for c, standing in zip(plan.changes, standings, strict=True) if standing not in fine})
    return f"the observed state has changed: {', '.join(moved)}" if moved else ""


def canonical(plan: Plan) -> str:
    """The one JSON text of a plan: equal plans, equal bytes."""
    body: dict[str, object] = {
        "version": BODY_VERSION,
        "kind": plan.kind.value,
        "target": plan.target,
        "cluster_id": plan.cluster_id,
        "connection": plan.connection,
        "changes": [
            {
                "action": change.action,
                "subject": change.subject,
                "before": dict(change.before),
                "after": dict(change.after),
                "unsafe": change.unsafe,
            }
            for change in plan.changes
        ],
        "refusals": [
            {"subject": refusal.subject, "what": refusal.what, "next_step": refusal.next_step}
            for refusal in plan.refusals
        ],
        "created": plan.created.isoformat(),
        "expires": plan.expires.isoformat(),
        "by": plan.by,
    }
    if plan.reason or plan.about:  # those of a Millrace that knew neither keep their hash
        body |= {"reason": plan.reason, "about": dict(plan.about)}
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def parse(text: str) -> Plan:
    """The plan of a canonical text.

    Raises:
        ValueError: the text is not one, or of a version this code does not know.
    """
    body = json.loads(text)
    if not isinstance(body, dict) or body.get("version") != BODY_VERSION:
        raise ValueError("not a plan of a version this code knows")
    try:
        return Plan(
            kind=PlanKind(body["kind"]),
            target=body["target"],
            cluster_id=body["cluster_id"],
            connection=body["connection"],
            changes=tuple(
                Change(c["action"], c["subject"], facts(c["before"]), facts(c["after"]), c["unsafe"])
                for c in body["changes"]
            ),
            refusals=tuple(Refusal(r["subject"], r["what"], r["next_step"]) for r in body["refusals"]),
            created=datetime.fromisoformat(body["created"]),
            expires=datetime.fromisoformat(body["expires"]),
            by=body["by"],
            reason=body.get("reason", ""),
            about=facts(body.get("about", {})),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a plan: {error!r}") from error
