"""Plans of topics from declaration to broker, on the real Kafka and the real control database."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from millrace.domain.declaration.pipeline import Cleanup, Pipeline, Retention, Topic
from millrace.domain.plans.plan import ChangeResult, Outcome, PlanStatus
from millrace.domain.streams.control import Action
from millrace.domain.topics.changes import NewTopic
from millrace.embedded.stack import Stack
from millrace.errors import IncompleteError, MillraceError, RefusedError, StalePlanError, UnreachableError
from millrace.ports.platform import Platform
from millrace.usecases.plans import running
from millrace.usecases.topics import plan as topics
from millrace.wiring.kafka import KafkaAdapters
from millrace.wiring.platform import Adapters, open_platform
from support.fakes.topics import FakeTopicAdmin
from support.stack.embedded import start
from support.waiting import Deadline, at_once, eventually, exit_code_of, happened, in_background, line_of, result_of


@pytest.fixture(scope="module")
def stack(idle_stack: Stack) -> Stack:
    return start(idle_stack, "kafka", "postgres")


@pytest.fixture(scope="module")
def platform(stack: Stack) -> Platform:
    return open_platform(stack.settings())


@pytest.fixture
def pipeline() -> Pipeline:
    """A pipeline of two topics under a name of its own."""
    name = f"plan_{uuid.uuid4().hex[:8]}"
    declared = tuple(Topic(f"{name}.{topic}", name, partitions=2, replication=1) for topic in ("a", "b"))
    return Pipeline(name, "owner", "millrace_kafka", declared, ())


@pytest.fixture
def faulty(stack: Stack, pipeline: Pipeline) -> Iterator[tuple[Platform, FakeTopicAdmin]]:
    """The real control database beside a cluster whose faults a test chooses."""
    admin = FakeTopicAdmin()
    settings = stack.settings()
    opened = Adapters(settings, kafka=KafkaAdapters(settings, {pipeline.kafka: admin}))
    yield opened, admin
    opened.control.close()


def changed(pipeline: Pipeline, **fields: object) -> Pipeline:
    """The pipeline with its first topic declared differently."""
    first, *rest = pipeline.topics
    return replace(pipeline, topics=(replace(first, **fields), *rest))  # type: ignore[arg-type]


def provisioned(platform: Platform, pipeline: Pipeline) -> topics.ProvisionReport:
    """Provision, and wait until the broker shows it: it answers a little before it does."""
    report = topics.provision(platform, pipeline, "test:me", "set up")
    wait_until_shown(platform, pipeline)
    return report


def wait_until_shown(platform: Platform, pipeline: Pipeline) -> None:
    eventually(
        lambda: not topics.propose(platform, pipeline, by="test:me").changes,
        within=Deadline.METADATA,
        what="the topics as declared",
    )


def wait_for_partitions(platform: Platform, name: str, partitions: int) -> None:
    admin = platform.kafka.topics()
    eventually(
        lambda: admin.observe([name])[name].partitions == partitions,
        within=Deadline.METADATA,
        what=f"{partitions} partitions",
    )


def history(platform: Platform, pipeline: Pipeline) -> tuple[Action, ...]:
    return platform.control.log.list(subject=pipeline.name)[::-1]


def test_a_plan_makes_topics_once_and_then_nothing_is_left_to_do(platform: Platform, pipeline: Pipeline) -> None:
    plan = topics.make_plan(platform, pipeline, by="cli:ann")
    assert topics.make_plan(platform, pipeline, by="cli:bob") == plan
    done = running.run(platform, plan.id, actor="cli:ann", reason="new pipeline")
    assert done.status is PlanStatus.DONE
    assert {result.outcome for result in done.results} == {Outcome.DONE}
    eventually(
        lambda: not topics.make_plan(platform, pipeline, by="cli:ann").changes,
        within=Deadline.METADATA,
        what="the new topics",
    )
    with pytest.raises(StalePlanError, match=r"ended at .* done"):
        running.run(platform, plan.id, actor="cli:ann")
    entries = history(platform, pipeline)
    assert [(entry.action, entry.actor, entry.outcome) for entry in entries] == [
        ("topic.create", "cli:ann", "done")
    ] * 2
    assert entries[0].reason == f"new pipeline (plan {plan.id})"
    assert (entries[0].before, entries[0].after["partitions"]) == ({"exists": "no"}, "2")


def test_provisioning_does_what_is_safe_and_names_what_waits_for_a_person(
    platform: Platform, pipeline: Pipeline
) -> None:
    provisioned(platform, pipeline)
    longer = changed(pipeline, retention=Retention(time=timedelta(days=30)), partitions=5, replication=3)
    with pytest.raises(IncompleteError) as caught:
        topics.provision(platform, longer, "dag:x.topics", "daily")
    with pytest.raises(IncompleteError):  # the next day finds the same, and stores no second plan
        topics.provision(platform, longer, "dag:x.topics", "daily")
    assert "keys move" in str(caught.value)
    assert "does not move replicas" in str(caught.value)
    (waiting,) = [
        stored.plan
        for stored in platform.control.plans.list(status=PlanStatus.OPEN, limit=1000)
        if stored.plan.target == pipeline.name
    ]
    assert waiting.id in caught.value.next_step
    admin, name = platform.kafka.topics(), pipeline.topics[0].name
    wanted = str(30 * 86_400_000)
    eventually(
        lambda: admin.observe([name])[name].config.get("retention.ms") == wanted,
        within=Deadline.METADATA,
        what="the new retention",
    )
    assert admin.observe([name])[name].partitions == 2
    assert running.run(platform, waiting.id, actor="cli:ann").status is PlanStatus.DONE
    wait_for_partitions(platform, name, 5)


def test_a_person_may_run_what_the_machine_may_not(platform: Platform, pipeline: Pipeline) -> None:
    provisioned(platform, pipeline)
    tighter = changed(pipeline, cleanup=Cleanup.COMPACT_DELETE, retention=Retention(time=timedelta(hours=1)))
    plan = topics.make_plan(platform, tighter, by="cli:ann")
    assert plan.changes
    assert all(change.unsafe for change in plan.changes if "retention.ms" in str(change.after))
    running.run(platform, plan.id, actor="cli:ann", reason="agreed")
    wait_until_shown(platform, tighter)


def test_a_plan_is_stale_once_what_it_saw_has_changed(platform: Platform, pipeline: Pipeline) -> None:
    provisioned(platform, pipeline)
    plan = topics.make_plan(platform, changed(pipeline, partitions=6), by="cli:ann")
    admin, name = platform.kafka.topics(), pipeline.topics[0].name
    assert admin.add_partitions({name: 3}) == {name: None}
    wait_for_partitions(platform, name, 3)
    with pytest.raises(StalePlanError, match="the observed state has changed") as caught:
        running.run(platform, plan.id, actor="cli:ann")
    assert f"topics plan {pipeline.name}" in caught.value.next_step
    assert platform.control.plans.get(plan.id).status is PlanStatus.STALE
    assert admin.observe([name])[name].partitions == 3


def test_what_somebody_tunes_elsewhere_makes_no_plan_stale(platform: Platform, pipeline: Pipeline) -> None:
    provisioned(platform, pipeline)
    plan = topics.make_plan(platform, changed(pipeline, partitions=6), by="cli:ann")
    admin, name = platform.kafka.topics(), pipeline.topics[0].name
    admin.set_config({name: {"max.message.bytes": "2000000"}})
    eventually(
        lambda: admin.observe([name])[name].config.get("max.message.bytes") == "2000000",
        within=Deadline.METADATA,
        what="what was tuned to show",
    )
    assert running.run(platform, plan.id, actor="cli:ann").status is PlanStatus.DONE
    assert admin.observe([name])[name].config["max.message.bytes"] == "2000000"


def test_an_expired_plan_is_refused(platform: Platform, pipeline: Pipeline) -> None:
    plan = topics.make_plan(platform, pipeline, by="cli:ann", now=datetime.now(UTC) - timedelta(days=2))
    with pytest.raises(StalePlanError, match="expired"):
        running.run(platform, plan.id, actor="cli:ann")


def test_a_topic_that_was_recreated_makes_a_plan_stale(
    faulty: tuple[Platform, FakeTopicAdmin], pipeline: Pipeline
) -> None:
    platform, admin = faulty
    topics.provision(platform, pipeline, "test:me", "set up")
    plan = topics.make_plan(platform, changed(pipeline, partitions=6), by="cli:ann")
    admin.recreate(pipeline.topics[0].name)
    with pytest.raises(StalePlanError, match="the observed state has changed"):
        running.run(platform, plan.id, actor="cli:ann")


def test_a_plan_for_another_cluster_is_refused(faulty: tuple[Platform, FakeTopicAdmin], pipeline: Pipeline) -> None:
    platform, admin = faulty
    plan = topics.make_plan(platform, pipeline, by="cli:ann")
    admin.cluster = "cluster-2"
    with pytest.raises(StalePlanError, match="leads to cluster-2"):
        running.run(platform, plan.id, actor="cli:ann")
    assert admin.topics == {}


def test_one_topic_that_fails_stops_no_other_and_is_logged(
    faulty: tuple[Platform, FakeTopicAdmin], pipeline: Pipeline
) -> None:
    platform, admin = faulty
    bad, good = (topic.name for topic in pipeline.topics)
    admin.failing[bad] = "POLICY_VIOLATION: no"
    with pytest.raises(IncompleteError, match="POLICY_VIOLATION"):
        topics.provision(platform, pipeline, "test:me", "set up")
    assert set(admin.topics) == {good}
    outcomes = {entry.subject: entry.outcome for entry in history(platform, pipeline)}
    assert outcomes == {bad: "failed: POLICY_VIOLATION: no", good: "done"}
    admin.failing.clear()
    report = topics.provision(platform, pipeline, "test:me", "again")
    assert report.results == (ChangeResult("topic.create", bad, Outcome.DONE),)


def test_a_topic_that_may_not_be_described_fails_alone_and_is_never_created(
    faulty: tuple[Platform, FakeTopicAdmin], pipeline: Pipeline
) -> None:
    platform, admin = faulty
    hidden, open_ = (topic.name for topic in pipeline.topics)
    admin.unreadable[hidden] = "TOPIC_AUTHORIZATION_FAILED"
    with pytest.raises(IncompleteError, match="TOPIC_AUTHORIZATION_FAILED"):
        topics.provision(platform, pipeline, "test:me", "set up")
    assert set(admin.topics) == {open_}


def test_a_plan_refuses_a_topic_that_kafka_cannot_hold_beside_an_undeclared_one(
    faulty: tuple[Platform, FakeTopicAdmin], pipeline: Pipeline
) -> None:
    platform, admin = faulty
    first, second = (topic.name for topic in pipeline.topics)
    alike = first.replace(".", "_", 1)
    assert admin.create([NewTopic(alike, 1, 1, {})]) == {alike: None}
    plan = topics.propose(platform, pipeline, by="cli:ann")
    assert [change.subject for change in plan.changes] == [second]
    assert [refusal.subject for refusal in plan.refusals] == [first]
    assert alike in plan.refusals[0].what


@pytest.mark.parametrize("lost", ["create", "set_config"])
def test_a_run_whose_answer_was_lost_is_run_again_without_doubling(
    faulty: tuple[Platform, FakeTopicAdmin], pipeline: Pipeline, lost: str
) -> None:
    platform, admin = faulty
    topics.provision(platform, replace(pipeline, topics=pipeline.topics[:1]), "test:me", "set up")
    both = changed(pipeline, config=(("segment.ms", "5000"),))  # changes the first topic, creates the second
    plan = topics.make_plan(platform, both, by="cli:ann")
    admin.dies_at = lost
    with pytest.raises(UnreachableError):
        running.run(platform, plan.id, actor="cli:ann")
    assert platform.control.plans.get(plan.id).status is PlanStatus.RUNNING
    admin.dies_at = None
    again = running.run(platform, plan.id, actor="cli:ann")
    assert again.status is PlanStatus.DONE
    assert Outcome.FOUND_DONE in {result.outcome for result in again.results}
    assert not topics.propose(platform, both, by="x").changes
    with pytest.raises(StalePlanError):
        running.run(platform, plan.id, actor="cli:ann")


def test_a_half_run_plan_is_not_finished_over_somebody_elses_change(
    faulty: tuple[Platform, FakeTopicAdmin], pipeline: Pipeline
) -> None:
    platform, admin = faulty
    topics.provision(platform, replace(pipeline, topics=pipeline.topics[:1]), "test:me", "set up")
    plan = topics.make_plan(platform, changed(pipeline, partitions=4), by="cli:ann")
    admin.dies_at = "create"
    with pytest.raises(UnreachableError):
        running.run(platform, plan.id, actor="cli:ann")
    admin.dies_at = None
    admin.add_partitions({pipeline.topics[0].name: 3})
    with pytest.raises(StalePlanError, match="the observed state has changed"):
        running.run(platform, plan.id, actor="cli:ann")
    assert admin.topics[pipeline.topics[0].name].partitions == 3


def test_of_two_runners_at_once_one_runs_the_plan(faulty: tuple[Platform, FakeTopicAdmin], pipeline: Pipeline) -> None:
    platform, admin = faulty
    plan = topics.make_plan(platform, pipeline, by="cli:ann")
    inside, go_on = threading.Event(), threading.Event()
    create = admin.create

    def slow(wanted):  # type: ignore[no-untyped-def]
        inside.set()
        happened(go_on, what="the refusal of the second runner")
        return create(wanted)

    admin.create = slow  # type: ignore[method-assign]
    first = in_background(lambda: running.run(platform, plan.id, actor="cli:ann"))
    try:
        happened(inside, what="the first runner to be at work")
        with pytest.raises(RefusedError, match="this plan is running now"):
            running.run(platform, plan.id, actor="cli:bob")
    finally:
        go_on.set()
    done = result_of(first, within=Deadline.COMMAND, what="the end of the first runner")
    assert done.status is PlanStatus.DONE
    assert admin.calls.count("create") == 1


def test_five_runners_of_one_plan_make_each_topic_once(platform: Platform, pipeline: Pipeline) -> None:
    plan = topics.make_plan(platform, pipeline, by="cli:ann")

    def attempt() -> str:
        try:
            return running.run(platform, plan.id, actor="cli:ann").status.value
        except MillraceError as error:
            return type(error).__name__

    answers = at_once([attempt] * 5, within=Deadline.COMMAND, what="the ends of five runners")
    assert answers.count("done") == 1
    assert set(answers) <= {"done", "BusyPlanError", "StalePlanError"}
    assert len(history(platform, pipeline)) == 2


HOLDER = """
import sys
from pathlib import Path
from millrace.settings import open_settings
from millrace.wiring import open_platform
store = open_platform(open_settings(Path(sys.argv[1]))).control.plans
with store.running(sys.argv[2]) as mine:
    assert mine
    store.begin(sys.argv[2])
    print("running", flush=True)
    sys.stdin.read()
