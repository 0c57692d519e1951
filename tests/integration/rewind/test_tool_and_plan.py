"""A stream rewound by Kafka's own tool or by a plan: what is read again, what is left alone, and what is no rewind.

The stream that a plan rewinds survives a kill of its driver before: the first tier's one kill of a loaded stream.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Collection, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import ConsumerGroupState

from millrace.domain.streams.supervision import ExitReason, StreamState
from millrace.usecases.streams import supervise as streams
from support.drills.crashes import ACTOR, Drill
from support.drills.points import AFTER_SINK, JVM
from support.drills.rounds import deal
from support.drills.sampler import Sampler
from support.groups.readers import states_of
from support.stack import control_databases
from support.stack.embedded import start
from support.streams.project import TESTS, StreamProject, group_tool
from support.waiting import Deadline, eventually, result_of

if TYPE_CHECKING:
    from millrace.embedded.stack import Stack

EARLIER = datetime(2026, 1, 1, tzinfo=UTC)
TARGET = EARLIER + timedelta(hours=1)
LATER = EARLIER + timedelta(hours=2)
DAMAGED = 1_000
EACH = 4_000
BATCHES = 20
"""Enough that a stream still reads when its driver is killed, and while the sampler looks afterwards."""


@pytest.fixture
def stream(idle_stack: Stack, tmp_path: Path) -> Iterator[Drill]:
    start(idle_stack, "kafka", "postgres")
    databases = control_databases.on(idle_stack)
    project = StreamProject(tmp_path / "project", idle_stack, databases.create(), batch=2_500).make()
    project.create_topic()
    stream = Drill(project)
    yield stream
    stream.close()
    project.drop()


def milliseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


def reset(project: StreamProject, *where: str) -> dict[int, int]:
    """Reset the group with the stock tool; the new offsets it prints."""
    done = group_tool(project, "--reset-offsets", "--topic", project.topic, *where, "--execute")
    lines = [line.split() for line in done.stdout.splitlines() if project.topic in line]
    assert lines, done.stdout + done.stderr
    return {int(line[2]): int(line[3]) for line in lines}


def wait_until_empty(project: StreamProject) -> None:
    """A static member leaves only when its session times out."""
    empty = {project.group: ConsumerGroupState.EMPTY}
    eventually(
        lambda: states_of(project.admin, [project.group]) == empty,
        within=Deadline.SESSION,
        what="the group to be empty",
    )


def topic_names(project: StreamProject) -> Collection[str]:
    """Every topic of the broker."""
    return project.admin.list_topics(timeout=Deadline.METADATA.seconds).topics


def stop(stream: Drill) -> None:
    stream.stop()
    wait_until_empty(stream.project)


def rows(project: StreamProject, where: str) -> list[tuple[Any, ...]]:
    return project.query(
        f"SELECT _partition, _offset, _timeline, xmin::text, id, amount FROM {project.name}.rows WHERE {where} "
        "ORDER BY 1, 2"
    )


def past(ends: dict[int, int]) -> str:
    """The condition for offsets at or past these, a partition each."""
    return "(" + " OR ".join(f"(_partition = {number} AND _offset >= {end})" for number, end in ends.items()) + ")"


def ended(stream: Drill, epoch: int) -> int | None:
    stream.eventually(lambda: stream.exit_code(epoch) is not None, what=f"the end of epoch {epoch}")
    return stream.exit_code(epoch)


def timelines(stream: Drill) -> list[tuple[Any, ...]]:
    """The record of work of every timeline."""
    return stream.project.query(
        "SELECT timeline, partition, first_offset, next_offset FROM millrace.progress WHERE stream = %s ORDER BY 1, 2",
        stream.project.stream,
    )


@pytest.mark.full
def test_a_reset_by_the_stock_tool_reads_exactly_its_range_again(stream: Drill) -> None:
    project = stream.project
    project.produce(EACH, timestamp=milliseconds(EARLIER))
    target = project.ends()
    project.produce(EACH, first=EACH, timestamp=milliseconds(LATER))
    ends = project.ends()
    stream.start()
    stream.eventually(stream.all_done, what="all records")
    refused = group_tool(project, "--reset-offsets", "--topic", project.topic, "--to-earliest", "--execute")
    assert "the current state is Stable" in refused.stdout + refused.stderr
    stop(stream)

    untouched = rows(project, f"NOT {past(target)}")
    good = rows(project, past(target))
    some = (
        f"(_partition, _offset) IN (SELECT _partition, _offset FROM {project.name}.rows WHERE {past(target)} LIMIT %s)"
    )
    project.query(f"UPDATE {project.name}.rows SET amount = -1, id = 'damaged' WHERE {some}", DAMAGED)
    project.query(f"DELETE FROM {project.name}.rows WHERE amount <> -1 AND {some}", 10)
    assert len(rows(project, "amount = -1")) == DAMAGED
    project.deploy(factor=7)
    assert reset(project, "--to-datetime", f"{TARGET:%Y-%m-%dT%H:%M:%S.000Z}") == target
    stream.start()
    stream.eventually(lambda: len(timelines(stream)) == 6 and stream.all_done(), what="the range to be read again")

    assert timelines(stream)[3:] == [(2, number, target[number], ends[number]) for number in sorted(ends)]
    again = rows(project, "_timeline = 2")
    assert [row[:2] for row in again] == [row[:2] for row in good], "other offsets than the reset range were read again"
    assert [row[4:] for row in again] == [(id_, amount * 7) for *_, id_, amount in good]
    assert rows(project, "_timeline = 1") == untouched
    assert project.sink_sources() == project.topic_sources()
    stream.must_be_complete()


def millrace(project: StreamProject, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command of the project, as its user gives it."""
    return subprocess.run(
        [sys.executable, "-m", "millrace.cli.main", *arguments],
        env={**os.environ, "MILLRACE_ROOT": str(project.root), "PYTHONPATH": str(TESTS.parent / "include")},
        cwd=project.root,
        capture_output=True,
        text=True,
        timeout=Deadline.STREAM.seconds,
        check=False,
    )


