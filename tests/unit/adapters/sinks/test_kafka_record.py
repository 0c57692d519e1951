"""The table of cases of a stream whose record of work is its group: `work_record`, and `open_at` after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.adapters.sinks.aside import Opened
from millrace.adapters.sinks.kafka.sink import work_record
from millrace.domain.declaration.pipeline import OnRewind, Start
from millrace.domain.groups.commits import CommitMetadata, Committed
from millrace.domain.streams.position import (
    Basis,
    LogBounds,
    Opening,
    OpenTimeline,
    Refusal,
    Refuse,
    Resume,
    Wishes,
    open_at,
)
from millrace.domain.topics.offsets import TopicPartition

STREAM, TOPIC, EPOCH = "shop.totals", "shop.purchases", 7
P0 = TopicPartition(TOPIC, "id-one", 0)
P1 = TopicPartition(TOPIC, "id-one", 1)
OTHER = TopicPartition(TOPIC, "id-two", 0)
LOG = LogBounds(10, 100)
REFUSED: dict[str, Any] = {"on_rewind": OnRewind.REFUSE}

STOOD = {P0: Opened(20, 50, begun=True)}  # timeline 2 began at 20, and 50 was written aside by a life that died
ENDED = {P0: Opened(20, 50, begun=False)}  # it ended in order: 50 is where the work is
FRESH = {P0: Opened(20, 20, begun=False)}  # opened, and the life crashed before its first commit
CAME_NO_FURTHER = {P0: Opened(20, 20, begun=True)}


def ours(
    offset: int,
    *,
    timeline: int = 2,
    epoch: int = EPOCH,
    topic_id: str = "id-one",
    stream: str = STREAM,
    says: int | None = None,
) -> Committed:
    metadata = CommitMetadata(stream, topic_id, timeline, epoch, offset if says is None else says)
    return Committed(offset, metadata.encode())


def opened(
    stood: dict[TopicPartition, Opened] | None = None,
    *,
    group: dict[int, Committed] | None = None,
    log: dict[TopicPartition, LogBounds] | None = None,
    timeline: int = 2,
    **wishes: Any,
) -> Opening:
    """Where a stream begins by what stands beside its sink, and by its group's commits; None: that database is new."""
    commits = {(TOPIC, number): committed for number, committed in (group or {}).items()}
    here = log or {P0: LOG}
    of_now = {p: commits[p.topic, p.partition] for p in here if (p.topic, p.partition) in commits}
    record = work_record(STREAM, 0 if stood is None else timeline, stood or {}, of_now)
    return open_at(STREAM, EPOCH, record, commits, here, Wishes(**wishes))


