"""Whoever plans and runs a plan may die at any call: run or planned again, the topics end as declared, and each change
is made once and told in the action log."""

from __future__ import annotations

import json
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from millrace.adapters.control.store import ControlStore
from millrace.adapters.kafka.topics import KafkaTopicAdmin
from millrace.domain.declaration.pipeline import Pipeline, Topic
from millrace.domain.plans.plan import Outcome, PlanStatus, StoredPlan
from millrace.domain.topics.changes import NewTopic
from millrace.embedded.stack import Stack
from millrace.errors import MillraceError, RefusedError, StalePlanError
from millrace.ports.platform import Platform
from millrace.settings import PostgresSettings, Settings, open_settings
from millrace.usecases.plans import running
from millrace.usecases.topics import plan as topics
from millrace.wiring.kafka import KafkaAdapters
from millrace.wiring.platform import Adapters
from support.crash_walks import crash_at_every_call
from support.stack import embedded as runs
from support.stack.control_databases import Databases
from support.stack.faults import Life, Moment, crash_at_call, unexpected, watched_control
from support.stack.killed_child import alarmed, die, must_be_killed
from support.waiting import Deadline, eventually

ACTOR = "test:crash"
KAFKA = "millrace_kafka"
CALLS = (
    "admin.observe",
    "admin.cluster_id",
    "holds.list",
    "plans.add",
    "plans.running",
    "plans.get",
    "plans.begin",
    "admin.create",
    "admin.add_partitions",
    "admin.set_config",
    "log.append",
    "plans.finish",
)
MOMENTS = (Moment.AFTER, Moment.ANSWER_LOST, pytest.param(Moment.BEFORE, marks=pytest.mark.full))


@dataclass(frozen=True)
class Surroundings:
    """A cluster and a control database."""

    settings: Settings
    database: PostgresSettings
    admin: KafkaTopicAdmin

    @contextmanager
    def platform(self) -> Iterator[Platform]:
        """For one who looks on and goes on, whom nobody strikes: with connections of its own."""
        with closing(ControlStore(self.database)) as control:
            yield Adapters(self.settings, control=control, kafka=KafkaAdapters(self.settings, {KAFKA: self.admin}))


@pytest.fixture(scope="module")
def surroundings(idle_stack: Stack, control_databases: Databases) -> Surroundings:
    settings = runs.start(idle_stack, "kafka", "postgres").settings()
    made = control_databases.create_upgraded()
    return Surroundings(settings, made.working, KafkaTopicAdmin(settings.kafka()))


def declared(name: str) -> Pipeline:
    """A pipeline of three topics."""
    wanted = [Topic(f"{name}.{topic}", name, partitions=2, replication=1) for topic in ("a", "b")]
    wanted.append(Topic(f"{name}.c", name, partitions=1, replication=1, config=(("segment.ms", "70000"),)))
    return Pipeline(name, "owner", KAFKA, tuple(wanted), ())


def three_topics(platform: Platform) -> Pipeline:
    """A pipeline that needs a topic, more partitions of another, and another setting of a third."""
    name = f"crash_{uuid.uuid4().hex[:8]}"
    there = [NewTopic(f"{name}.{topic}", 1, 1, {}) for topic in ("b", "c")]
    admin = platform.kafka.topics()
    assert admin.create(there) == {topic.name: None for topic in there}
    names = [topic.name for topic in there]
    eventually(lambda: len(admin.observe(names)) == len(names), within=Deadline.METADATA, what="the topics")
    return declared(name)


def plan_and_run(life: Life, given: Surroundings, pipeline: Pipeline) -> MillraceError | None:
    """One life of the command line; what ended it before, but for a crash."""
    with closing(ControlStore(given.database)) as control:
        admin = life.watch("admin", KafkaTopicAdmin(given.settings.kafka()))
        mortal = Adapters(
            given.settings,
            control=watched_control(life, control),
            kafka=KafkaAdapters(given.settings, {pipeline.kafka: admin}),
        )

        def act() -> None:
            plan = topics.make_plan(mortal, pipeline, by=ACTOR)
            running.run(mortal, plan.id, actor=ACTOR, reason="a test of crashes")

        return life.lived(act)


