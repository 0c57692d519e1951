"""Three brokers of which one dies or hangs: what only it knows is not known, all else is right, at one time-out."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ClientTopicPartition

from millrace.adapters.kafka_snapshot import ClusterReader
from millrace.adapters.kafka_topics import KafkaTopicAdmin
from millrace.domain.group_status import Status, judge
from millrace.domain.groups import Committed
from millrace.domain.snapshots import Snapshot, history_of
from millrace.domain.topics import NewTopic
from millrace.embedded.stack import Stack
from support.three_brokers import ThreeBrokers, three_brokers
from support.waiting import Deadline, eventually

pytestmark = pytest.mark.full

TIMEOUT = timedelta(seconds=4)
PARTITIONS = 6
GROUPS = 12


@pytest.fixture(scope="module")
def cluster(kafka: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeBrokers]:
    with three_brokers(kafka, Path(tmp_path_factory.mktemp("brokers"))) as made:
        settings = made.settings
        admin = KafkaTopicAdmin(settings)
        assert admin.create([NewTopic("orders", PARTITIONS, 1, {})]) == {"orders": None}
        eventually(lambda: admin.observe(["orders"]), within=Deadline.METADATA, what="the new topic")
        producer = Producer({**settings.librdkafka})
        for number in range(PARTITIONS * 5):
            producer.produce("orders", value=b"v", partition=number % PARTITIONS)
        assert producer.flush(Deadline.SESSION.seconds) == 0
        for number in range(GROUPS):
            consumer = Consumer({**settings.librdkafka, "group.id": f"g{number}"})
            offsets = [ClientTopicPartition("orders", partition, 3) for partition in range(PARTITIONS)]

            def commit(consumer: Consumer = consumer, offsets: list[ClientTopicPartition] = offsets) -> bool:
                consumer.commit(offsets=offsets, asynchronous=False)
                return True

            eventually(commit, within=Deadline.SESSION, what="a first commit", ignoring=(Exception,))
            consumer.close()
        yield made


def take(cluster: ThreeBrokers) -> Snapshot:
    with ClusterReader(cluster.settings, timeout=TIMEOUT) as reader:
        return reader.take()


def known(seen: Snapshot) -> set[int]:
    return {number for number, log in enumerate(seen.topics["orders"].logs) if log}


def right(seen: Snapshot) -> bool:
    """Whether all that is known is as it was made."""
    logs = [log for log in seen.topics["orders"].logs if log]
    groups = [group for group in seen.groups.values() if group.commits is not None]
    everything = {("orders", number): Committed(3) for number in range(PARTITIONS)}
    return all((log.start, log.end) == (0, 5) for log in logs) and all(one.commits == everything for one in groups)


def whole(cluster: ThreeBrokers) -> Snapshot | None:
    seen = take(cluster)
    found = len(known(seen)) == PARTITIONS and len(seen.groups) == GROUPS and not seen.faults
    return seen if found else None


@pytest.mark.parametrize("how", ["killed", "hangs"])
def test_a_broker_that_is_away_costs_one_time_out_and_what_it_alone_knows(cluster: ThreeBrokers, how: str) -> None:
    before = eventually(lambda: whole(cluster), within=Deadline.SERVER, what="the whole cluster")
    assert right(before)
    victim = cluster.brokers[3]
    if how == "killed":
        victim.kill()
    else:
        victim.hang()
    try:
        with_it_listed = take(cluster)  # it is named in the metadata as long as its session lasts
        assert with_it_listed.seconds < 2 * TIMEOUT.total_seconds(), "one time-out, not one a round"
        cluster.wait_for(2)
        after = take(cluster)
        for seen in (with_it_listed, after):
            lost = set(range(PARTITIONS)) - known(seen)
            assert len(lost) == PARTITIONS / 3
            assert right(seen)
            assert 0 < len(seen.groups) < GROUPS
            assert seen.faults
            group = next(iter(seen.groups.values()))
            reading = judge(group, seen, history_of(seen))
            assert {one.partition[1] for one in reading.partitions if one.lag is None} == lost
            assert all(one.status is Status.UNKNOWN for one in reading.partitions if one.partition[1] in lost)
        assert any("no leader" in fault for fault in after.faults)
        assert any("coordinators are not known" in fault for fault in after.faults)
    finally:
        if how == "killed":
            victim.start()
        else:
            victim.go_on()
        cluster.wait_for(3)
    again = eventually(lambda: whole(cluster), within=Deadline.SERVER, what="the whole cluster again")
    assert right(again)