CASES: dict[str, tuple[dict[str, Any], type[Opening], int, int, Basis]] = {
    # our own commits are the record
    "own commit of this timeline": ({"stood": STOOD, "group": {0: ours(70)}}, Resume, 2, 70, Basis.RECORD),
    "own commit, nothing was written aside since the beginning": (
        {"stood": CAME_NO_FURTHER, "group": {0: ours(70)}},
        Resume,
        2,
        70,
        Basis.RECORD,
    ),
    "own commit of an older epoch": ({"stood": STOOD, "group": {0: ours(70, epoch=3)}}, Resume, 2, 70, Basis.RECORD),
    "own commit at the timeline's beginning": (
        {"stood": CAME_NO_FURTHER, "group": {0: ours(20)}},
        Resume,
        2,
        20,
        Basis.RECORD,
    ),
    "own commit behind what was written aside: the group's log was set back": (
        {"stood": STOOD, "group": {0: ours(30)}},
        Resume,
        2,
        50,
        Basis.RECORD,
    ),
    # a crash between the opening of a timeline and its first commit
    "crash before the first commit, own commit of the former timeline ahead": (
        {"stood": FRESH, "timeline": 3, "group": {0: ours(80)}},
        Resume,
        3,
        20,
        Basis.RECORD,
    ),
    "crash before the first commit, own commit of the former timeline behind": (
        {"stood": FRESH, "timeline": 3, "group": {0: ours(12)}},
        Resume,
        3,
        20,
        Basis.RECORD,
    ),
    "crash before the first commit, the reset that opened it": (
        {"stood": FRESH, "timeline": 3, "group": {0: Committed(20)}},
        Resume,
        3,
        20,
        Basis.RECORD,
    ),
    "crash before the first commit, a reset before the log start opened it": (
        {"stood": {P0: Opened(10, 10, begun=False)}, "timeline": 3, "group": {0: Committed(3)}},
        Resume,
        3,
        10,
        Basis.RECORD,
    ),
    "crash before the first commit, a reset behind the log end opened it, and the log has grown": (
        {"stood": {P0: Opened(70, 70, begun=False)}, "timeline": 3, "group": {0: Committed(500)}},
        Resume,
        3,
        70,
        Basis.RECORD,
    ),
    "crash before the first commit, and reset again, elsewhere": (
        {"stood": FRESH, "timeline": 3, "group": {0: Committed(42)}},
        OpenTimeline,
        4,
        42,
        Basis.GROUP,
    ),
    "crash before the first commit of all, without a group": (
        {"stood": {P0: Opened(10, 10, begun=False)}, "timeline": 1},
        Resume,
        1,
        10,
        Basis.RECORD,
    ),
    # reset by somebody
    "reset to the timeline's own first offset": (
        {"stood": STOOD, "group": {0: Committed(20)}},
        OpenTimeline,
        3,
        20,
        Basis.GROUP,
    ),
    "reset to the timeline's own first offset, nothing was written aside since": (
        {"stood": CAME_NO_FURTHER, "group": {0: Committed(20)}},
        OpenTimeline,
        3,
        20,
        Basis.GROUP,
    ),
    "reset to what was written aside: the work may have gone on from there": (
        {"stood": STOOD, "group": {0: Committed(50)}},
        OpenTimeline,
        3,
        50,
        Basis.GROUP,
    ),
    "reset to earliest": ({"stood": STOOD, "group": {0: Committed(10)}}, OpenTimeline, 3, 10, Basis.GROUP),
    "reset to latest": ({"stood": STOOD, "group": {0: Committed(100)}}, OpenTimeline, 3, 100, Basis.GROUP),
    "reset to an offset": ({"stood": STOOD, "group": {0: Committed(42)}}, OpenTimeline, 3, 42, Basis.GROUP),
    "reset before the log start": ({"stood": STOOD, "group": {0: Committed(1)}}, OpenTimeline, 3, 10, Basis.CLAMPED),
    "reset behind the log end": ({"stood": STOOD, "group": {0: Committed(500)}}, OpenTimeline, 3, 100, Basis.CLAMPED),
    "reset behind the log end, nothing was written aside since the beginning": (
        {"stood": CAME_NO_FURTHER, "group": {0: Committed(500)}},
        OpenTimeline,
        3,
        100,
        Basis.CLAMPED,
    ),
    "reset by a tool that kept our metadata": (
        {"stood": STOOD, "group": {0: ours(20, says=70)}},
        OpenTimeline,
        3,
        20,
        Basis.GROUP,
    ),
    "another stream's commit": (
        {"stood": STOOD, "group": {0: ours(30, stream="shop.other")}},
        OpenTimeline,
        3,
        30,
        Basis.GROUP,
    ),
    "reset off a position that has expired": (
        {"stood": {P0: Opened(2, 5, begun=True)}, "group": {0: Committed(30)}},
        OpenTimeline,
        3,
        30,
        Basis.GROUP,
    ),
    # reset after a life that ended in order
    "ended in order, own commit": ({"stood": ENDED, "group": {0: ours(50)}}, Resume, 2, 50, Basis.RECORD),
    "ended in order, reset to its end": ({"stood": ENDED, "group": {0: Committed(50)}}, Resume, 2, 50, Basis.RECORD),
    "ended in order, reset to its end, on_rewind refuse": (
        {"stood": ENDED, "group": {0: Committed(50)}, **REFUSED},
        Resume,
        2,
        50,
        Basis.RECORD,
    ),
    "ended in order, reset to the timeline's own first offset": (
        {"stood": ENDED, "group": {0: Committed(20)}},
        OpenTimeline,
        3,
        20,
        Basis.GROUP,
    ),
    "ended in order, reset behind the log end": (
        {"stood": ENDED, "group": {0: Committed(500)}},
        OpenTimeline,
        3,
        100,
        Basis.CLAMPED,
    ),
    "ended in order, group gone": ({"stood": ENDED}, Resume, 2, 50, Basis.RECORD),
    # the group is gone
    "group gone": ({"stood": STOOD}, Resume, 2, 50, Basis.RECORD),
    "group gone, start latest": ({"stood": STOOD, "start": Start.LATEST}, Resume, 2, 50, Basis.RECORD),
    "group gone, on_rewind refuse": ({"stood": STOOD, **REFUSED}, Resume, 2, 50, Basis.RECORD),
    # the control database is gone
    "control database gone": ({"group": {0: ours(70, timeline=4)}}, Resume, 4, 70, Basis.RECORD),
    "control database gone, start latest": (
        {"group": {0: ours(70, timeline=4)}, "start": Start.LATEST},
        Resume,
        4,
        70,
        Basis.RECORD,
    ),
    "control database of before: the group knows a newer timeline": (
        {"stood": STOOD, "group": {0: ours(30, timeline=4)}},
        Resume,
        4,
        30,
        Basis.RECORD,
    ),
    "control database gone, and the group was reset": (
        {"group": {0: Committed(42)}},
        OpenTimeline,
        1,
        42,
        Basis.GROUP,
    ),
    # both are gone
    "both gone, earliest": ({}, OpenTimeline, 1, 10, Basis.START),
    "both gone, latest": ({"start": Start.LATEST}, OpenTimeline, 1, 100, Basis.START),
}


