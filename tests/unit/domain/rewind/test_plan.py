"""A rewind as a plan: it comes back from its text, it tells when it is no longer true, and what is not as it said."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from millrace.domain.declaration.pipeline import OnRewind
from millrace.domain.groups.commits import CommitMetadata, Committed, PlannedMove
from millrace.domain.plans.plan import Plan, PlanKind, canonical, facts, parse
from millrace.domain.rewind.plan import Rewind, changes_of, foreign_commits, rewind_of, stale, wrong_positions
from millrace.domain.rewind.time_travel import Move, Policy, Quality
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

STREAM, PLAN = "shop.purchases", "rewind-abc"
P0, P1 = (TopicPartition("t", "id-one", number) for number in range(2))
MOVES = (Move(P0, 50, 20, Quality.EXACT), Move(P1, 40, 40, Quality.AFTER_END))
REWIND = Rewind(STREAM, "g", 2, Policy.FAIL, 100, 2, MOVES)
RECORD = WorkRecord(2, {P0: 50, P1: 40}, {P0: 0, P1: 0})
LOG = {P0: LogBounds(10, 100), P1: LogBounds(0, 40)}


def planned(offset: int, *, timeline: int = 2, plan: str = PLAN, topic_id: str = "id-one", says: int | None = None):
    move = PlannedMove(STREAM, topic_id, plan, timeline, offset if says is None else says)
    return Committed(offset, move.encode())


def own(offset: int) -> Committed:
    return Committed(offset, CommitMetadata(STREAM, "id-one", 2, 7, offset).encode())


def test_a_rewind_comes_back_from_its_plan() -> None:
    now = datetime(2026, 5, 1, tzinfo=UTC)
    about = {"group": "g", "timeline": 2, "policy": "fail", "may_grow_by": 100, "partitions": 2}
    plan = Plan(
        PlanKind.REWIND,
        STREAM,
        "c",
        "k",
        changes_of(MOVES),
        (),
        now,
        now + timedelta(days=1),
        "cli:a",
        "why",
        facts(about),
    )
    assert rewind_of(parse(canonical(plan))) == REWIND
    with pytest.raises(ValueError, match="group"):
        rewind_of(replace(plan, about=()))


OPENINGS = {
    "a planned move opens a timeline": ({P0: planned(20)}, OpenTimeline, 20, Basis.PLAN),
    "once it is open the record counts": ({P0: planned(20, timeline=1)}, Resume, 50, Basis.RECORD),
    "of a topic that had this name before": ({P0: planned(20, topic_id="id-old")}, Resume, 50, Basis.RECORD),
    "to where the record ends": ({P0: planned(50)}, Resume, 50, Basis.RECORD),
    "past the log start by now": ({P0: planned(5)}, OpenTimeline, 10, Basis.PLAN),
}


@pytest.mark.parametrize("case", OPENINGS, ids=str)
@pytest.mark.parametrize("on_rewind", [OnRewind.REPROCESS, OnRewind.REFUSE])
def test_a_planned_move_is_obeyed_whatever_is_declared(case: str, on_rewind: OnRewind) -> None:
    commits, kind, offset, basis = OPENINGS[case]
    group = {(p.topic, p.partition): committed for p, committed in commits.items()}
    opening = open_at(STREAM, 8, RECORD, group, LOG, Wishes(on_rewind=on_rewind))
    assert isinstance(opening, kind), opening
    assert opening.timeline == (3 if kind is OpenTimeline else 2)
    assert (opening.positions[P0].offset, opening.positions[P0].basis) == (offset, basis)
    assert opening.positions[P1].offset == 40


@pytest.mark.parametrize("committed", [planned(20, timeline=3), Committed(20), planned(20, says=19)], ids=str)
def test_a_move_of_a_newer_timeline_or_by_others_is_refused(committed: Committed) -> None:
    opening = open_at(STREAM, 8, RECORD, {("t", 0): committed}, LOG, Wishes(on_rewind=OnRewind.REFUSE))
    assert isinstance(opening, Refuse)
    assert opening.refusal in {Refusal.REWIND, Refusal.RECORD_MISSING}


def test_a_planned_move_of_a_partition_that_nothing_is_on_record_of_is_refused() -> None:
    opening = open_at(STREAM, 8, WorkRecord(), {("t", 0): planned(20)}, LOG, Wishes())
    assert isinstance(opening, Refuse)
    assert opening.refusal is Refusal.RECORD_MISSING


STALE = {
    "as planned": ({}, ""),
    "own commits, behind the record": ({"group": {("t", 0): own(30)}}, ""),
    "its own moves, made by a runner that died": ({"group": {("t", 0): planned(20)}}, ""),
    "the stream read on": ({"record": replace(RECORD, next_offsets={P0: 100, P1: 90})}, ""),
    "the stream read on too far": ({"record": replace(RECORD, next_offsets={P0: 100, P1: 91})}, "has read 101 records"),
    "the sink went back": ({"record": replace(RECORD, next_offsets={P0: 49, P1: 90})}, "went back from 50"),
    "another timeline": ({"record": replace(RECORD, timeline=3)}, "on timeline 3"),
    "moved by somebody": ({"group": {("t", 0): Committed(30)}}, "moved to 30 by someone else"),
    "moved by another plan": ({"group": {("t", 0): planned(30, plan="rewind-x")}}, "by plan rewind-x"),
    "the log moved on": ({"log": LOG | {P0: LogBounds(21, 100)}}, "now begins at 21"),
    "a partition more": (
        {"log": LOG | {TopicPartition("t", "id-one", 2): LogBounds(0, 0)}},
        "2 partitions and now have 3",
    ),
    "another topic of this name": (
        {"log": {TopicPartition("t", "id-two", p.partition): b for p, b in LOG.items()}},
        "deleted and created again",
    ),
}


@pytest.mark.parametrize("case", STALE, ids=str)
def test_what_makes_a_plan_stale_is_named(case: str) -> None:
    changed, why = STALE[case]
    seen = {"record": RECORD, "group": {}, "log": LOG} | changed
    found = stale(REWIND, PLAN, seen["record"], seen["group"], seen["log"])
    assert why in found if why else found == ""


def test_with_the_policy_earliest_a_log_that_moved_on_is_followed() -> None:
    log, lenient = LOG | {P0: LogBounds(21, 100)}, replace(REWIND, policy=Policy.EARLIEST)
    assert stale(lenient, PLAN, RECORD, {}, log) == ""
    assert {p: move.offset for p, move in lenient.commits(PLAN, log).items()} == {P0: 21}
    assert {p: move.offset for p, move in REWIND.commits(PLAN, log).items()} == {P0: 20}


def test_only_moves_that_the_next_start_would_obey_are_foreign() -> None:
    assert foreign_commits(STREAM, RECORD, {("t", 0): Committed(50), ("t", 1): planned(3, timeline=1)}) == []
    assert len(foreign_commits(STREAM, RECORD, {("t", 0): Committed(49), ("t", 1): planned(3)})) == 2


def test_positions_that_are_not_the_planned_ones_are_named() -> None:
    ends = {P0: 60, P1: 45}
    right = WorkRecord(3, {P0: 60, P1: 45}, {P0: 20, P1: 45})
    assert wrong_positions(REWIND, right, ends) == ""
    assert "timeline 4" in wrong_positions(REWIND, replace(right, timeline=4), ends)
    assert "begins at 21" in wrong_positions(REWIND, replace(right, first_offsets={P0: 21, P1: 45}), ends)
    assert "begins at 44" in wrong_positions(REWIND, replace(right, first_offsets={P0: 20, P1: 44}), ends)
    lenient = replace(REWIND, policy=Policy.EARLIEST)
    assert wrong_positions(lenient, replace(right, first_offsets={P0: 21, P1: 45}), ends) == ""


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"millrace_move": 2}', '{"millrace_move": 1, "stream": 1}'])
def test_metadata_that_is_no_move_is_none(text: str) -> None:
    assert PlannedMove.decode(text) is None


def test_a_millrace_that_knows_no_plans_takes_the_move_for_one_by_somebody() -> None:
    assert CommitMetadata.decode(planned(20).metadata) is None
