"""How long and how much a held topic keeps, by rules that hold for any limits, load and time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.domain.declaration.pipeline import Cleanup, Retention, Topic
from millrace.domain.retention.holds import (
    ROOM,
    Asked,
    Hold,
    HoldPlan,
    Load,
    below,
    budget_of,
    in_force_after,
    least_kept,
    plan_hold,
    settled,
)
from millrace.domain.topics.changes import SET_CONFIG, ObservedTopic, longer_limit, plan_topics
from support.fakes.topics import DEFAULTS

NOW = datetime(2026, 11, 25, 12, tzinfo=UTC)
DAY = timedelta(days=1)
DAY_MS = 86_400_000
SETTINGS = {**DEFAULTS, "segment.ms": "3600000", "segment.bytes": "1000000"}
LOADS = {0: Load(1_000, 2.0), 1: Load(5_000, 1.0)}


def asked(keep_for: timedelta = DAY, now: datetime = NOW, topic_id: str = "id-1") -> Asked:
    return Asked("millrace_kafka", "orders", topic_id, keep_for, now, "cli:ann", "wrong totals")


def planned(
    own: dict[str, str], *, known: Hold | None = None, keep_for: timedelta = DAY, now: datetime = NOW
) -> HoldPlan:
    return plan_hold(
        asked(keep_for, now),
        own=own,
        in_force={**SETTINGS, **own},
        loads=LOADS,
        replication=3,
        known=known,
    )


def test_limits_are_raised_by_the_time_a_segment_and_a_sweep_and_by_what_comes_in() -> None:
    plan = planned({"retention.bytes": "4000"})
    assert plan.hold.before == {"retention.ms": None, "retention.bytes": "4000"}
    assert plan.hold.found == {"retention.ms": str(7 * DAY_MS), "retention.bytes": "4000"}
    assert plan.hold.after == {
        "retention.ms": str(8 * DAY_MS + 3_600_000 + 300_000),
        "retention.bytes": str(4_000 + int(86_400 * 2 * ROOM) + 1_000_000),
    }
    assert plan.need_bytes == 86_400 * 3 * ROOM * 3
    assert plan.hold.until == NOW + DAY


def test_what_is_without_limit_stays_so_and_needs_nothing() -> None:
    plan = planned({"retention.ms": "-1"})
    assert (plan.hold.after, plan.need_bytes) == ({"retention.ms": "-1", "retention.bytes": "-1"}, 0)
    compacted = planned({"cleanup.policy": "compact"})
    assert (compacted.hold.after, compacted.need_bytes) == (compacted.hold.found, 0)


def test_longer_than_kafka_counts_is_as_long_as_it_counts() -> None:
    plan = planned({"retention.ms": str(2**63 - 1)}, keep_for=timedelta(days=900_000))
    assert plan.hold.after["retention.ms"] == "-1" or int(plan.hold.after["retention.ms"]) <= 2**63 - 1


@given(
    limit_hours=st.integers(1, 1000),
    first=st.integers(1, 200),
    later=st.integers(0, 300),
    second=st.integers(1, 200),
)
def test_an_extended_hold_keeps_what_was_there_at_either_time(
    limit_hours: int, first: int, later: int, second: int
) -> None:
    """A record is there, at most so old as its limit, when either is asked for: it is not too old before the end."""
    own = {"retention.ms": str(limit_hours * 3_600_000)}
    one = planned(own, keep_for=timedelta(hours=first))
    now = NOW + timedelta(hours=later)
    both = plan_hold(
        asked(timedelta(hours=second), now),
        own=dict(one.hold.after),
        in_force={**SETTINGS, **one.hold.after},
        loads=LOADS,
        replication=1,
        known=one.hold,
    ).hold
    assert (both.before, both.began_at) == (one.hold.before, NOW)
    assert both.until == max(one.hold.until, now + timedelta(hours=second))
    kept = timedelta(milliseconds=int(both.after["retention.ms"]))
    oldest = NOW - timedelta(hours=limit_hours)
    assert both.until - oldest <= kept
    assert int(both.after["retention.bytes"]) == -1


@given(
    limit=st.integers(0, 10_000),
    size=st.integers(0, 20_000),
    rate=st.integers(0, 50),
    seconds=st.integers(1, 2_000),
    burst=st.floats(0, ROOM),
)
def test_by_size_what_is_there_stays_while_no_more_comes_in_than_was_allowed_for(
    limit: int, size: int, rate: int, seconds: int, burst: float
) -> None:
    own = {"retention.ms": "-1", "retention.bytes": str(limit)}
    plan = plan_hold(
        asked(timedelta(seconds=seconds)),
        own=own,
        in_force={**SETTINGS, **own},
        loads={0: Load(size, rate)},
        replication=1,
    )
    assert size + rate * burst * seconds <= int(plan.hold.after["retention.bytes"])
    assert plan.need_bytes >= rate * burst * seconds - 1e-6


def test_the_budget_is_half_of_what_is_free_where_none_is_given() -> None:
    assert [budget_of(5, 100), budget_of(None, 100), budget_of(None, None)] == [5, 50, None]


@pytest.mark.parametrize(
    ("one", "other", "longer"),
    [("-1", "5", "-1"), ("5", "-1", "-1"), ("5", "6", "6"), ("7", "6", "7"), ("-1", "-1", "-1"), ("x", "6", "x")],
)
def test_without_limit_is_the_longest(one: str, other: str, longer: str) -> None:
    assert longer_limit(one, other) == longer


def test_afterwards_it_is_as_before_or_as_declared_where_that_is_longer() -> None:
    hold = planned({"retention.bytes": "4000"}).hold
    after = settled(hold, {"cleanup.policy": "delete"})
    assert after == {"retention.ms": None, "retention.bytes": "4000"}
    assert in_force_after(hold, after) == hold.found
    assert settled(hold, {"retention.ms": "-1", "retention.bytes": "5000"}) == {
        "retention.ms": "-1",
        "retention.bytes": "5000",
    }
    assert settled(hold, {"retention.ms": "5", "retention.bytes": "10"}) == after  # that is a cut, for a person


def test_what_keeps_less_than_held_is_found() -> None:
    hold = planned({}).hold
    assert below(hold, {}, {"retention.ms": str(7 * DAY_MS)}) == ["retention.ms"]
    assert below(hold, {}, {"retention.bytes": "10"}) == ["retention.bytes"]
    assert below(hold, {}, {"retention.ms": str(30 * DAY_MS), "retention.bytes": "-1"}) == []
    assert below(hold, {"cleanup.policy": "compact"}, {"cleanup.policy": "compact,delete"}) == ["cleanup.policy"]
    assert below(hold, {"cleanup.policy": "delete"}, {"cleanup.policy": "delete,compact"}) == []


def observed(config: dict[str, str]) -> ObservedTopic:
    return ObservedTopic("orders", "id-1", 1, 1, config, {k: v for k, v in DEFAULTS.items() if k not in config})


def changes(declared: Topic, config: dict[str, str], hold: Hold | None, no_cuts: str = "") -> tuple[object, ...]:
    least = least_kept([hold], {"orders": "id-1"}) if hold else None
    found = plan_topics([declared], {"orders": observed(config)}, least=least, no_cuts=no_cuts)
    assert all(change.action == SET_CONFIG for change in found.changes)
    return tuple(sorted(pair for change in found.changes for pair in change.after)), len(found.refusals)


@pytest.mark.parametrize(
    ("retention", "config", "wanted"),
    [
        (None, {"retention.ms": "HELD"}, {}),
        (None, {"retention.ms": "5"}, {"retention.ms": "HELD"}),  # drift
        (Retention(DAY), {"retention.ms": "HELD"}, {}),
        (Retention(DAY, 1000), {"retention.ms": "HELD"}, {}),  # it had no limit of size
        (Retention(30 * DAY), {"retention.ms": "HELD"}, {"retention.ms": str(30 * DAY_MS)}),
        (Retention(None), {"retention.ms": "HELD"}, {"retention.ms": "-1"}),
        (None, {"retention.ms": "-1"}, {}),  # somebody made it longer
    ],
)
def test_while_it_is_held_a_topic_keeps_what_its_hold_says_or_longer(
    retention: Retention | None, config: dict[str, str], wanted: dict[str, str]
) -> None:
    hold = planned({}).hold
    held = hold.after["retention.ms"]
    real = {key: held if value == "HELD" else value for key, value in config.items()}
    found = tuple((f"config.{key}", held if value == "HELD" else value) for key, value in wanted.items())
    assert changes(Topic("orders", "shop", retention=retention), real, hold) == (found, 0)


def test_while_it_is_held_a_topic_does_not_begin_to_delete() -> None:
    hold = planned({"cleanup.policy": "compact"}).hold
    declared = Topic("orders", "shop", cleanup=Cleanup.DELETE, retention=Retention(DAY))
    assert changes(declared, {"cleanup.policy": "compact"}, hold) == ((), 0)


def test_a_hold_of_a_former_topic_of_that_name_holds_nothing() -> None:
    assert least_kept([planned({}).hold], {"orders": "id-2"}) == {}
    assert least_kept([planned({}).hold], {}) == {}


def test_where_nobody_knows_what_is_held_no_topic_is_made_to_keep_less_and_all_else_is_as_before() -> None:
    declared = Topic("orders", "shop", retention=Retention(DAY), config=(("segment.ms", "5"),))
    assert changes(declared, {}, None, "it is away") == ((("config.segment.ms", "5"),), 1)
    longer = Topic("orders", "shop", retention=Retention(30 * DAY))
    assert changes(longer, {}, None, "it is away") == ((("config.retention.ms", str(30 * DAY_MS)),), 0)