"""


def test_a_plan_whose_runner_was_killed_can_be_run_at_once(
    platform: Platform, stack: Stack, pipeline: Pipeline
) -> None:
    plan = topics.make_plan(platform, pipeline, by="cli:ann")
    package = str(Path(__file__).resolve().parents[3] / "include")
    runner = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(stack.root), plan.id],
        env={**os.environ, "PYTHONPATH": package},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert line_of(runner.stdout, within=Deadline.COMMAND, what="the runner to be at work") == "running\n"
        with pytest.raises(RefusedError, match="this plan is running now"):
            running.run(platform, plan.id, actor="cli:bob")
    finally:
        runner.kill()
        exit_code_of(runner, within=Deadline.KILLED, what="the runner's death")
    again = eventually(
        lambda: running.run(platform, plan.id, actor="cli:bob"),
        within=Deadline.KILLED,
        what="the end of the dead runner's session",
        ignoring=(RefusedError,),
    )
    assert again.status is PlanStatus.DONE


def test_a_topic_somebody_else_made_the_same_meanwhile_is_found_done(
    faulty: tuple[Platform, FakeTopicAdmin], pipeline: Pipeline
) -> None:
    platform, admin = faulty
    create = admin.create
    admin.create = lambda wanted: [create(wanted), create(wanted)][1]  # type: ignore[method-assign]
    report = topics.provision(platform, pipeline, "test:me", "set up")
    assert {result.outcome for result in report.results} == {Outcome.FOUND_DONE}


def test_provisioning_looks_again_when_the_cluster_moves_under_it(
    faulty: tuple[Platform, FakeTopicAdmin], pipeline: Pipeline
) -> None:
    platform, admin = faulty
    observe = admin.observe

    def moving(names):  # type: ignore[no-untyped-def]
        seen = observe(names)
        if len(admin.calls) == 1:
            admin.create([NewTopic(pipeline.topics[0].name, 2, 1, {})])
        return seen

    admin.observe = moving  # type: ignore[method-assign]
    report = topics.provision(platform, pipeline, "test:me", "set up")
    assert [result.subject for result in report.results] == [pipeline.topics[1].name]
