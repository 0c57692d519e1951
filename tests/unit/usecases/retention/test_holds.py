"""Holds are begun within a budget, wanted while they last, and end once no declared reader loses by that."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import cast

import pytest

from millrace.declarations import load_pipeline
from millrace.domain.alarms.extent import Extent
from millrace.domain.declaration.pipeline import Topic
from millrace.domain.groups.snapshots import Snapshot
from millrace.domain.plans.plan import PlanStatus
from millrace.domain.retention.cuts import narrowed
from millrace.domain.retention.settings import log_settings
from millrace.domain.topics.changes import ObservedTopic
from millrace.domain.topics.offsets import TopicPartition
from millrace.errors import IncompleteError, RefusedError, UnreachableError, UsageError
from millrace.ports.platform import Platform
from millrace.usecases.plans import running
from millrace.usecases.retention import holds
from millrace.usecases.topics import plan as topics
from support.declarations import RETURNS, SHOP, replace_once, valid_project
from support.fakes.logs import LogsPlatform, committed
from support.fakes.topics import DEFAULTS

TOPIC, KAFKA = "shop.purchases", "millrace_kafka"
GROUP, OTHER = "shop-team.purchases", "millrace.returns.items"
DAY = timedelta(days=1)
DAY_MS = 86_400_000
P = [TopicPartition(TOPIC, "id-1", number) for number in range(4)]
WEEK = str(7 * DAY_MS)
DECLARED = "retention: {time: 7d, size_per_partition: 2GiB}"
PLENTY = 1 << 40


@pytest.fixture
def fake(tmp_path: Path) -> LogsPlatform:
    """Four partitions, each with 60 records of six days ago and 40 of now; the topic keeps seven days."""
    made = LogsPlatform(valid_project(tmp_path))
    config = {"retention.ms": WEEK, "max.message.bytes": "1048576"}
    made.admin.topics = {
        TOPIC: topic(TOPIC, config),
        "shop.customers": topic("shop.customers", {"cleanup.policy": "compact"}),
    }
    for partition in P:
        made.log.fill(partition, 60, made.clock.now - 6 * DAY)
        made.log.fill(partition, 40, made.clock.now - timedelta(minutes=10))
    made.log.commits = {group: committed(dict.fromkeys(range(4), 100), TOPIC) for group in (GROUP, OTHER)}
    replace_once(tmp_path / SHOP, "replication: 3", "replication: 1")
    replace_once(tmp_path / SHOP, DECLARED, "retention: {time: 7d}")
    return made


def topic(name: str, config: dict[str, str]) -> ObservedTopic:
    defaults = {key: value for key, value in DEFAULTS.items() if key not in config}
    return ObservedTopic(name, "id-1", 4, 1, config, defaults)


def hold(
    fake: LogsPlatform, days: int = 1, name: str = TOPIC, budget: int | None = PLENTY, **more: object
) -> holds.Held:
    return holds.hold(
        cast(Platform, fake),
        name,
        days * DAY,
        actor="cli:ann",
        reason="wrong totals",
        budget_bytes=budget,
        now=fake.clock.now,
        **more,  # type: ignore[arg-type]
    )


def end_due(fake: LogsPlatform, declared: tuple[Topic, ...] | None = None) -> list[str]:
    own = load_pipeline(fake.root, "shop").topics if declared is None else declared
    return holds.end_due(cast(Platform, fake), KAFKA, own, actor="dag:shop.retention", now=fake.clock.now)


def later(fake: LogsPlatform, span: timedelta) -> None:
    fake.clock.pass_seconds(span.total_seconds())


def retention(fake: LogsPlatform, name: str = TOPIC) -> str | None:
    return fake.admin.topics[name].config.get("retention.ms")


def test_a_hold_raises_the_limits_within_its_budget_and_is_told(fake: LogsPlatform) -> None:
    made = hold(fake)
    assert int(retention(fake) or "") > 8 * DAY_MS
    assert fake.admin.topics[TOPIC].setting("retention.bytes") == "-1"
    assert made.need_bytes == pytest.approx(4 * 40 * 100 * 24 * 1.5, abs=5)
    [entry] = fake.logged
    assert (entry["action"], entry["subject"], entry["reason"]) == ("topic.hold", TOPIC, "wrong totals")
    assert entry["before"] == {"retention.ms": WEEK, "retention.bytes": "-1"}
    assert [each.topic for each in holds.list_holds(cast(Platform, fake))] == [TOPIC]


def test_it_is_refused_where_it_needs_more_than_it_may_have(fake: LogsPlatform) -> None:
    with pytest.raises(RefusedError, match=r"562 KiB .* more than its budget of 97.7 KiB"):
        hold(fake, budget=100_000)
    fake.log.free_bytes = 200_000
    with pytest.raises(RefusedError, match="half of the free 195 KiB"):
        hold(fake, budget=None)
    fake.log.free_bytes = None
    with pytest.raises(RefusedError, match="no broker reports the free space") as caught:
        hold(fake, budget=None)
    assert "--budget" in caught.value.next_step
    assert (fake.holds.rows, retention(fake), fake.logged) == ([], WEEK, [])
    fake.log.free_bytes = 2_000_000
    assert hold(fake, budget=None).budget_bytes == 1_000_000


def test_what_needs_nothing_needs_no_budget(fake: LogsPlatform) -> None:
    fake.log.fill(TopicPartition("shop.customers", "id-1", 0), 5, fake.clock.now)
    for number in (1, 2, 3):
        fake.log.records[TopicPartition("shop.customers", "id-1", number)] = []
    assert hold(fake, name="shop.customers", budget=None).budget_bytes is None


def test_only_topics_that_are_millraces_to_change_are_held(fake: LogsPlatform) -> None:
    with pytest.raises(UsageError):
        hold(fake, name="nobody.knows")
    with pytest.raises(RefusedError, match="manage: none"):
        hold(fake, name="returns.items")
    del fake.admin.topics[TOPIC]
    with pytest.raises(RefusedError, match="does not exist"):
        hold(fake)


def test_what_nobody_answers_for_is_not_taken_for_idle(fake: LogsPlatform) -> None:
    fake.log.leaderless = {P[1]}
    with pytest.raises(UnreachableError, match="3 of its 4 partitions"):
        hold(fake)
    assert fake.holds.rows == []


def test_held_twice_it_ends_at_the_later_time_and_what_was_before_is_not_forgotten(fake: LogsPlatform) -> None:
    first = hold(fake, 3)
    later(fake, timedelta(hours=1))
    second = hold(fake, 1)
    assert second.hold.until == first.hold.until
    third = hold(fake, 5)
    assert third.hold.until == fake.clock.now + 5 * DAY
    assert int(third.hold.after["retention.ms"]) > 12 * DAY_MS
    [row] = fake.holds.rows
    assert row.before == {"retention.ms": WEEK, "retention.bytes": None}


def test_two_at_once_are_not_at_it(fake: LogsPlatform) -> None:
    fake.holds.busy = True
    with pytest.raises(RefusedError, match="another command changes its hold"):
        hold(fake)


@pytest.mark.parametrize("call", ["set_config", "log"])
def test_killed_anywhere_it_is_run_again(fake: LogsPlatform, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as dying:
        if call == "log":
            dying.setattr(fake, "logged", None)  # no entry can be appended to it
        else:
            dying.setattr(fake.admin, "dies_at", call)
        with pytest.raises((UnreachableError, AttributeError)):
            hold(fake)
    made = hold(fake)
    assert retention(fake) == made.hold.after["retention.ms"]
    [row] = fake.holds.rows
    assert row.before["retention.ms"] == WEEK
    assert len(fake.logged) == 1


def plan_of(fake: LogsPlatform) -> tuple[tuple[str, str], ...]:
    found = topics.propose(cast(Platform, fake), load_pipeline(fake.root, "shop"), by="test")
    return tuple(pair for change in found.changes for pair in change.after)


def test_plans_leave_a_held_topic_alone_and_mend_its_drift(fake: LogsPlatform) -> None:
    made = hold(fake)
    assert plan_of(fake) == ()
    fake.admin.set_config({TOPIC: {"retention.ms": WEEK}})
    assert plan_of(fake) == (("config.retention.ms", made.hold.after["retention.ms"]),)
    replace_once(fake.root / SHOP, "retention: {time: 7d}", "retention: {time: 1d, size_per_partition: 1MiB}")
    assert plan_of(fake) == (("config.retention.ms", made.hold.after["retention.ms"]),)


def test_a_plan_made_before_a_hold_does_not_cut_what_is_held(fake: LogsPlatform) -> None:
    """The hold changes nothing of a topic without limits, so the plan is still true."""
    fake.admin.set_config({TOPIC: {"retention.ms": "-1"}})
    plan = topics.make_plan(cast(Platform, fake), load_pipeline(fake.root, "shop"), by="test")
    hold(fake)
    with pytest.raises(RefusedError, match=r"held until .* by cli:ann: wrong totals"):
        running.run(cast(Platform, fake), plan.id, actor="test")
    assert (fake.plans.get(plan.id).status, retention(fake)) == (PlanStatus.OPEN, "-1")
    holds.end(cast(Platform, fake), TOPIC, actor="cli:ann", reason="done with it", now=fake.clock.now)


def test_where_holds_cannot_be_read_nothing_is_cut_and_it_is_said(fake: LogsPlatform) -> None:
    fake.admin.set_config({TOPIC: {"retention.ms": str(30 * DAY_MS)}})
    assert plan_of(fake) == (("config.retention.ms", WEEK),)
    fake.holds.silent = True
    plan = topics.propose(cast(Platform, fake), load_pipeline(fake.root, "shop"), by="test")
    assert plan.changes == ()
    assert "retention.ms cannot be reduced now" in plan.refusals[0].what


def test_a_hold_whose_time_is_over_ends_with_what_is_declared(fake: LogsPlatform) -> None:
    hold(fake)
    assert end_due(fake) == []
    later(fake, DAY)
    assert end_due(fake) == [f"{TOPIC}: its hold has ended, it keeps retention.ms {WEEK}, retention.bytes -1"]
    assert (retention(fake), holds.list_holds(cast(Platform, fake))) == (WEEK, ())
    assert fake.holds.logged == [
        {
            "subject": TOPIC,
            "after": {"retention.ms": WEEK, "retention.bytes": "-1"},
            "outcome": "done",
            "reason": "its time is over",
        }
    ]
    assert end_due(fake) == []


def test_what_is_not_declared_is_as_before_by_the_brokers_default_too(fake: LogsPlatform) -> None:
    replace_once(fake.root / SHOP, "    retention: {time: 7d}\n", "")
    fake.admin.set_config({TOPIC: {"retention.ms": None}})
    hold(fake)
    assert retention(fake) is not None
    later(fake, DAY)
    end_due(fake)
    assert retention(fake) is None


def test_a_hold_waits_for_a_declared_reader_with_one_alarm(fake: LogsPlatform) -> None:
    fake.log.commits[OTHER] = committed({0: 10, 1: 100, 2: 100, 3: 100}, TOPIC)
    made = hold(fake, 3)
    later(fake, 3 * DAY)
    for _ in range(2):
        [line] = end_due(fake)
        assert f"stream returns.items would lose 50 records that it has not read: {TOPIC}/0[10, 60)" in line
    assert retention(fake) == made.hold.after["retention.ms"]
    [alarm] = fake.alarms.list()
    assert (alarm.kind, alarm.subject, alarm.extent) == ("topic.hold", f"{KAFKA}/{TOPIC}", Extent(50))
    assert "returns.items" in alarm.detail
    with pytest.raises(RefusedError, match=r"returns\.items would lose 50 records"):
        holds.end(cast(Platform, fake), TOPIC, actor="cli:ann", reason="enough", now=fake.clock.now)
    hold(fake)
    assert (fake.alarms.list(), end_due(fake)) == ((), [])  # it is no longer over
    later(fake, DAY)
    assert "returns.items" in end_due(fake)[0]
    fake.log.commits[OTHER] = committed(dict.fromkeys(range(4), 100), TOPIC)
    fake.log.commits[GROUP] = committed(dict.fromkeys(range(4), 100), TOPIC)
    assert "has ended" in end_due(fake)[0]
    assert (fake.alarms.list(), retention(fake)) == ((), WEEK)


def test_where_it_cannot_be_told_what_readers_would_lose_it_waits(fake: LogsPlatform) -> None:
    made = hold(fake)
    later(fake, DAY)
    fake.log.silent = True
    assert end_due(fake) == [f"{TOPIC}: its hold has expired but did not end: nobody answers"]
    assert retention(fake) == made.hold.after["retention.ms"]


@pytest.mark.parametrize("gone", [True, False])
def test_the_hold_of_a_topic_that_is_gone_or_was_made_again_just_ends(fake: LogsPlatform, gone: bool) -> None:
    hold(fake)
    if gone:
        del fake.admin.topics[TOPIC]
    else:
        fake.admin.recreate(TOPIC)
    before = dict(fake.admin.topics)
    later(fake, DAY)
    assert "its hold has ended: the topic" in end_due(fake)[0]
    assert fake.admin.topics == before
    assert [row.ended_at for row in fake.holds.rows] == [fake.clock.now]


def test_killed_while_it_ends_it_is_ended_again(fake: LogsPlatform) -> None:
    hold(fake)
    later(fake, DAY)
    fake.admin.dies_at = "set_config"
    assert "did not end" in end_due(fake)[0]
    fake.admin.dies_at = None
    assert "has ended" in end_due(fake)[0]
    assert (retention(fake), len(fake.holds.logged)) == (WEEK, 1)


def test_another_pipelines_hold_is_left_to_it_and_one_that_nobody_declares_is_not(fake: LogsPlatform) -> None:
    hold(fake)
    later(fake, DAY)
    returns = load_pipeline(fake.root, "returns").topics
    assert end_due(fake, returns) == []
    fake.holds.rows = [replace(row, topic="old.topic") for row in fake.holds.rows]
    assert end_due(fake, returns) == ["old.topic: its hold has ended: the topic is gone"]


def test_where_a_declaration_is_wrong_the_holds_of_its_topics_stay(fake: LogsPlatform) -> None:
    hold(fake)
    later(fake, DAY)
    returns = load_pipeline(fake.root, "returns").topics
    (fake.root / RETURNS).write_text("pipeline: returns\n")
    replace_once(fake.root / SHOP, "owner: commerce-data", "nonsense: 1")
    assert end_due(fake, returns) == []


def test_what_is_not_held_cannot_be_ended(fake: LogsPlatform) -> None:
    with pytest.raises(UsageError, match="not held"):
        holds.end(cast(Platform, fake), TOPIC, actor="cli:ann", reason="enough", now=fake.clock.now)


def provision(fake: LogsPlatform) -> None:
    with suppress(IncompleteError):  # for a setting that the fake does not know
        topics.provision(cast(Platform, fake), load_pipeline(fake.root, "shop"), "dag:shop.topics", "daily")


def test_a_hold_that_is_extended_never_shortens_what_was_declared_meanwhile(fake: LogsPlatform) -> None:
    hold(fake)
    replace_once(fake.root / SHOP, "retention: {time: 7d}", "retention: {time: 30d}")
    provision(fake)
    assert retention(fake) == str(30 * DAY_MS)
    hold(fake, 2)
    assert retention(fake) == str(30 * DAY_MS)


def test_a_hold_that_begins_while_a_cut_is_measured_stops_it(
    fake: LogsPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_once(fake.root / SHOP, "retention: {time: 7d}", "retention: {time: 1d}")
    plan = topics.make_plan(cast(Platform, fake), load_pipeline(fake.root, "shop"), by="test")
    snapshot, held = fake.log.snapshot, list[bool]()

    def and_hold(at: datetime) -> Snapshot:
        if not held:
            held.append(True)
            hold(fake)
        return snapshot(at)

    monkeypatch.setattr(fake.log, "snapshot", and_hold)
    with pytest.raises(RefusedError, match="is held until"):
        running.run(cast(Platform, fake), plan.id, actor="test", now=fake.clock.now)
    assert retention(fake) == fake.holds.rows[0].after["retention.ms"]


def test_what_somebody_made_longer_while_it_was_held_stays(fake: LogsPlatform) -> None:
    replace_once(fake.root / SHOP, "    retention: {time: 7d}\n", "")
    hold(fake)
    fake.admin.set_config({TOPIC: {"retention.ms": str(90 * DAY_MS)}})
    assert plan_of(fake) == ()
    later(fake, DAY)
    end_due(fake)
    assert retention(fake) == str(90 * DAY_MS)


def test_a_hold_waits_while_a_declaration_cannot_be_read(fake: LogsPlatform) -> None:
    """Its stream has not read everything, and nobody knows that there is one."""
    fake.log.commits[OTHER] = committed({0: 10, 1: 100, 2: 100, 3: 100}, TOPIC)
    hold(fake, 3)
    later(fake, 3 * DAY)
    (fake.root / RETURNS).write_text("pipeline: returns\n  <<<<<<< HEAD\n")
    [line] = end_due(fake)
    assert "unread records of the streams of include/pipelines/returns.yaml are unknown" in line
    assert retention(fake) != WEEK


def rename_connection(fake: LogsPlatform) -> None:
    for name in (SHOP, RETURNS):
        text = (fake.root / name).read_text().replace("kafka: millrace_kafka\n", "")
        (fake.root / name).write_text(text.replace("owner: commerce-data\n", "owner: commerce-data\nkafka: same\n"))


def test_readers_count_whatever_the_name_of_the_connection_to_their_cluster(fake: LogsPlatform) -> None:
    fake.log.commits[OTHER] = committed({0: 10, 1: 100, 2: 100, 3: 100}, TOPIC)
    hold(fake, 3)
    later(fake, 3 * DAY)
    rename_connection(fake)
    with pytest.raises(RefusedError, match=r"returns\.items"):
        holds.end(cast(Platform, fake), TOPIC, actor="cli:ann", reason="enough", now=fake.clock.now)


def test_what_the_cluster_does_not_take_is_not_held(fake: LogsPlatform) -> None:
    fake.admin.failing[TOPIC] = "TOPIC_AUTHORIZATION_FAILED: no Alter"
    with pytest.raises(RefusedError, match="no Alter"):
        hold(fake)
    assert (retention(fake), holds.list_holds(cast(Platform, fake))) == (WEEK, ())


def test_a_segment_may_take_for_ever(fake: LogsPlatform) -> None:
    fake.admin.set_config({TOPIC: {"segment.ms": str(2**63 - 1)}})
    assert int(hold(fake).hold.after["retention.ms"]) > 7 * DAY_MS


def test_no_policy_at_all_deletes_nothing_and_a_policy_that_deletes_is_a_cut(fake: LogsPlatform) -> None:
    before, after = log_settings({"cleanup.policy": ""}), log_settings({"cleanup.policy": "delete"})
    assert (before.deletes, before.compacts) == (False, False)
    assert narrowed(before, after) is not None
