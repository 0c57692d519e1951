"""The stream over the real coordinator's log: who read is told, and the stream does not feed itself."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta

import psycopg
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from millrace.adapters.kafka.topics import KafkaTopicAdmin
from millrace.domain.topics.changes import NewTopic
from millrace.embedded.stack import Stack
from millrace.errors import UsageError
from millrace.runtime.formats.coordinator_log import OFFSETS_TOPIC
from millrace.settings import Settings, open_settings
from millrace.usecases.activity.active import active
from millrace.wiring import open_platform
from support.streams.apps import Driven
from support.topics.new import create_topics
from support.waiting import Deadline, eventually

STREAM = "activity.groups"
GROUP = f"millrace.{STREAM}"


@pytest.fixture
def settings(kafka: Stack, postgres: Stack) -> Iterator[Settings]:
    """The run's project, in which the stream looks every second."""
    declaration = kafka.root / "include" / "pipelines" / "activity.yaml"
    shipped = declaration.read_text()
    assert shipped.count("trigger: 60s") == 1
    declaration.write_text(shipped.replace("trigger: 60s", "trigger: 1s"))
    yield open_settings(kafka.root)
    declaration.write_text(shipped)


@contextmanager
def reads(settings: Settings, topic: str, **more: object) -> Iterator[None]:
    """A foreign consumer of both partitions commits and stays."""
    config = {**settings.kafka().librdkafka, "group.id": f"g-{topic}", "enable.auto.commit": False, **more}
    with closing(Consumer(config)) as consumer:
        consumer.subscribe([topic])
        eventually(
            lambda: (consumer.poll(0.1), len(consumer.assignment()))[1] == 2,
            within=Deadline.SESSION,
            what="the assignment",
        )
        consumer.commit(offsets=[TopicPartition(topic, 0, 2), TopicPartition(topic, 1, 1)], asynchronous=False)
        yield


def new_topic(settings: Settings) -> str:
    name = f"act-{uuid.uuid4().hex[:8]}"
    create_topics(KafkaTopicAdmin(settings.kafka()), NewTopic(name, 2, 1, {}))
    producer = Producer({**settings.kafka().librdkafka})
    for number in range(6):
        producer.produce(name, value=b"x", partition=number % 2)
    assert producer.flush(Deadline.METADATA.seconds) == 0
    return name


def at_rest(settings: Settings) -> bool:
    """Whether all is on record of the partition of the stream's own group, and the group was not committed for it.

    What was left out is its own last commit: to commit that would have been the next record.
    """
    record = dict(progress(settings, "partition, next_offset"))
    with closing(Consumer({**settings.kafka().librdkafka, "group.id": GROUP})) as reader:
        places = [TopicPartition(OFFSETS_TOPIC, number) for number in record]
        committed = {place.partition: place.offset for place in reader.committed(places, Deadline.METADATA.seconds)}
        behind = [number for number in record if 0 <= committed[number] < record[number]]
        if len(behind) != 1:
            return False
        _, end = reader.get_watermark_offsets(TopicPartition(OFFSETS_TOPIC, behind[0]), Deadline.METADATA.seconds)
        return bool(end == record[behind[0]])


def progress(settings: Settings, columns: str) -> list[tuple[int, ...]]:
    with psycopg.connect(**settings.postgres("millrace_sink").keywords()) as connection:
        query = f"SELECT DISTINCT {columns} FROM millrace.progress WHERE stream = %s ORDER BY 1"
        return connection.execute(query, (STREAM,)).fetchall()


@pytest.mark.full
def test_who_reads_is_told_and_the_stream_comes_to_rest(settings: Settings) -> None:
    platform, driven = open_platform(settings), Driven(settings.root, STREAM)
    topic, day = new_topic(settings), timedelta(days=1)
    refused: list[str] = []

    def told() -> list[tuple[object, ...]]:
        try:
            found = active(platform, day, f"g-{topic}").readings
        except UsageError as error:
            refused.append(error.next_step or "")
            return []
        return [(one.client_id, one.host, one.instance, dict(one.offsets)) for one in found if one.client_id]

    assert told() == []
    assert all("streams start activity.groups" in next_step for next_step in refused)
    with driven.running():
        for number, protocol in enumerate(("classic", "consumer")):
            topic = new_topic(settings)
            with reads(settings, topic, **{"client.id": f"till-{number}", "group.protocol": protocol}):
                driven.until(told, f"the {protocol} consumer to be told")
                assert told() == [(f"till-{number}", "127.0.0.1", None, {0: 2, 1: 1})]
        driven.until(lambda: at_rest(settings), "the stream to leave its own commits alone")
    timeline = progress(settings, "timeline")
    with driven.running():
        topic = new_topic(settings)
        with reads(settings, topic, **{"client.id": "till-9"}):
            driven.until(told, "a consumer after the restart")
        driven.until(lambda: at_rest(settings), "the stream to rest again")
    assert progress(settings, "timeline") == timeline
