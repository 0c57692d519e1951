"""One suite for every `TopicAdmin`: the fake keeps the real broker's promises."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping
from functools import partial

import pytest
from confluent_kafka.admin import AdminClient

from millrace.adapters.kafka import topics as kafka_topics
from millrace.adapters.kafka.topics import KafkaTopicAdmin, _batches
from millrace.domain.topics.changes import NewTopic
from millrace.errors import TopicAccessError, UnreachableError
from millrace.ports.kafka import TopicAdmin
from millrace.settings import KafkaSettings
from support.fakes.topics import FakeTopicAdmin
from support.topics.new import create_topics
from support.waiting import Deadline, at_once, eventually

Name = Callable[[str], str]


@pytest.fixture(params=["fake", "real"])
def admin(request: pytest.FixtureRequest) -> TopicAdmin:
    if request.param == "fake":
        return FakeTopicAdmin()
    return KafkaTopicAdmin(request.getfixturevalue("kafka").settings().kafka())


@pytest.fixture
def name() -> Name:
    run = uuid.uuid4().hex[:8]
    return lambda text: f"contract-{run}-{text}"


def test_a_cluster_keeps_its_id(admin: TopicAdmin) -> None:
    assert admin.cluster_id()
    assert admin.cluster_id() == admin.cluster_id()


def test_threads_that_use_it_first_at_the_same_time_share_one_client(
    kafka,  # type: ignore[no-untyped-def]
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made_clients = []

    def slowly(*arguments: object, **more: object) -> AdminClient:
        made_clients.append(arguments)
        both.wait(1) if len(made_clients) == 1 else both.set()
        return AdminClient(*arguments, **more)

    both = threading.Event()
    monkeypatch.setattr(kafka_topics, "AdminClient", slowly)
    admin = KafkaTopicAdmin(kafka.settings().kafka())
    ids = at_once([admin.cluster_id] * 4, within=Deadline.SERVER, what="the cluster's id")
    assert (len(set(ids)), len(made_clients)) == (1, 1)


def test_a_created_topic_is_observed_as_it_was_asked_for(admin: TopicAdmin, name: Name) -> None:
    create_topics(admin, NewTopic(name("a"), 3, 1, {"retention.ms": "1000000"}))
    topic = admin.observe([name("a"), name("absent")])[name("a")]
    assert (topic.name, topic.partitions, topic.replication) == (name("a"), 3, 1)
    assert topic.config == {"retention.ms": "1000000"}
    assert topic.topic_id
    assert topic.defaults["cleanup.policy"] == "delete"
    assert "retention.ms" not in topic.defaults


def test_absent_topics_are_simply_not_there(admin: TopicAdmin, name: Name) -> None:
    assert admin.observe([name("absent")]) == {}
    assert admin.observe([]) == {}


def test_the_brokers_defaults_fill_what_is_not_said(admin: TopicAdmin, name: Name) -> None:
    create_topics(admin, NewTopic(name("a"), -1, -1, {}))
    topic = admin.observe([name("a")])[name("a")]
    assert topic.partitions >= 1
    assert topic.replication >= 1
    assert topic.config == {}


def test_one_bad_topic_fails_alone_when_created(admin: TopicAdmin, name: Name) -> None:
    create_topics(admin, NewTopic(name("there"), 1, 1, {}))
    answers = admin.create(
        [
            NewTopic(name("there"), 1, 1, {}),
            NewTopic(name("odd"), 1, 1, {"no.such.setting": "1"}),
            NewTopic(name("good"), 1, 1, {}),
        ]
    )
    assert answers[name("good")] is None
    assert "ALREADY_EXISTS" in str(answers[name("there")])
    assert "no.such.setting" in str(answers[name("odd")])
    eventually(
        lambda: set(admin.observe([name("odd"), name("good")])) == {name("good")},
        within=Deadline.METADATA,
        what="the good topic alone",
    )


def test_partitions_grow_and_never_shrink(admin: TopicAdmin, name: Name) -> None:
    create_topics(admin, NewTopic(name("a"), 2, 1, {}), NewTopic(name("b"), 3, 1, {}))
    answers = admin.add_partitions({name("a"): 5, name("b"): 2, name("absent"): 2})
    assert answers[name("a")] is None
    assert "INVALID_PARTITIONS" in str(answers[name("b")])
    assert "UNKNOWN_TOPIC" in str(answers[name("absent")])
    eventually(
        lambda: admin.observe([name("a")])[name("a")].partitions == 5, within=Deadline.METADATA, what="5 partitions"
    )
    assert admin.observe([name("b")])[name("b")].partitions == 3


def test_a_key_without_a_value_follows_the_brokers_default_again(admin: TopicAdmin, name: Name) -> None:
    create_topics(admin, NewTopic(name("a"), 1, 1, {"retention.ms": "1000000", "segment.ms": "5000"}))
    assert admin.set_config({name("a"): {"retention.ms": None}}) == {name("a"): None}
    topic = eventually(
        lambda: (found := admin.observe([name("a")])[name("a")]).config == {"segment.ms": "5000"} and found,
        within=Deadline.METADATA,
        what="the default",
    )
    assert topic.defaults["retention.ms"] == "604800000"


def test_setting_a_key_leaves_the_others_and_fails_alone(admin: TopicAdmin, name: Name) -> None:
    create_topics(admin, NewTopic(name("a"), 1, 1, {"segment.ms": "100000"}), NewTopic(name("b"), 1, 1, {}))
    answers = admin.set_config(
        {
            name("a"): {"retention.ms": "2000000"},
            name("b"): {"no.such.setting": "1"},
            name("absent"): {"retention.ms": "1"},
        }
    )
    assert answers[name("a")] is None
    assert "no.such.setting" in str(answers[name("b")])
    assert "UNKNOWN_TOPIC" in str(answers[name("absent")])
    wanted = {"segment.ms": "100000", "retention.ms": "2000000"}
    eventually(
        lambda: admin.observe([name("a")])[name("a")].config == wanted,
        within=Deadline.METADATA,
        what="the configuration",
    )


def test_many_topics_are_created_and_observed_together(admin: TopicAdmin, name: Name) -> None:
    topics = [NewTopic(name(f"t{number}"), 1, 1, {}) for number in range(60)]
    create_topics(admin, *topics)
    assert set(admin.observe([topic.name for topic in topics])) == {topic.name for topic in topics}


# What only a real cluster, or its absence, can show


def test_a_topic_the_broker_will_not_describe_is_named(kafka, name: Name) -> None:  # type: ignore[no-untyped-def]
    admin = KafkaTopicAdmin(kafka.settings().kafka())
    create_topics(admin, NewTopic(name("a"), 1, 1, {}))
    with pytest.raises(TopicAccessError) as caught:
        admin.observe([name("a"), "not a name"])
    assert set(caught.value.failures) == {"not a name"}


def test_a_cluster_that_is_not_there_is_named_with_the_reason() -> None:
    calls: Mapping[str, Callable[[KafkaTopicAdmin], object]] = {
        "cluster_id": lambda admin: admin.cluster_id(),
        "observe": lambda admin: admin.observe(["a"]),
        "create": lambda admin: admin.create([NewTopic("a", 1, 1, {})]),
        "add_partitions": lambda admin: admin.add_partitions({"a": 2}),
        "set_config": lambda admin: admin.set_config({"a": {"retention.ms": "1"}}),
    }

    def said(call: Callable[[KafkaTopicAdmin], object]) -> tuple[str, bool]:
        admin = KafkaTopicAdmin(KafkaSettings({"bootstrap.servers": "127.0.0.1:1"}), timeout_seconds=1)
        with pytest.raises(UnreachableError) as caught:
            call(admin)
        return caught.value.where, "Connection refused" in str(caught.value)

    answers = at_once([partial(said, call) for call in calls.values()], within=Deadline.METADATA, what="refusals")
    assert dict(zip(calls, answers, strict=True)) == dict.fromkeys(calls, ("127.0.0.1:1", True))


def test_writes_are_cut_below_the_controllers_limit_and_a_giant_goes_alone() -> None:
    sizes = [4000, 4000, 4000, 20_000, 1]
    batches = list(_batches(sizes, lambda size: size, 9_000))
    assert batches == [[4000, 4000], [4000], [20_000], [1]]


def test_a_topic_that_differs_in_dots_only_is_among_the_names_and_cannot_be_made(admin: TopicAdmin, name: Name) -> None:
    there, alike = name("a_b"), name("a.b")
    create_topics(admin, NewTopic(there, 1, 1, {}))
    assert there in admin.names()
    assert alike not in admin.names()
    outcome = admin.create([NewTopic(alike, 1, 1, {})])[alike]
    assert outcome is not None
    assert "collides with existing topic" in outcome
