"""Plans as values: their one text, their hash, and when they are no longer true."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.domain.plans.plan import Change, Plan, PlanKind, Refusal, Standing, canonical, facts, parse, still_true

NOW = datetime(2026, 5, 1, 12, 0, 0, 123456, tzinfo=UTC)
TEXT = st.text(max_size=12)
FACTS = st.dictionaries(TEXT, TEXT, max_size=4).map(facts)
PLANS = st.builds(
    Plan,
    kind=st.sampled_from(PlanKind),
    target=TEXT,
    cluster_id=TEXT,
    connection=TEXT,
    changes=st.lists(st.builds(Change, TEXT, TEXT, FACTS, FACTS, TEXT), max_size=4).map(tuple),
    refusals=st.lists(st.builds(Refusal, TEXT, TEXT, TEXT), max_size=3).map(tuple),
    created=st.datetimes(timezones=st.just(UTC)),
    expires=st.datetimes(timezones=st.just(UTC)),
    by=TEXT,
)
GROWTH = Change(
    "topic.add_partitions", "a", (("partitions", "2"), ("topic_id", "x")), (("partitions", "4"),), "keys move"
)
SEGMENT = Change("topic.set_config", "b", (("config.segment.ms", "1"),), (("config.segment.ms", "2"),))
PLAN = Plan(
    PlanKind.TOPICS, "shop", "c1", "millrace_kafka", (GROWTH, SEGMENT), (), NOW, NOW + timedelta(days=1), "cli:a"
)
PENDING, DONE, MOVED = Standing.PENDING, Standing.DONE, Standing.MOVED


@given(PLANS)
def test_a_plan_comes_back_from_its_text_equal_with_the_same_hash(plan: Plan) -> None:
    again = parse(canonical(plan))
    assert again == plan
    assert (again.hash, again.id) == (plan.hash, plan.id)
    assert canonical(again) == canonical(plan)


@given(PLANS)
def test_a_store_that_reorders_the_text_does_not_change_the_plan(plan: Plan) -> None:
    reordered = json.dumps(dict(reversed(list(json.loads(canonical(plan)).items()))), indent=2)
    assert parse(reordered).hash == plan.hash


@given(PLANS, PLANS)
def test_different_plans_have_different_hashes(one: Plan, other: Plan) -> None:
    assert (one == other) is (one.hash == other.hash)


def test_every_field_is_part_of_the_hash() -> None:
    others = [
        replace(PLAN, target="x"),
        replace(PLAN, cluster_id="x"),
        replace(PLAN, connection="x"),
        replace(PLAN, changes=(SEGMENT,)),
        replace(PLAN, refusals=(Refusal("a", "b", "c"),)),
        replace(PLAN, created=NOW - timedelta(microseconds=1)),
        replace(PLAN, expires=NOW),
        replace(PLAN, by="x"),
    ]
    assert len({plan.hash for plan in [PLAN, *others]}) == 9


def test_what_was_seen_is_told_by_subject() -> None:
    assert PLAN.seen == {"a": (("partitions", "2"), ("topic_id", "x")), "b": (("config.segment.ms", "1"),)}


def test_two_plans_say_the_same_whoever_made_them_and_when() -> None:
    assert PLAN.says_the_same(replace(PLAN, by="cli:b", created=NOW - timedelta(1), expires=NOW))
    assert not PLAN.says_the_same(replace(PLAN, changes=(SEGMENT,)))


@pytest.mark.parametrize("kind", PlanKind)
def test_what_plans_are_about_tells_them_apart_where_their_kind_says_so(kind: PlanKind) -> None:
    plan, other = replace(PLAN, kind=kind), replace(PLAN, kind=kind, about=(("only", "a rule"),))
    assert kind.told_by_about == (kind is PlanKind.REDRIVE)
    assert plan.says_the_same(other) == (not kind.told_by_about)
    assert (PlanKind(kind.value), str(kind)) == (kind, kind.value)


def test_the_action_log_has_the_given_reason_or_the_plans_with_its_id() -> None:
    meant = replace(PLAN, reason="mended")
    assert meant.because("again") == f"again (plan {meant.id})"
    assert meant.because() == f"mended (plan {meant.id})"
    assert replace(PLAN, reason="").because() == f"plan {replace(PLAN, reason='').id}"


@pytest.mark.parametrize(
    ("standings", "cluster", "later", "resumed", "reason"),
    [
        ((PENDING, PENDING), "c1", timedelta(hours=23), False, ""),
        ((PENDING, PENDING), "c2", timedelta(0), False, "leads to c2"),
        ((PENDING, PENDING), "c1", timedelta(days=1), False, "expired"),
        ((DONE, PENDING), "c1", timedelta(0), False, "has changed: a"),
        ((PENDING, MOVED), "c1", timedelta(0), False, "has changed: b"),
        ((MOVED, DONE), "c1", timedelta(0), False, "has changed: a, b"),
        ((DONE, PENDING), "c1", timedelta(days=2), True, ""),
        ((DONE, MOVED), "c1", timedelta(0), True, "has changed: b"),
        ((DONE, DONE), "c2", timedelta(0), True, "leads to c2"),
    ],
)
def test_when_a_plan_is_still_true(
    standings: tuple[Standing, ...], cluster: str, later: timedelta, resumed: bool, reason: str
) -> None:
    answer = still_true(PLAN, standings, cluster_id=cluster, now=NOW + later, resumed=resumed)
    assert reason in answer
    assert bool(answer) is bool(reason)


@pytest.mark.parametrize("text", ["[]", "{}", '{"version": 2}', '{"version": 1}', '{"version": 1, "kind": "x"}'])
def test_what_is_not_a_plan_is_not_read_as_one(text: str) -> None:
    with pytest.raises(ValueError, match=r"(?i)plan"):
        parse(text)
