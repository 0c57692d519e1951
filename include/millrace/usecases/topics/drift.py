"""Drift: in what the topics of a cluster are not as declared, setting by setting."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from millrace.domain.declaration.pipeline import Pipeline
from millrace.domain.plans.plan import Change, Plan, Refusal
from millrace.domain.topics import changes as domain
from millrace.usecases.topics import plan as topics

if TYPE_CHECKING:
    from millrace.ports.platform import Platform

_NOBODY = "drift"  # the plan that is looked at is neither kept nor run


class MendedBy(StrEnum):
    """Who may make a setting as declared."""

    DAILY = "daily"  # the pipeline's DAG of topics, by itself
    PERSON = "person"  # by running a plan: records or the order of keys depend on it


@dataclass(frozen=True, slots=True)
class Difference:
    """One setting that is not as declared.

    Attributes:
        topic: of which topic.
        setting: `partitions`, or the setting's Kafka name.
        declared: the declared value, as Kafka spells it.
        observed: the value in force.
        mended_by: who may make it as declared.
        why: why that has to be a person; empty where a machine may.
    """

    topic: str
    setting: str
    declared: str
    observed: str
    mended_by: MendedBy
    why: str = ""


@dataclass(frozen=True, slots=True)
class Drift:
    """In what a pipeline's topics are not as declared.

    Attributes:
        pipeline: whose topics they are.
        kafka: the Connection of its cluster.
        cluster_id: that cluster's own id.
        differences: what can be made as declared, by topic and setting.
        refusals: what no plan will change, each with the way out.
        missing: topics that are declared and not there, and that Millrace may create.
    """

    pipeline: str
    kafka: str
    cluster_id: str
    differences: tuple[Difference, ...]
    refusals: tuple[Refusal, ...]
    missing: tuple[str, ...]

    @property
    def is_none(self) -> bool:
        """Whether all is as declared."""
        return not (self.differences or self.refusals or self.missing)


def find_drift(platform: Platform, pipeline: Pipeline, now: datetime | None = None) -> Drift:
    """Compare a pipeline's topics with their declaration. Nothing is stored and nothing is changed.

    Raises:
        UnreachableError: the pipeline's cluster does not answer.
    """
    return drift_of(topics.propose(platform, pipeline, by=_NOBODY, now=now))


def drift_of(plan: Plan) -> Drift:
    """What a plan of topics would change, setting by setting."""
    found = (each for change in plan.changes for each in _differences(change))
    return Drift(
        pipeline=plan.target,
        kafka=plan.connection,
        cluster_id=plan.cluster_id,
        differences=tuple(sorted(found, key=lambda each: (each.topic, each.setting))),
        refusals=plan.refusals,
        missing=tuple(change.subject for change in plan.changes if change.action == domain.CREATE),
    )


def _differences(change: Change) -> Iterator[Difference]:
    mended_by = MendedBy.PERSON if change.unsafe else MendedBy.DAILY
    if change.action == domain.ADD_PARTITIONS:
        observed, wanted = dict(change.before)["partitions"], str(domain.partition_count(change))
        yield Difference(change.subject, "partitions", wanted, observed, mended_by, change.unsafe)
    elif change.action == domain.SET_CONFIG:
        before = domain.settings_of(change.before)
        for key, wanted in domain.settings_of(change.after).items():
            yield Difference(change.subject, key, wanted, before.get(key, ""), mended_by, _why(change, key))


def _why(change: Change, key: str) -> str:
    """The reason that is about this setting, of a change of several."""
    reasons = change.unsafe.split("; ")
    return next((each for each in reasons if each.startswith(f"{key} ")), change.unsafe)
