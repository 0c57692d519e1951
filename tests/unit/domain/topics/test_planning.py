"""Planning topics: what changes, what is refused, what is left alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.domain.declaration.pipeline import Cleanup, Manage, Retention, Topic
from millrace.domain.plans.plan import Change, Standing
from millrace.domain.topics import changes as topics
from millrace.domain.topics.changes import ObservedTopic, plan_topics, same_setting, standing, wanted_config
from support.fakes.topics import DEFAULTS, FakeTopicAdmin

DECLARED = Topic("shop.purchases", "shop", partitions=4, replication=1, cleanup=Cleanup.DELETE)
THERE = ObservedTopic("shop.purchases", "id-1", 4, 1, {}, DEFAULTS)


def changes(declared: Topic, observed: ObservedTopic) -> dict[str, Change]:
    return {change.action: change for change in plan_topics([declared], {observed.name: observed}).changes}


def with_retention(**limits: object) -> Topic:
    return replace(DECLARED, retention=Retention(**limits))  # type: ignore[arg-type]


def test_a_missing_topic_is_created_with_all_that_is_declared() -> None:
    declared = replace(with_retention(time=timedelta(days=7)), config=(("segment.ms", "60000"),))
    (change,) = plan_topics([declared], {}).changes
    assert (change.action, change.subject, change.unsafe) == (topics.CREATE, "shop.purchases", "")
    assert topics.new_topic(change) == topics.NewTopic(
        "shop.purchases",
        4,
        1,
        {
            "cleanup.policy": "delete",
            "retention.ms": "604800000",
            "retention.bytes": "-1",
            "segment.ms": "60000",
        },
    )


def test_what_is_not_declared_is_left_to_the_broker() -> None:
    (change,) = plan_topics([Topic("t", "p")], {}).changes
    assert topics.new_topic(change) == topics.NewTopic("t", -1, -1, {})


def test_a_topic_as_declared_needs_nothing() -> None:
    assert plan_topics([DECLARED], {THERE.name: THERE}) == topics.TopicDifference((), ())


def test_more_partitions_are_added_by_a_person_who_was_told_that_keys_move() -> None:
    change = changes(replace(DECLARED, partitions=6), THERE)[topics.ADD_PARTITIONS]
    assert (change.before, change.after) == ((("partitions", "4"), ("topic_id", "id-1")), (("partitions", "6"),))
    assert "keys move" in change.unsafe


@pytest.mark.parametrize(
    ("declared", "observed", "what", "way_out"),
    [
        (replace(DECLARED, partitions=2), THERE, "cannot remove partitions", "partitions: 4"),
        (replace(DECLARED, replication=3), THERE, "does not move replicas", "replication: 1"),
        (replace(DECLARED, config=(("no.such", "1"),)), THERE, "topic setting no.such is unknown", "remove it"),
        (replace(DECLARED, manage=Manage.NONE), None, "does not exist", "manage: full"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_way_out(
    declared: Topic, observed: ObservedTopic | None, what: str, way_out: str
) -> None:
    difference = plan_topics([declared], {observed.name: observed} if observed else {})
    (refusal,) = difference.refusals
    assert difference.changes == ()
    assert what in refusal.what
    assert way_out in refusal.next_step


def test_a_topic_the_cluster_will_not_describe_is_refused_and_never_created() -> None:
    difference = plan_topics([DECLARED], {}, {"shop.purchases": "TOPIC_AUTHORIZATION_FAILED"})
    assert difference.changes == ()
    assert "TOPIC_AUTHORIZATION_FAILED" in difference.refusals[0].what


def test_a_topic_that_is_only_read_is_never_changed() -> None:
    declared = replace(with_retention(time=timedelta(hours=1)), manage=Manage.NONE, partitions=9, replication=3)
    assert plan_topics([declared], {THERE.name: THERE}) == topics.TopicDifference((), ())


def test_topics_and_settings_nobody_declared_are_left_alone() -> None:
    strange = replace(THERE, name="somebody.elses")
    tuned = replace(THERE, config={"max.message.bytes": "5", "compression.type": "zstd"})
    assert plan_topics([DECLARED], {tuned.name: tuned, strange.name: strange}).changes == ()


@pytest.mark.parametrize(
    ("current", "limit", "safe"),
    [
        ("86400000", timedelta(days=2), True),
        ("86400000", None, True),
        ("86400000", timedelta(hours=1), False),
        ("-1", timedelta(days=999), False),
        ("rubbish", timedelta(days=999), False),
    ],
)
def test_only_longer_retention_is_a_machines_to_set(current: str, limit: timedelta | None, safe: bool) -> None:
    observed = replace(THERE, config={"retention.ms": current})
    change = changes(with_retention(time=limit), observed)[topics.SET_CONFIG]
    assert (change.unsafe == "") is safe
    assert "deletes records" in change.unsafe or safe


def test_another_cleanup_policy_waits_for_a_person() -> None:
    change = changes(replace(DECLARED, cleanup=Cleanup.COMPACT), THERE)[topics.SET_CONFIG]
    assert "decides which records are deleted" in change.unsafe


def test_a_dangerous_setting_does_not_hold_a_harmless_one_back() -> None:
    declared = replace(with_retention(time=timedelta(hours=1)), config=(("segment.ms", "5000"),))
    harmless, dangerous = sorted(plan_topics([declared], {THERE.name: THERE}).changes, key=lambda c: c.unsafe)
    assert topics.settings_of(harmless.after) == {"segment.ms": "5000"}
    assert topics.settings_of(dangerous.after) == {"retention.ms": "3600000"}


@pytest.mark.parametrize(
    ("key", "one", "other", "same"),
    [
        ("cleanup.policy", "compact,delete", "delete, compact", True),
        ("cleanup.policy", "compact", "compact,delete", False),
        ("min.cleanable.dirty.ratio", "0.5", "0.50", True),
        ("retention.ms", "0100", "100", True),
        ("retention.ms", "100", "-100", False),
        ("preallocate", "True", "true", True),
        ("compression.type", "zstd", "ZSTD", False),
        ("segment.ms", " 5 ", "5", True),
    ],
)
def test_equal_values_are_equal_however_spelled(key: str, one: str, other: str, same: bool) -> None:
    assert same_setting(key, one, other) is same


# A change against what is there now


def test_a_create_is_pending_then_done_and_moved_when_another_made_it_differently() -> None:
    (change,) = plan_topics([DECLARED], {}).changes
    assert standing(change, None) is Standing.PENDING
    assert standing(change, THERE) is Standing.DONE
    assert standing(change, replace(THERE, partitions=5)) is Standing.MOVED


def test_growth_is_pending_then_done_and_moved_when_anything_else() -> None:
    change = changes(replace(DECLARED, partitions=6), THERE)[topics.ADD_PARTITIONS]
    assert standing(change, THERE) is Standing.PENDING
    assert standing(change, replace(THERE, partitions=6)) is Standing.DONE
    assert standing(change, replace(THERE, partitions=5)) is Standing.MOVED
    assert standing(change, replace(THERE, topic_id="id-2")) is Standing.MOVED
    assert standing(change, replace(THERE, topic_id="id-2", partitions=6)) is Standing.MOVED
    assert standing(change, None) is Standing.MOVED


def test_a_setting_is_moved_when_it_is_neither_what_was_seen_nor_what_is_wanted() -> None:
    change = changes(replace(DECLARED, config=(("segment.ms", "5000"),)), THERE)[topics.SET_CONFIG]
    assert standing(change, THERE) is Standing.PENDING
    assert standing(change, replace(THERE, config={"segment.ms": "5000"})) is Standing.DONE
    assert standing(change, replace(THERE, config={"segment.ms": "7"})) is Standing.MOVED
    assert standing(change, replace(THERE, config={"max.message.bytes": "7"})) is Standing.PENDING


# Rules that hold for every declaration and every cluster

NAMES = st.sampled_from(["a", "b", "c", "d"])
LIMITS = st.builds(
    Retention,
    time=st.none() | st.timedeltas(timedelta(seconds=1), timedelta(days=400)),
    size_per_partition_bytes=st.none() | st.integers(1, 10**12),
)
TOPICS = st.builds(
    Topic,
    name=NAMES,
    pipeline=st.just("p"),
    manage=st.sampled_from(Manage),
    partitions=st.none() | st.integers(1, 9),
    replication=st.none() | st.integers(1, 3),
    cleanup=st.none() | st.sampled_from(Cleanup),
    retention=st.none() | LIMITS,
    config=st.dictionaries(st.sampled_from(["segment.ms", "preallocate", "unknown.key"]), st.sampled_from("12"))
    .map(lambda config: tuple(sorted(config.items()))),
)  # fmt: skip
DECLARATIONS = st.lists(TOPICS, unique_by=lambda topic: topic.name, max_size=4)
OBSERVED = st.lists(
    st.builds(
        ObservedTopic,
        name=st.sampled_from(["a", "b", "c", "elsewhere"]),
        topic_id=st.just("id"),
        partitions=st.integers(1, 9),
        replication=st.integers(1, 3),
        config=st.dictionaries(st.sampled_from(["segment.ms", "retention.ms", "cleanup.policy"]), st.just("1")),
        defaults=st.just(DEFAULTS),
    ),
    unique_by=lambda topic: topic.name,
)


def carried_out(declared: list[Topic], admin: FakeTopicAdmin) -> dict[str, str | None]:
    """Every change of a plan made on a cluster; what failed, by topic."""
    answers: dict[str, str | None] = {}
    for change in plan_topics(declared, admin.topics).changes:
        if change.action == topics.CREATE:
            answer = admin.create([topics.new_topic(change)])
        elif change.action == topics.ADD_PARTITIONS:
            answer = admin.add_partitions({change.subject: topics.partition_count(change)})
        else:
            answer = admin.set_config({change.subject: topics.settings_of(change.after)})
        answers |= {name: error for name, error in answer.items() if error}
    return answers


@given(DECLARATIONS, OBSERVED)
def test_once_a_plan_is_carried_out_the_next_one_is_empty(declared: list[Topic], there: list[ObservedTopic]) -> None:
    admin = FakeTopicAdmin(there)
    failed = carried_out(declared, admin)
    again = plan_topics(declared, admin.topics)
    assert {change.subject for change in again.changes} == set(failed)
    assert all("unknown.key" in str(error) for error in failed.values())


@given(DECLARATIONS, OBSERVED)
def test_a_plan_never_deletes_shrinks_or_touches_what_it_may_not(
    declared: list[Topic], there: list[ObservedTopic]
) -> None:
    admin = FakeTopicAdmin(there)
    carried_out(declared, admin)
    wanted = {topic.name: topic for topic in declared if topic.manage is Manage.FULL}
    for before in there:
        after = admin.topics[before.name]
        assert (after.topic_id, after.replication) == (before.topic_id, before.replication)
        assert after.partitions >= before.partitions
        touched = {key for key in {*before.config, *after.config} if before.config.get(key) != after.config.get(key)}
        assert touched <= set(wanted_config(wanted[before.name]) if before.name in wanted else ())


@given(DECLARATIONS, OBSERVED, st.randoms())
def test_a_plan_does_not_depend_on_any_order(declared: list[Topic], there: list[ObservedTopic], random) -> None:  # type: ignore[no-untyped-def]
    plan = plan_topics(declared, {topic.name: topic for topic in there})
    random.shuffle(declared)
    random.shuffle(there)
    assert plan_topics(declared, {topic.name: topic for topic in there}) == plan


@given(DECLARATIONS, OBSERVED)
def test_a_fresh_plan_is_pending_in_every_change(declared: list[Topic], there: list[ObservedTopic]) -> None:
    observed = {topic.name: topic for topic in there}
    for change in plan_topics(declared, observed).changes:
        assert standing(change, observed.get(change.subject)) is Standing.PENDING


@pytest.mark.parametrize("there", ["shop_purchases", "shop.purchases_", None])
def test_a_topic_that_kafka_cannot_hold_beside_another_is_refused(there: str | None) -> None:
    found = plan_topics([DECLARED], {}, names=[there] if there else [])
    if there != "shop_purchases":
        assert ([change.subject for change in found.changes], found.refusals) == (["shop.purchases"], ())
        return
    (refusal,) = found.refusals
    assert (found.changes, refusal.subject) == ((), "shop.purchases")
    assert "collides with the topic shop_purchases, which exists" in refusal.what


@pytest.mark.parametrize("turned", [False, True])
def test_of_two_new_topics_that_are_alike_one_is_made_and_the_other_refused(turned: bool) -> None:
    declared = [replace(DECLARED, name=name) for name in ("a.b_c", "a_b.c", "d")]
    found = plan_topics(declared[::-1] if turned else declared, {})
    assert [change.subject for change in found.changes] == ["a.b_c", "d"]
    assert [(each.subject, "would be created too" in each.what) for each in found.refusals] == [("a_b.c", True)]


def test_a_topic_that_is_not_made_here_collides_with_what_is_made() -> None:
    theirs = replace(DECLARED, name="shop_purchases", manage=Manage.NONE)
    found = plan_topics([DECLARED, theirs], {theirs.name: replace(THERE, name=theirs.name)})
    assert found.changes == ()
    assert [each.subject for each in found.refusals] == ["shop.purchases"]


def test_topics_that_are_there_already_are_left_alone_whatever_is_beside_them() -> None:
    found = plan_topics([replace(DECLARED, partitions=6)], {THERE.name: THERE}, names=["shop_purchases", THERE.name])
    assert ([change.action for change in found.changes], found.refusals) == ([topics.ADD_PARTITIONS], ())
