"""A stream that dies at any call of its adapters loses nothing and doubles nothing: its next epoch does the rest.

Real broker, real databases, the real driver; only Spark is left out (`support.streams.driver_without_spark`). That
processes which are gone in the middle leave the same is shown by three children here, and by the drills.
"""

from __future__ import annotations

from functools import partial

import pytest

from support.crash_walks import crash_at_every_call
from support.drills.points import GROUP_FIRST
from support.stack.faults import Life, Moment, crash_at_call, put_in
from support.streams.crashed_streams import GONE, CrashedStream, CrashedStreams, die_in_child
from support.waiting import Deadline, at_once, eventually, result_of

START = (
    "streams.claim",
    "log.partitions",
    "sink.take_over",
    "member.join",
    "sink.read_record",
    "log.committed",
    "log.bounds",
    "sink.open_positions",
    "member.commit",
    "sink.prepare",
)
BATCHES = (
    "sink.begin_batch",
    "task.write_rows",
    "task.write_bad_records",
    "sink.commit_batch",
    "log.ends",
    "streams.save_progress",
    "sink.discard",
)
LOCAL = ("member.check", "sink.rows_writer", "sink.bad_records_writer", "sink.close", "member.close")
REWOUND = {0: 1, 1: 2}
FULL = pytest.mark.full
MOMENTS = (Moment.AFTER, *(pytest.param(moment, marks=FULL) for moment in (Moment.ANSWER_LOST, Moment.BEFORE)))
IN_CHILDREN = (("sink.open_positions", 1), ("sink.commit_batch", 1), ("member.commit", 2))


def test_a_stream_that_never_dies_does_all_there_is(streams: CrashedStreams) -> None:
    stream = streams.new()
    assert stream.go_on() == []
    assert stream.timelines() == [1]
    assert len(stream.query("SELECT 1 FROM millrace.quarantine WHERE stream = %s", stream.stream)) == 1


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_stream_that_dies_at_any_call_goes_on(streams: CrashedStreams, moment: Moment) -> None:
    tried = crash_at_every_call(moment, lambda life: streams.new().crash_and_go_on(life))
    tried.must_be_well(*START, *BATCHES, *(() if moment is Moment.ANSWER_LOST else LOCAL))


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_rewound_stream_that_dies_at_any_call_goes_on(streams: CrashedStreams, moment: Moment) -> None:
    def once(life: Life) -> list[str]:
        stream = streams.done_once()
        stream.rewind(REWOUND)
        wrong = stream.crash_and_go_on(life)
        return wrong + ([] if stream.timelines() == [1, 2] else [f"its timelines are {stream.timelines()}"])

    tried = crash_at_every_call(moment, once)
    tried.must_be_well(*START, *BATCHES, *(() if moment is Moment.ANSWER_LOST else LOCAL))


def test_a_group_that_is_committed_before_the_sink_is_noticed(
    streams: CrashedStreams, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in(monkeypatch, GROUP_FIRST)
    wrong = streams.new().crash_and_go_on(crash_at_call("sink.commit_batch", Moment.BEFORE))
    assert any("the group is at" in line for line in wrong), wrong


def test_what_a_dead_life_leaves_at_the_servers_is_what_a_killed_process_leaves(streams: CrashedStreams) -> None:
    """The group's member is still listed, having said nothing; the sink's backend is gone, having been hung up on."""
    stream = streams.new()
    launch = stream.raise_epoch()
    stream.live(crash_at_call("sink.commit_batch", Moment.AFTER), launch)
    described = streams.project.admin.describe_consumer_groups([stream.group])[stream.group]
    [member] = result_of(described, what="the group").members
    assert member.group_instance_id == stream.stream
    backends = "SELECT 1 FROM pg_stat_activity WHERE application_name = %s"
    eventually(
        lambda: not stream.query(backends, f"{stream.stream}#{launch.epoch}"),
        within=Deadline.KILLED,
        what="the end of the dead life's backends",
    )


def test_what_processes_leave_that_are_gone_in_the_middle_is_gone_on_with(streams: CrashedStreams) -> None:
    """No `finally` and no farewell of a client: `os._exit` inside the call."""
    made = [streams.new() for _ in IN_CHILDREN]
    children = [partial(die_in_child, stream, *step) for stream, step in zip(made, IN_CHILDREN, strict=True)]
    assert at_once(children, within=Deadline.STREAM, what="three children's ends") == [GONE] * len(made)

    def rest(stream: CrashedStream) -> list[str]:
        return stream.out_of_balance() + stream.go_on()

    wrong = at_once([partial(rest, stream) for stream in made], within=Deadline.STREAM, what="the epochs after them")
    assert wrong == [[]] * len(made)
