"""Whoever rewinds a stream, or takes that back, may die at any call: gone on with, it is rewound, or as it was."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.adapters.kafka.groups import KafkaGroups
from millrace.adapters.kafka.log import KafkaLog
from millrace.domain.plans.plan import PlanStatus
from millrace.embedded.stack import Stack
from millrace.errors import RefusedError, StalePlanError
from millrace.settings import PostgresSettings, open_settings
from millrace.usecases.plans import running
from millrace.usecases.rewind import run as rewinds
from millrace.usecases.streams import supervise as streams
from support.checks.tiers import calls_of_today
from support.crash_walks import crash_at_every_call, strike_at_every_call
from support.rewind.streams import ACTOR, Apps, RewoundStream, Surroundings
from support.stack import embedded as runs
from support.stack.control_databases import Databases
from support.stack.faults import Life, Moment, Outage, crash_at_call, unexpected
from support.stack.killed_child import alarmed, die, must_be_killed

CALLS = (
    "plans.running",
    "plans.begin",
    "plans.begin_step",
    "plans.end_step",
    "plans.finish",
    "streams.set_desired",
    "runner.stop",
    "runner.submit",
    "groups.members",
    "groups.move",
    "kafka.committed",
    "kafka.bounds",
    "sink.record_of_work",
    "sink.count_in",
)
OF_ABORT = ("plans.begin_step", "kafka.committed", "groups.move", "streams.set_desired", "plans.finish")
MOMENTS = [pytest.param(moment, marks=pytest.mark.full) for moment in Moment]
BACK = 2


@pytest.fixture(scope="module")
def given(
    idle_stack: Stack, control_databases: Databases, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Surroundings]:
    runs.start(idle_stack, "kafka", "postgres")
    made = Surroundings(tmp_path_factory.mktemp("rewinds"), idle_stack, control_databases.create_upgraded())
    yield made
    made.close()


@pytest.fixture(autouse=True)
def prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is waited for here is there at once."""
    monkeypatch.setattr(rewinds, "PROGRESS_EVERY", rewinds.LOOK_EVERY / 10)


def test_a_rewind_that_nobody_disturbs_reads_its_range_again_and_nothing_else(given: Surroundings) -> None:
    stream = given.new()
    plan = stream.plan(BACK)
    stream.damage()
    assert stream.run(plan) is None
    assert stream.status(plan) is PlanStatus.DONE
    assert stream.wrong(rewound=BACK) == []
    assert isinstance(stream.run(plan), StalePlanError)
    assert isinstance(stream.abort(plan), StalePlanError)
    assert stream.wrong(rewound=BACK) == []


def rewind(stream: RewoundStream, life: Life) -> list[str]:
    """A run that is struck, then one that is not: what was wrong."""
    plan = stream.plan(BACK)
    stream.damage()
    wrong = unexpected(life, stream.run(plan, life))
    stream.end(plan, stream.run)
    return wrong + stream.wrong(rewound=BACK) + _ended_as(stream.status(plan), PlanStatus.DONE)


def take_back(stream: RewoundStream, life: Life) -> list[str]:
    """A run that dies when it has moved the group, taken back by who is struck, then by who is not."""
    plan = stream.plan(BACK)
    stream.damage()
    stream.run(plan, crash_at_call("groups.move", Moment.AFTER))
    stream.until_free(plan)  # who takes it back before is refused, and is struck at no call
    wrong = unexpected(life, stream.abort(plan, life))
    stream.end(plan, stream.abort)
    return wrong + stream.wrong(rewound=0) + _ended_as(stream.status(plan), PlanStatus.ABORTED)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_rewind_whose_runner_dies_at_any_call_is_run_to_its_end(given: Surroundings, moment: Moment) -> None:
    crash_at_every_call(moment, lambda life: rewind(given.new(), life)).must_be_well(*CALLS)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_rewind_that_is_taken_back_by_who_dies_at_any_call_is_as_it_was(given: Surroundings, moment: Moment) -> None:
    crash_at_every_call(moment, lambda life: take_back(given.new(), life)).must_be_well(*OF_ABORT, "runner.submit")


@pytest.mark.full
@pytest.mark.parametrize("act", ["run", "abort"])
def test_a_server_that_is_away_from_any_call_on_is_told_and_the_plan_gone_on_with(
    given: Surroundings, act: str
) -> None:
    once = rewind if act == "run" else take_back
    tried = strike_at_every_call(Outage, lambda life: once(given.new(), life), f"{act}, a server away from")
    tried.must_be_well()
    assert {step.call.partition(".")[0] for step in tried.steps} >= {"plans", "streams", "log", "groups", "kafka"}


@pytest.mark.parametrize(
    "call",
    [
        "groups.move",
        *(pytest.param(each, marks=pytest.mark.full) for each in ("plans.end_step", "sink.record_of_work")),
        "sink.count_in",
    ],
)
def test_a_server_that_is_away_for_the_rest_of_a_run_is_told_and_the_plan_gone_on_with(
    given: Surroundings, call: str
) -> None:
    plain = Life()
    rewind(given.new(), plain)
    life = Outage(plain.calls.index(call) + 1)
    assert rewind(given.new(), life) == []
    assert life.struck


def test_a_rewind_whose_runner_dies_at_one_call_of_each_kind_is_run_to_its_end(given: Surroundings) -> None:
    _at_each(given, CALLS, rewind)


def test_a_rewind_that_is_taken_back_by_who_dies_at_one_call_of_each_kind_is_as_it_was(given: Surroundings) -> None:
    _at_each(given, OF_ABORT, take_back)