def test_a_killed_stream_loses_and_doubles_nothing_and_a_planned_rewind_repairs_it_while_it_runs(
    stream: Drill, capsys: pytest.CaptureFixture[str]
) -> None:
    """The driver is killed when a batch's rows are in the table and the group has committed none of them."""
    project = stream.project
    project.declare(on_rewind="refuse", batch=2 * EACH // BATCHES)
    project.produce(EACH, timestamp=milliseconds(EARLIER))
    target = project.ends()
    project.produce(EACH, first=EACH, timestamp=milliseconds(LATER))
    deal(stream, [(AFTER_SINK, JVM)], capsys, sampler=Sampler(project), batches_ahead=BATCHES // 2)
    assert [hit.victim for hit in stream.hits] == [JVM]

    ends = project.ends()
    good = rows(project, past(target))
    some = f"(_partition, _offset) IN (SELECT _partition, _offset FROM {project.name}.rows WHERE {{}} LIMIT %s)"
    damage = f"UPDATE {project.name}.rows SET amount = -1, id = 'damaged' WHERE "
    project.query(damage + some.format(past(target)), DAMAGED)
    project.query(damage + some.format(f"NOT {past(target)}"), 10)
    before = rows(project, f"NOT {past(target)}")

    ahead = millrace(project, "streams", "rewind", project.stream, "--to", "2100-01-01T00:00Z", "--reason", "too far")
    assert ahead.returncode == 2
    assert "in the future" in ahead.stderr
    asked = ("streams", "rewind", project.stream, "--to", TARGET.isoformat(), "--reason", "1,000 rows are damaged")
    made = millrace(project, *asked, "--json")
    assert made.returncode == 0, made.stderr
    plan = json.loads(made.stdout)
    past_target = sum(ends.values()) - sum(target.values())
    assert (plan["about"]["records"], plan["about"]["rows"]) == (str(past_target), str(len(good)))
    assert {c["subject"]: c["after"]["offset"] for c in plan["changes"]} == {
        f"{project.topic}/{number}": str(offset) for number, offset in target.items()
    }
    assert millrace(project, *asked).returncode == 0, "a second plan may be made"
    done = millrace(project, "plans", "run", plan["id"], "--json")
    assert done.returncode == 0, done.stdout + done.stderr

    result = json.loads(done.stdout)
    assert result["status"] == "done"
    assert [step["step"] for step in result["steps"] if step["done_at"]] == [
        "drain", "session", "look", "reset", "start", "positions", "progress",
    ]  # fmt: skip
    assert timelines(stream)[3:] == [(2, number, target[number], ends[number]) for number in sorted(ends)]
    again = rows(project, "_timeline = 2")
    assert [(row[:2], row[4:]) for row in again] == [(row[:2], row[4:]) for row in good], "not what it was"
    assert rows(project, "_timeline = 1") == before, "what lies before the target was touched"
    assert project.sink_sources() == project.topic_sources()
    repeated = millrace(project, "plans", "run", plan["id"])
    assert repeated.returncode == 4, repeated.stdout
    assert "ended" in repeated.stderr
    assert rows(project, "true") == sorted(again + before)


@pytest.mark.full
def test_what_is_no_rewind_and_what_is_not_allowed(stream: Drill) -> None:
    project = stream.project
    project.produce(EACH)
    stream.start()
    stream.eventually(stream.all_done, what="all records")
    stop(stream)

    before = rows(project, "true")
    assert "successful" in group_tool(project, "--delete").stdout
    project.produce(100, first=EACH)
    stream.start()
    stream.eventually(stream.all_done, what="the rest, with the group deleted")
    assert {timeline for timeline, *_ in timelines(stream)} == {1}, "an absent group was taken for a rewind"
    assert set(before) <= set(rows(project, "true"))
    stop(stream)

    done = timelines(stream)
    project.declare(on_rewind="refuse")
    reset(project, "--to-earliest")
    stream.start()
    assert ended(stream, 3) == ExitReason.REFUSED
    stream.eventually(lambda: _state(stream) is StreamState.GIVEN_UP, what="the stream to be given up")
    assert timelines(stream) == done

    project.declare(on_rewind="reprocess")
    wait_until_empty(project)
    former = project.topic_id()
    result_of(project.admin.delete_topics([project.topic])[project.topic], what="the end of the topic")
    eventually(lambda: project.topic not in topic_names(project), within=Deadline.METADATA, what="the topic to be gone")
    project.create_topic()
    project.produce(500, first=EACH)
    stream.start()
    assert ended(stream, 4) == ExitReason.RECREATED
    stream.eventually(lambda: _state(stream) is StreamState.RECREATED, what="the stream to wait for an operator")
    assert timelines(stream) == done
    streams.accept(stream.platform, project.stream, ACTOR, "the new topic is right")
    stream.eventually(stream.all_done, what="the new topic's records")
    assert timelines(stream)[3:] == [(2, number, 0, end) for number, end in sorted(project.ends().items())]
    new = project.topic_id()
    of_former = {source for source in project.sink_sources() if source[0] == former}
    assert len(of_former) == EACH + 100
    assert {source: 1 for source in project.sink_sources() if source[0] == new} == project.topic_sources()


def _state(stream: Drill) -> StreamState | None:
    report = stream.supervise()
    return report.state if report else None
