"""The table of cases of `open_at`: where a stream begins to read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.domain.declaration.pipeline import OnRewind, Start
from millrace.domain.groups.commits import CommitMetadata, Committed
from millrace.domain.streams.position import (
    Basis,
    LogBounds,
    OpenTimeline,
    Refusal,
    Refuse,
    Resume,
    Wishes,
    WorkRecord,
    open_at,
)
from millrace.domain.topics.offsets import TopicPartition

STREAM, EPOCH = "shop.purchases", 7
P0 = TopicPartition("shop.purchases", "id-one", 0)
P1 = TopicPartition("shop.purchases", "id-one", 1)
OTHER = TopicPartition("shop.purchases", "id-two", 0)
LOG = LogBounds(10, 100)


def ours(offset, *, epoch=EPOCH, timeline=2, topic_id="id-one", stream=STREAM, says=None):
    metadata = CommitMetadata(stream, topic_id, timeline, epoch, offset if says is None else says)
    return Committed(offset, metadata.encode())


def opened(record=None, group=None, log=None, **wishes):
    group = {("shop.purchases", number): committed for number, committed in (group or {}).items()}
    return open_at(STREAM, EPOCH, record or WorkRecord(), group, log or {P0: LOG}, Wishes(**wishes))


def on_record(timeline=2, **partitions):
    return WorkRecord(
        timeline, {P0: 50} | {TopicPartition("shop.purchases", "id-one", int(n[1:])): o for n, o in partitions.items()}
    )


DONE = on_record()

CASES = {
    # nothing known
    "nothing known, earliest": ({}, OpenTimeline, 1, 10, Basis.START),
    "nothing known, latest": ({"start": Start.LATEST}, OpenTimeline, 1, 100, Basis.START),
    "no record, somebody set the group": ({"group": {0: Committed(42)}}, OpenTimeline, 1, 42, Basis.GROUP),
    "no record, the group is before the log": ({"group": {0: Committed(3)}}, OpenTimeline, 1, 10, Basis.CLAMPED),
    "moved behind the log end, a crash before the first commit, and the log has grown": (
        {"record": WorkRecord(3, {P0: 70}, {P0: 70}), "group": {0: Committed(500)}},
        Resume,
        3,
        70,
        Basis.RECORD,
    ),
    "no record, moved behind the log end, a crash before the first commit, and the log has grown": (
        {"record": WorkRecord(1, {P0: 70}, {P0: 70}), "group": {0: Committed(500)}},
        Resume,
        1,
        70,
        Basis.RECORD,
    ),
    "moved before the log start, a crash before the first commit": (
        {"record": WorkRecord(3, {P0: 10}, {P0: 10}), "group": {0: Committed(3)}},
        Resume,
        3,
        10,
        Basis.RECORD,
    ),
    "moved behind the log end, where the record is": (
        {"record": WorkRecord(3, {P0: 100}, {P0: 60}), "group": {0: Committed(500)}},
        Resume,
        3,
        100,
        Basis.RECORD,
    ),
    "moved behind the end of a log that was cut": (
        {"record": WorkRecord(3, {P0: 120}, {P0: 120}), "group": {0: Committed(500)}},
        OpenTimeline,
        4,
        100,
        Basis.CLAMPED,
    ),
    "moved behind the log end again, after the timeline has done something": (
        {"record": WorkRecord(3, {P0: 70}, {P0: 60}), "group": {0: Committed(500)}},
        OpenTimeline,
        4,
        100,
        Basis.CLAMPED,
    ),
    # our own commits
    "own commit at the record": ({"record": DONE, "group": {0: ours(50)}}, Resume, 2, 50, Basis.RECORD),
    "own commit behind the record": ({"record": DONE, "group": {0: ours(30)}}, Resume, 2, 50, Basis.RECORD),
    "own commit of an older epoch": ({"record": DONE, "group": {0: ours(30, epoch=3)}}, Resume, 2, 50, Basis.RECORD),
    "own commit ahead of the record: the sink was restored": (
        {"record": DONE, "group": {0: ours(80)}},
        Resume,
        2,
        50,
        Basis.RECORD,
    ),
    # without metadata, but nobody moved it
    "same offset without metadata": ({"record": DONE, "group": {0: Committed(50)}}, Resume, 2, 50, Basis.RECORD),
    "same offset, another timeline's metadata": (
        {"record": DONE, "group": {0: ours(50, timeline=1)}},
        Resume,
        2,
        50,
        Basis.RECORD,
    ),
    # the group is gone
    "group absent": ({"record": DONE}, Resume, 2, 50, Basis.RECORD),
    "group absent, start latest": ({"record": DONE, "start": Start.LATEST}, Resume, 2, 50, Basis.RECORD),
    # moved by somebody
    "moved back": ({"record": DONE, "group": {0: Committed(20)}}, OpenTimeline, 3, 20, Basis.GROUP),
    "moved forward": ({"record": DONE, "group": {0: Committed(90)}}, OpenTimeline, 3, 90, Basis.GROUP),
    "moved before the log start": ({"record": DONE, "group": {0: Committed(1)}}, OpenTimeline, 3, 10, Basis.CLAMPED),
    "moved behind the log end": ({"record": DONE, "group": {0: Committed(500)}}, OpenTimeline, 3, 100, Basis.CLAMPED),
    "moved by a tool that kept our metadata": (
        {"record": DONE, "group": {0: ours(20, says=50)}},
        OpenTimeline,
        3,
        20,
        Basis.GROUP,
    ),
    "own commit of a former timeline, behind the record: a crash before the first commit of this one": (
        {"record": DONE, "group": {0: ours(20, timeline=1)}},
        Resume,
        2,
        50,
        Basis.RECORD,
    ),
    "own commit of a former timeline, ahead of the record": (
        {"record": DONE, "group": {0: ours(80, timeline=1)}},
        Resume,
        2,
        50,
        Basis.RECORD,
    ),
    "own commit of the topic that had this name before": (
        {"record": DONE, "group": {0: ours(80, topic_id="id-zero", timeline=3)}},
        Resume,
        2,
        50,
        Basis.RECORD,
    ),
    "another stream's commit": (
        {"record": DONE, "group": {0: ours(20, stream="shop.other")}},
        OpenTimeline,
        3,
        20,
        Basis.GROUP,
    ),
    "metadata of another tool": (
        {"record": DONE, "group": {0: Committed(20, '{"millrace": 99}')}},
        OpenTimeline,
        3,
        20,
        Basis.GROUP,
    ),
    "moved off an expired position": (
        {"record": WorkRecord(2, {P0: 5}), "group": {0: Committed(10)}},
        OpenTimeline,
        3,
        10,
        Basis.GROUP,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_where_a_stream_begins(name):
    arguments, kind, timeline, offset, basis = CASES[name]
    found = opened(**arguments)
    assert isinstance(found, kind), found
    assert found.timeline == timeline
    assert (found.positions[P0].offset, found.positions[P0].basis) == (offset, basis)


REFUSED = {
    "rewind refused": ({"record": DONE, "group": {0: Committed(20)}, "on_rewind": OnRewind.REFUSE}, Refusal.REWIND),
    "recreated topic": ({"record": DONE, "log": {OTHER: LOG}}, Refusal.RECREATED),
    "expired before it was read": ({"record": WorkRecord(2, {P0: 5})}, Refusal.DATA_LOSS),
    "the log was cut": ({"record": WorkRecord(2, {P0: 101})}, Refusal.DATA_LOSS),
    "our commit without a record": ({"group": {0: ours(50)}}, Refusal.RECORD_MISSING),
    "our commit of a newer timeline": ({"record": DONE, "group": {0: ours(80, timeline=3)}}, Refusal.RECORD_MISSING),
    "our commit of a newer timeline, at the record's offset": (
        {"record": DONE, "group": {0: ours(50, timeline=3)}},
        Refusal.RECORD_MISSING,
    ),
    "a newer epoch has committed for the topic of before": (
        {"record": DONE, "group": {0: ours(50, epoch=8, topic_id="id-zero")}},
        Refusal.FENCED,
    ),
    "a newer epoch has committed": ({"record": DONE, "group": {0: ours(50, epoch=8)}}, Refusal.FENCED),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_stream_does_not_decide_alone(name):
    arguments, refusal = REFUSED[name]
    found = opened(**arguments)
    assert isinstance(found, Refuse), found
    assert found.refusal is refusal
    assert found.what
    assert found.next_step


@pytest.mark.parametrize("stale", [None, ours(80), ours(5_000), ours(5_000, timeline=3)])
def test_an_accepted_topic_is_read_from_its_beginning_on_a_new_timeline(stale):
    """Whatever a driver of the former topic has committed under the same name."""
    found = opened(record=DONE, group={0: stale} if stale else {}, log={OTHER: LOG}, accept_recreated=True)
    assert isinstance(found, OpenTimeline)
    assert (found.timeline, found.positions[OTHER].offset) == (3, 10)


def test_an_accepted_topic_is_read_from_where_somebody_has_put_the_group():
    found = opened(record=DONE, group={0: Committed(60)}, log={OTHER: LOG}, accept_recreated=True)
    assert isinstance(found, OpenTimeline)
    assert found.positions[OTHER].offset == 60


def test_a_new_topic_is_not_begun_at_the_offsets_of_the_one_before_it():
    found = opened(group={0: ours(80, topic_id="id-zero")})
    assert isinstance(found, OpenTimeline)
    assert (found.positions[P0].offset, found.positions[P0].basis) == (10, Basis.START)


def test_a_commit_that_is_not_obeyed_is_told_of():
    """Somebody may have meant it: it looks like the one that the timeline was opened by."""
    found = opened(record=WorkRecord(3, {P0: 70}, {P0: 70}), group={0: Committed(500)})
    assert isinstance(found, Resume)
    assert "500" in found.positions[P0].note


def test_a_sink_that_lost_a_timeline_is_told_where_its_record_ends_in_every_partition():
    log = {P0: LOG, P1: LOG}
    found = opened(record=on_record(p1=60), group={0: ours(80, timeline=3), 1: ours(90, timeline=3)}, log=log)
    assert isinstance(found, Refuse)
    assert ("timeline 3" in found.what, "timeline 2" in found.what) == (True, True)
    assert "shop.purchases/0:50, shop.purchases/1:60" in found.next_step


def test_a_sink_that_lost_a_timeline_reads_again_what_a_reset_asks_for():
    """The way out that the refusal names: the stock tools leave no metadata."""
    for asked, kind, timeline in ((50, Resume, 2), (20, OpenTimeline, 3), (80, OpenTimeline, 3)):
        found = opened(record=DONE, group={0: Committed(asked)})
        assert isinstance(found, kind)
        assert (found.timeline, found.positions[P0].offset) == (timeline, asked)


def test_a_new_partition_begins_at_its_beginning_without_a_new_timeline():
    log = {P0: LOG, P1: LogBounds(0, 9)}
    for group in ({0: ours(50)}, {0: ours(50), 1: Committed(0)}):
        found = opened(record=DONE, group=group, log=log, start=Start.LATEST)
        assert isinstance(found, Resume)
        assert (found.positions[P1].offset, found.positions[P1].basis) == (0, Basis.BEGINNING)


def test_one_moved_partition_leaves_the_others_at_their_record():
    log = {P0: LOG, P1: LOG}
    found = opened(record=on_record(p1=60), group={0: Committed(20), 1: ours(55)}, log=log)
    assert isinstance(found, OpenTimeline)
    assert (found.positions[P0].offset, found.positions[P1].offset) == (20, 60)


@given(
    done=st.none() | st.integers(0, 120),
    committed=st.none() | st.tuples(st.integers(0, 120), st.sampled_from(["ours", "empty", "older", "foreign"])),
    accept=st.booleans(),
    rewind=st.sampled_from(OnRewind),
    start=st.sampled_from(Start),
)
def test_whatever_is_known_the_stream_reads_inside_the_log_and_never_skips_silently(
    done, committed, accept, rewind, start
):
    kinds = {
        "ours": ours,
        "empty": Committed,
        "older": lambda o: ours(o, timeline=1),
        "foreign": lambda o: Committed(o, "x"),
    }
    group = {} if committed is None else {0: kinds[committed[1]](committed[0])}
    record = WorkRecord() if done is None else WorkRecord(2, {P0: done})
    found = opened(record=record, group=group, accept_recreated=accept, on_rewind=rewind, start=start)
    if isinstance(found, Refuse):
        return
    offset = found.positions[P0].offset
    assert LOG.start <= offset <= LOG.end
    if isinstance(found, Resume):
        assert offset == done
    if done is not None and offset > done:  # skipped only where somebody moved the group there
        assert committed is not None
        assert committed[0] != done