IN_CHILDREN = (
    ("run", "plans.begin_step"),
    ("run", "groups.move"),
    pytest.param("run", "runner.submit", marks=pytest.mark.full),  # its app is killed with it: a quarter of a minute
    pytest.param("abort", "groups.move", marks=pytest.mark.full),
)


def live_in_child(act: str, call: str, plan_id: str) -> None:
    """Run a plan, or take it back, in a process that is gone right after a call, and its apps with it."""
    alarmed()
    told = json.load(sys.stdin)
    nobody: Any = None  # the stack and the owner of the database are only needed to make a stream
    kafka = open_settings(Path(told["root"])).kafka()
    given: Any = SimpleNamespace(
        project=SimpleNamespace(topic=told["topic"]),
        database=PostgresSettings(**told["database"]),
        groups=KafkaGroups(kafka),
        log=KafkaLog(kafka, client_id="test"),
        ends={int(number): end for number, end in told["ends"].items()},
    )
    stream = RewoundStream(Path(told["root"]), nobody, nobody, told["name"], 2, of=given)
    life = crash_at_call(call, Moment.AFTER, dying=die)
    plan: Any = SimpleNamespace(id=plan_id)
    print(f"it was not struck and ended with {getattr(stream, act)(plan, life)}")


@pytest.mark.parametrize(("act", "call"), IN_CHILDREN)
def test_what_a_host_leaves_that_is_gone_in_the_middle_is_gone_on_with(
    given: Surroundings, act: str, call: str
) -> None:
    stream = given.new()
    plan = stream.plan(BACK)
    stream.damage()
    if act == "abort":
        stream.run(plan, crash_at_call("groups.move", Moment.AFTER))
    stream.apps = Apps(stream)  # the host's apps are gone with it
    told = {
        "root": str(stream.root),
        "name": stream.name,
        "topic": stream.topic,
        "database": asdict(given.database),
        "ends": given.ends,
    }
    must_be_killed(__file__, told, act, call, plan.id)
    stream.end(plan, stream.run if act == "run" else stream.abort)
    assert stream.status(plan) is (PlanStatus.DONE if act == "run" else PlanStatus.ABORTED)
    assert stream.wrong(rewound=BACK if act == "run" else 0) == []


def test_a_runner_without_patience_leaves_the_reading_to_the_next(given: Surroundings) -> None:
    stream = given.new()
    plan = stream.plan(BACK)
    stream.damage()
    held = stream.apps.hold()
    with stream.platform_of() as platform:
        for _ in range(3):
            stored = running.run(platform, plan.id, actor=ACTOR, patience=timedelta())
            assert (stored.status, stored.steps[-1].name) == (PlanStatus.RUNNING, rewinds.Step.PROGRESS)
        assert [step.name for step in stored.steps] == [step.value for step in rewinds.Step][: len(stored.steps)]
        held()
        assert running.run(platform, plan.id, actor=ACTOR, patience=timedelta()).status is PlanStatus.DONE
    assert stream.wrong(rewound=BACK) == []


def _at_each(given: Surroundings, calls: tuple[str, ...], once: Callable[[RewoundStream, Life], list[str]]) -> None:
    """The first tier tries a third of them, `--all` each, and also each call of every kind."""
    wrong = {}
    for call in (call for number, call in enumerate(calls, 1) if calls_of_today(number)):
        life = crash_at_call(call, Moment.AFTER)
        if found := once(given.new(), life):
            wrong[call] = found
        assert life.struck, f"nobody calls {call}"
    assert not wrong


def _ended_as(status: PlanStatus, wanted: PlanStatus) -> list[str]:
    return [] if status is wanted else [f"the plan is {status.value}"]


def test_what_has_begun_to_read_again_is_not_taken_back(given: Surroundings) -> None:
    stream = given.new()
    plan = stream.plan(BACK)
    stream.damage()
    stream.run(plan, crash_at_call("runner.submit", Moment.AFTER))
    stream.until_free(plan)
    refused = stream.abort(plan)
    assert isinstance(refused, RefusedError)
    assert "already reads on the next timeline" in refused.what
    stream.end(plan, stream.run)
    assert stream.wrong(rewound=BACK) == []


def test_a_second_rewind_waits_for_the_first(given: Surroundings) -> None:
    stream = given.new()
    first, second = stream.plan(BACK), stream.plan(BACK + 1)
    stream.damage()
    stream.run(first, crash_at_call("groups.move", Moment.AFTER))
    refused = stream.run(second)
    assert isinstance(refused, RefusedError)
    assert first.id in refused.what
    stream.end(first, stream.run)
    assert isinstance(stream.run(second), StalePlanError), "a plan of another timeline was run"
    assert stream.wrong(rewound=BACK) == []


def test_a_group_that_somebody_resets_in_the_middle_is_noticed_and_put_back(given: Surroundings) -> None:
    stream = given.new()
    plan = stream.plan(BACK)
    stream.damage()
    stream.run(plan, crash_at_call("groups.move", Moment.AFTER))
    stream.until_free(plan)
    [partition, *_] = given.log.partitions([stream.topic])
    given.groups.move(stream.group, {partition: (1, "")})
    refused = stream.run(plan)
    assert isinstance(refused, StalePlanError), refused
    assert "was moved to 1 by someone else" in refused.what
    assert stream.status(plan) is PlanStatus.STALE


def test_a_stream_that_somebody_starts_in_the_middle_ends_as_planned(given: Surroundings) -> None:
    stream = given.new()
    plan = stream.plan(BACK)
    stream.damage()
    stream.run(plan, crash_at_call("groups.move", Moment.AFTER))
    with stream.platform_of() as platform:
        streams.start(platform, stream.stream, ACTOR, "in the middle")
    stream.end(plan, stream.run)
    assert stream.status(plan) is PlanStatus.DONE
    assert stream.wrong(rewound=BACK) == []