def plan_of(platform: Platform, pipeline: Pipeline) -> StoredPlan | None:
    found = [stored for stored in platform.control.plans.list(limit=500) if stored.plan.target == pipeline.name]
    assert len(found) <= 1, f"one difference, and several plans: {found}"
    return found[0] if found else None


def run_again(platform: Platform, plan_id: str) -> StoredPlan | None:
    """Run a plan; None where the server still counts the dead one as its runner."""
    try:
        return running.run(platform, plan_id, actor=ACTOR, reason="again")
    except StalePlanError:
        raise
    except RefusedError:
        return None


def go_on(platform: Platform, pipeline: Pipeline) -> list[str]:
    """Run the plan that was left, or a new one where none was stored: what was wrong at the end."""
    left = plan_of(platform, pipeline)
    plan_id = left.plan.id if left else topics.make_plan(platform, pipeline, by=ACTOR).id
    if left is None or left.status in (PlanStatus.OPEN, PlanStatus.RUNNING):
        eventually(lambda: run_again(platform, plan_id), within=Deadline.METADATA, what="the right to run the plan")
    wrong = []
    try:
        running.run(platform, plan_id, actor=ACTOR, reason="once too often")
        wrong.append("the plan was run twice")
    except StalePlanError:
        pass
    ended = plan_of(platform, pipeline)
    if ended is None or ended.status is not PlanStatus.DONE:
        wrong.append(f"the plan ended as {ended}")
    eventually(
        lambda: not topics.propose(platform, pipeline, by=ACTOR).changes,
        within=Deadline.METADATA,
        what="the topics as declared",
    )
    return wrong + told_wrongly(platform, pipeline)


def told_wrongly(platform: Platform, pipeline: Pipeline) -> list[str]:
    """Changes that the action log does not tell, or tells as made more than once, or as failed."""
    told: dict[str, Counter[str]] = {topic.name: Counter() for topic in pipeline.topics}
    for entry in platform.control.log.list(subject=pipeline.name, limit=500):
        told[entry.subject][entry.outcome] += 1
    right = {Outcome.DONE.value, Outcome.FOUND_DONE.value}
    return [
        f"of {subject} the action log says {dict(outcomes)}"
        for subject, outcomes in told.items()
        if not outcomes or outcomes[Outcome.DONE.value] > 1 or set(outcomes) - right
    ]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_plan_whose_runner_dies_at_any_call_is_run_to_its_end(surroundings: Surroundings, moment: Moment) -> None:
    def once(life: Life) -> list[str]:
        with surroundings.platform() as platform:
            pipeline = three_topics(platform)
            ended = plan_and_run(life, surroundings, pipeline)
            return unexpected(life, ended) + go_on(platform, pipeline)

    crash_at_every_call(moment, once).must_be_well(*CALLS)


IN_CHILDREN = ("plans.begin", "admin.create", "log.append")


def live_in_child(root: str, pipeline: str, call: str) -> None:
    """Plan and run in a process that is gone right after a call: no `finally`, no farewell of a client."""
    alarmed()
    settings = open_settings(Path(root))
    given = Surroundings(settings, PostgresSettings(**json.load(sys.stdin)), KafkaTopicAdmin(settings.kafka()))
    life = crash_at_call(call, Moment.AFTER, dying=die)
    print(f"it was not struck and ended with {plan_and_run(life, given, declared(pipeline))}")


@pytest.mark.parametrize("call", IN_CHILDREN)
def test_what_a_process_leaves_that_is_gone_in_the_middle_is_run_to_its_end(
    surroundings: Surroundings, call: str
) -> None:
    with surroundings.platform() as platform:
        pipeline = three_topics(platform)
        must_be_killed(__file__, asdict(surroundings.database), str(surroundings.settings.root), pipeline.name, call)
        assert go_on(platform, pipeline) == []
