"""What may not be rewound is refused when it is planned; what changed since makes a plan stale, and nothing moves."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import NewPartitions

from millrace.domain.plans.plan import PlanStatus
from millrace.domain.rewind.time_travel import EARLIEST, Policy
from millrace.embedded.stack import Stack
from millrace.errors import MillraceError, RefusedError, StalePlanError, UsageError
from millrace.usecases.plans import listing, running
from millrace.usecases.rewind import plan as rewind_plan
from support.rewind.streams import ACTOR, RECORDS, RewoundStream, Surroundings
from support.stack import embedded as runs
from support.stack.control_databases import Databases
from support.streams.project import committed
from support.waiting import Deadline, eventually, result_of


@pytest.fixture
def stream(
    idle_stack: Stack, control_databases: Databases, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RewoundStream]:
    """One that has done all there is; its topic is nobody else's."""
    runs.start(idle_stack, "kafka", "postgres")
    given = Surroundings(tmp_path_factory.mktemp("rewinds"), idle_stack, control_databases.create_upgraded())
    yield given.new()
    given.close()


def refusal(stream: RewoundStream, target: Any, *, policy: Policy = Policy.FAIL, name: str = "") -> MillraceError:
    """What is said to who asks for this."""
    with stream.platform_of() as platform, pytest.raises((RefusedError, UsageError)) as caught:
        rewind_plan.make_plan(platform, name or stream.stream, target, policy=policy, by=ACTOR, reason="wrong")
    assert [stored for stored in _stored(stream) if stored.status is PlanStatus.OPEN] == []
    return caught.value


def _stored(stream: RewoundStream) -> list[Any]:
    with stream.platform_of() as platform:
        return list(listing.list_plans(platform))


def test_what_is_larger_than_the_environment_lets_one_person_do_is_refused(
    stream: RewoundStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = stream.root / "include" / "environments"
    folder.mkdir(exist_ok=True)
    monkeypatch.setenv("MILLRACE_ENVIRONMENT", "prod")
    for bounds, told in (
        ("{records: 3}", f"{RECORDS} records would be read again, more than 3"),
        ("{longest: 1m}", "more than 0:01:00"),
        ("{}", ""),
    ):
        (folder / "prod.yaml").write_text(f"all_topics: {{replication: 1}}\nunapproved_rewind: {bounds}\n")
        if told:
            target = datetime.now(UTC) - timedelta(minutes=2) if "longest" in bounds else EARLIEST
            error = refusal(stream, target)
            assert told in error.what
            assert "in environment `prod` this needs the approval of a second person" in error.what
            assert error.exit_code == 4
        else:
            assert stream.plan().target == stream.stream


def test_what_cannot_be_rewound_is_refused_by_name(stream: RewoundStream) -> None:
    past_end = {(stream.topic, number): end + 1 for number, end in stream.of.ends.items()}
    assert "has no stream other" in str(refusal(stream, EARLIEST, name=f"{stream.name}.other"))
    assert "nothing would be read again" in refusal(stream, past_end).what
    stream.of.project.produce(50, first=RECORDS)
    assert "skip" in refusal(stream, past_end).what
    stream.query("DELETE FROM millrace.progress WHERE stream = %s", stream.stream)
    assert "has never run" in refusal(stream, EARLIEST).what


def test_a_log_that_begins_after_the_time_needs_a_policy(stream: RewoundStream) -> None:
    first = {number: end - 1 for number, end in stream.of.ends.items()}
    _delete_before(stream, first)
    error = refusal(stream, datetime.now(UTC) - timedelta(days=2))
    assert "begins" in error.what
    with stream.platform_of() as platform:
        before = datetime.now(UTC) - timedelta(days=2)
        plan = rewind_plan.make_plan(
            platform, stream.stream, before, policy=Policy.EARLIEST, by=ACTOR, reason="as far as it goes"
        )
    assert {int(dict(change.after)["offset"]) for change in plan.changes} == set(first.values())


def grow(stream: RewoundStream) -> None:
    asked = stream.of.project.admin.create_partitions([NewPartitions(stream.topic, 3)])
    result_of(asked[stream.topic], what="a third partition")
    eventually(
        lambda: len(stream.of.log.partitions([stream.topic])) == 3, within=Deadline.METADATA, what="three partitions"
    )


def recreate(stream: RewoundStream) -> None:
    project, former = stream.of.project, stream.of.topic_id
    result_of(project.admin.delete_topics([stream.topic])[stream.topic], what="the end of the topic")
    eventually(
        lambda: stream.topic not in project.admin.list_topics(timeout=10).topics,
        within=Deadline.METADATA,
        what="the topic to be gone",
    )
    project.create_topic()
    project.produce(RECORDS)
    assert project.topic_id() != former


def expire(stream: RewoundStream) -> None:
    _delete_before(stream, {number: end - 1 for number, end in stream.of.ends.items()})


def reset(stream: RewoundStream) -> None:
    [partition, *_] = stream.of.log.partitions([stream.topic])
    stream.of.groups.move(stream.group, {partition: (1, "")})


def _delete_before(stream: RewoundStream, first: dict[int, int]) -> None:
    asked = [ClientTopicPartition(stream.topic, number, offset) for number, offset in first.items()]
    for future in stream.of.project.admin.delete_records(asked).values():
        result_of(future, what="the records to expire")


@pytest.mark.parametrize("change", [grow, recreate, expire, reset], ids=lambda change: change.__name__)
def test_a_plan_is_stale_once_what_it_saw_is_no_longer_so(stream: RewoundStream, change: Any) -> None:
    plan = stream.plan(back=3)
    change(stream)
    group = committed(stream) if change is not recreate else None
    rows = stream.query(f"SELECT _partition, _offset, _timeline FROM {stream.name}.rows ORDER BY 1, 2")
    refused = stream.run(plan)
    assert isinstance(refused, StalePlanError), refused
    assert stream.status(plan) is PlanStatus.STALE
    assert stream.wanted() == "running"
    assert stream.query(f"SELECT _partition, _offset, _timeline FROM {stream.name}.rows ORDER BY 1, 2") == rows
    if group is not None:
        assert committed(stream) == group


def test_an_expired_plan_is_not_run(stream: RewoundStream) -> None:
    plan = stream.plan()
    with stream.platform_of() as platform, pytest.raises(StalePlanError, match="expired"):
        running.run(platform, plan.id, actor=ACTOR, now=plan.expires + timedelta(seconds=1))
    stream.damage()
    assert stream.wrong(rewound=0) == []


def test_a_stream_that_upserts_is_rewound_and_its_rows_are_not_looked_for_by_source(
    idle_stack: Stack, control_databases: Databases, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Also by a release that gives fewer rows: what it gives no more stays, and is no fault of the plan's."""
    runs.start(idle_stack, "kafka", "postgres")
    given = Surroundings(tmp_path_factory.mktemp("rewinds"), idle_stack, control_databases.create_upgraded())
    stream = given.new(mode="mode: upsert, key: [id]")
    planned = stream.plan()
    about = dict(planned.about)
    assert "the last row of each key" in str(about["rows"])
    assert about["quarantined"] == "0"
    stream.gives_one_of = 2
    with stream.platform_of() as platform:
        done = running.run(platform, planned.id, actor=ACTOR, reason="damaged")
    assert done.status is PlanStatus.DONE
    asked = f"SELECT _timeline, count(*) FROM {stream.name}.rows GROUP BY 1 ORDER BY 1"
    counted = dict(stream.query(asked))
    assert set(counted) == {1, 2}
    given.close()
