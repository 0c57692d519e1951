"""The pages of topics: declarations, and what plans saw and did. No broker is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from millrace.declarations import project
from millrace.declarations.show import EffectiveValue, effective
from millrace.domain.plans.plan import Change, PlanKind, PlanSummary, Refusal, StoredPlan
from millrace.errors import Code, MillraceError, UsageError
from millrace.usecases.plans.pages import PLANS, Readable

if TYPE_CHECKING:
    from millrace.ports.platform import Platform

WHOLE_PLANS = 5


@dataclass(frozen=True, slots=True)
class PipelineLine:
    """A pipeline and the newest plan of its topics."""

    pipeline: str
    newest: PlanSummary | None


@dataclass(frozen=True, slots=True)
class TopicLine:
    """A declared topic, and the newest plan that says anything of it.

    `declared` has its fields without the topic's name before them.
    """

    topic: str
    declared: Sequence[EffectiveValue]
    plan: StoredPlan | None
    changes: Sequence[Change] = ()
    refusals: Sequence[Refusal] = ()


@dataclass(frozen=True, slots=True)
class TopicsPage:
    """A pipeline's topics: declared, against what plans saw. `problem` says why nothing is declared."""

    at: datetime
    pipeline: str
    topics: Sequence[TopicLine]
    plans: Sequence[PlanSummary]
    problem: str = ""


def pipelines(platform: Platform, readable: Readable) -> Sequence[PipelineLine]:
    """Every pipeline that has a file or a plan, by name."""
    with platform.control.pages.page() as page:
        newest = page.newest_plans(PlanKind.TOPICS)
    names = readable({*project.names(platform.settings.root), *newest})
    return [PipelineLine(name, newest.get(name)) for name in sorted(names)]


def topics_page(platform: Platform, pipeline: str, now: datetime) -> TopicsPage:
    """The topics of one pipeline.

    Raises:
        UsageError: there is no such pipeline.
        UnreachableError: the control database does not answer, or not soon enough.
    """
    with platform.control.pages.page() as page:
        plans = page.plan_summaries(limit=PLANS, kind=PlanKind.TOPICS, target=pipeline)
        whole = page.plans(PlanKind.TOPICS, pipeline, limit=WHOLE_PLANS)
    if pipeline not in project.names(platform.settings.root):
        if not plans:
            raise UsageError(f"pipeline {pipeline} does not exist", code=Code.UNKNOWN_NAME)
        return TopicsPage(now, pipeline, (), plans, "its file is gone")
    try:
        values = effective(platform.settings.root, pipeline).values
    except MillraceError as error:
        return TopicsPage(now, pipeline, (), plans, str(error))
    names = _topics(values)
    return TopicsPage(now, pipeline, [_line(name, values, whole) for name in names], plans)


def _topics(values: Sequence[EffectiveValue]) -> list[str]:
    ends = ".manage"  # every topic has it, written or not
    found = [value.field for value in values if value.field.startswith("topics.") and value.field.endswith(ends)]
    return [field.removeprefix("topics.").removesuffix(ends) for field in found]


def _line(topic: str, values: Sequence[EffectiveValue], plans: Sequence[StoredPlan]) -> TopicLine:
    declared = [value for value in values if value.field.startswith(f"topics.{topic}.")]
    for stored in plans:
        changes = [change for change in stored.plan.changes if change.subject == topic]
        refusals = [refusal for refusal in stored.plan.refusals if refusal.subject == topic]
        if changes or refusals:
            return TopicLine(topic, declared, stored, changes, refusals)
    return TopicLine(topic, declared, None)