@pytest.mark.parametrize("name", CASES)
def test_where_a_stream_begins(name: str) -> None:
    arguments, kind, timeline, offset, basis = CASES[name]
    found = opened(**arguments)
    assert isinstance(found, kind), found
    assert not isinstance(found, Refuse)
    assert found.timeline == timeline
    assert (found.positions[P0].offset, found.positions[P0].basis) == (offset, basis)


REFUSALS: dict[str, tuple[dict[str, Any], Refusal]] = {
    "a newer epoch has committed": ({"stood": STOOD, "group": {0: ours(50, epoch=8)}}, Refusal.FENCED),
    "a newer epoch has committed on a newer timeline": (
        {"stood": STOOD, "group": {0: ours(50, epoch=8, timeline=3)}},
        Refusal.FENCED,
    ),
    "a newer epoch has committed, and the control database is gone": (
        {"group": {0: ours(50, epoch=8)}},
        Refusal.FENCED,
    ),
    "a newer epoch has committed for the topic of before": (
        {"stood": STOOD, "group": {0: ours(50, epoch=8, topic_id="id-zero")}},
        Refusal.FENCED,
    ),
    "rewind refused": ({"stood": STOOD, "group": {0: Committed(42)}, **REFUSED}, Refusal.REWIND),
    "rewind refused, to the timeline's own first offset": (
        {"stood": CAME_NO_FURTHER, "group": {0: Committed(20)}, **REFUSED},
        Refusal.REWIND,
    ),
    "rewind refused, behind the log end": (
        {"stood": CAME_NO_FURTHER, "group": {0: Committed(500)}, **REFUSED},
        Refusal.REWIND,
    ),
    "recreated topic": ({"stood": STOOD, "group": {0: ours(70)}, "log": {OTHER: LOG}}, Refusal.RECREATED),
    "recreated topic, group gone with it": ({"stood": STOOD, "log": {OTHER: LOG}}, Refusal.RECREATED),
    "recreated topic, control database gone": ({"group": {0: ours(70)}, "log": {OTHER: LOG}}, Refusal.RECREATED),
    "recreated topic, and the group was reset": (
        {"stood": STOOD, "group": {0: Committed(10)}, "log": {OTHER: LOG}},
        Refusal.RECREATED,
    ),
    "expired before it was read": ({"stood": {P0: Opened(2, 2, begun=True)}, "group": {0: ours(5)}}, Refusal.DATA_LOSS),
    "the log was cut": ({"stood": STOOD, "group": {0: ours(101)}}, Refusal.DATA_LOSS),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_a_stream_does_not_decide_alone(name: str) -> None:
    arguments, refusal = REFUSALS[name]
    found = opened(**arguments)
    assert isinstance(found, Refuse), found
    assert found.refusal is refusal
    assert found.what
    assert found.next_step


def test_a_refused_rewind_says_that_nobody_knows_where_the_work_was() -> None:
    """What was written aside is not where it was, and is not to be named as that."""
    found = opened({P0: Opened(20, 51, begun=True)}, group={0: Committed(42)}, **REFUSED)
    assert isinstance(found, Refuse)
    assert f"{P0} from an unknown offset to 42" in found.what
    assert "51" not in found.what + found.next_step


def test_a_refused_rewind_names_a_reset_only_where_that_leads_out() -> None:
    """A reset leaves a commit that is not ours. It is one back to where the work is, where that is known."""
    for stood, leads_out in ((STOOD, set()), (ENDED, {50})):
        found = {at: opened(stood, group={0: Committed(at)}, **REFUSED) for at in range(LOG.start, LOG.end + 1)}
        assert {at for at, answer in found.items() if not isinstance(answer, Refuse)} == leads_out
        for answer in found.values():
            if isinstance(answer, Refuse):
                assert ("reset the group back" in answer.next_step) is bool(leads_out)
                assert (f"{P0}:50" in answer.next_step) is bool(leads_out)


def test_of_a_refused_rewind_what_was_not_moved_is_not_told() -> None:
    stood = {P0: Opened(20, 50, begun=True), P1: Opened(20, 60, begun=True)}
    found = opened(stood, group={0: Committed(42), 1: ours(77)}, log={P0: LOG, P1: LOG}, **REFUSED)
    assert isinstance(found, Refuse)
    assert str(P1) not in found.what


def test_one_moved_partition_leaves_the_others_at_their_commits() -> None:
    stood = {P0: Opened(20, 50, begun=True), P1: Opened(20, 60, begun=True)}
    found = opened(stood, group={0: Committed(20), 1: ours(77)}, log={P0: LOG, P1: LOG})
    assert isinstance(found, OpenTimeline)
    assert (found.timeline, found.positions[P0].offset, found.positions[P1].offset) == (3, 20, 77)


def test_a_group_that_forgot_one_partition_goes_on_in_each() -> None:
    stood = {P0: Opened(20, 50, begun=True), P1: Opened(20, 60, begun=True)}
    found = opened(stood, group={1: ours(77)}, log={P0: LOG, P1: LOG})
    assert isinstance(found, Resume)
    assert (found.positions[P0].offset, found.positions[P1].offset) == (50, 77)


def test_of_an_opening_that_was_committed_in_part_every_partition_is_on_the_new_timeline() -> None:
    """The group's commits come in parts; between two of them the life crashed."""
    stood = {P0: Opened(20, 20, begun=False), P1: Opened(30, 30, begun=False)}
    found = opened(stood, timeline=3, group={0: ours(20, timeline=3), 1: ours(90)}, log={P0: LOG, P1: LOG})
    assert isinstance(found, Resume)
    assert (found.timeline, found.positions[P0].offset, found.positions[P1].offset) == (3, 20, 30)


# Recreated topics


@pytest.mark.parametrize("stale", [None, ours(80), ours(5_000), ours(5_000, timeline=3)])
def test_an_accepted_topic_is_read_from_its_beginning_on_a_new_timeline(stale: Committed | None) -> None:
    """Whatever a driver of the former topic has committed under the same name."""
    group = {0: stale} if stale else {}
    found = opened(STOOD, group=group, log={OTHER: LOG}, accept_recreated=True)
    assert isinstance(found, OpenTimeline)
    assert found.timeline > 2
    assert (found.positions[OTHER].offset, found.positions[OTHER].basis) == (10, Basis.BEGINNING)


def test_an_accepted_topic_is_read_from_where_somebody_has_put_the_group() -> None:
    found = opened(STOOD, group={0: Committed(60)}, log={OTHER: LOG}, accept_recreated=True)
    assert isinstance(found, OpenTimeline)
    assert found.positions[OTHER].offset == 60


@pytest.mark.parametrize("begun", [False, True])
def test_a_commit_for_the_topic_of_before_moves_nobody_on_the_timeline_that_was_accepted(begun: bool) -> None:
    """A late one of the life before, or all that the group knows after a crash before the first commit."""
    stood = {OTHER: Opened(10, 40 if begun else 10, begun)}
    found = opened(stood, timeline=3, group={0: ours(80)}, log={OTHER: LOG})
    assert isinstance(found, Resume)
    assert (found.timeline, found.positions[OTHER].offset) == (3, 40 if begun else 10)


# Partitions that are new since


def test_a_new_partition_begins_at_its_beginning_without_a_new_timeline() -> None:
    log = {P0: LOG, P1: LogBounds(0, 9)}
    for group in ({0: ours(70)}, {0: ours(70), 1: Committed(0)}):
        found = opened(STOOD, group=group, log=log, start=Start.LATEST)
        assert isinstance(found, Resume)
        assert (found.positions[P1].offset, found.positions[P1].basis) == (0, Basis.BEGINNING)
        assert found.positions[P0].offset == 70


def test_a_new_partition_that_was_opened_and_not_committed_is_gone_on_with() -> None:
    stood = STOOD | {P1: Opened(0, 0, begun=False)}
    found = opened(stood, group={0: ours(70)}, log={P0: LOG, P1: LogBounds(0, 9)})
    assert isinstance(found, Resume)
    assert (found.timeline, found.positions[P1].offset) == (2, 0)


def test_a_new_partition_that_was_reset_opens_a_timeline() -> None:
    stood = STOOD | {P1: Opened(0, 0, begun=True)}
    for group in ({0: ours(70), 1: Committed(0)}, {0: ours(70), 1: Committed(4)}):
        found = opened(stood, group=group, log={P0: LOG, P1: LogBounds(0, 9)})
        assert isinstance(found, OpenTimeline)
        assert (found.timeline, found.positions[P0].offset) == (3, 70)
        assert found.positions[P1].offset == group[1].offset


# Whatever is known

COMMITS: dict[str, Callable[[int], Committed]] = {
    "ours": ours,
    "of the former timeline": lambda offset: ours(offset, timeline=1),
    "of a newer one": lambda offset: ours(offset, timeline=3),
    "of the topic before": lambda offset: ours(offset, topic_id="id-zero"),
    "a reset": Committed,
    "another tool's": lambda offset: Committed(offset, "x"),
}


@given(
    stood=st.none()
    | st.builds(lambda a, b, c: Opened(min(a, b), max(a, b), c), *[st.integers(0, 120)] * 2, st.booleans()),
    committed=st.none() | st.tuples(st.sampled_from(sorted(COMMITS)), st.integers(0, 120)),
    rewind=st.sampled_from(OnRewind),
    start=st.sampled_from(Start),
)
def test_it_reads_inside_the_log_skips_nothing_silently_and_takes_no_reset_for_its_own(
    stood: Opened | None, committed: tuple[str, int] | None, rewind: OnRewind, start: Start
) -> None:
    kind, at = committed or ("none", 0)
    group = {0: COMMITS[kind](at)} if committed else {}
    found = opened(None if stood is None else {P0: stood}, group=group, on_rewind=rewind, start=start)
    if isinstance(found, Refuse):
        assert found.refusal is not Refusal.REWIND or kind in {"a reset", "another tool's"}
        return
    offset, by_somebody = found.positions[P0].offset, kind in {"a reset", "another tool's"}
    assert LOG.start <= offset <= LOG.end
    done = None if stood is None else stood.done
    if kind == "ours" or (kind == "of the former timeline" and stood is None):
        done = max(at, done or 0)
    elif kind == "of a newer one":
        done = at
    if isinstance(found, Resume):
        assert offset == done
        assert not (by_somebody and stood is not None and stood.begun)
    elif done is not None:
        assert by_somebody
        assert offset == min(max(at, LOG.start), LOG.end)
