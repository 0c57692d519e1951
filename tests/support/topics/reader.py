"""What is committed in a topic, read by kafka-python: Millrace itself reads no records with it."""

from __future__ import annotations

from contextlib import closing
from typing import NamedTuple

from kafka import KafkaConsumer, TopicPartition

from support.waiting import Deadline, eventually, in_time

POLL_MILLISECONDS = 1000


class CommittedRecord(NamedTuple):
    """One record; `timestamp` in milliseconds since 1970, -1 where it has none."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


def committed_records(bootstrap_servers: str, topic: str) -> list[CommittedRecord]:
    """Every committed record that a topic holds now, each partition's in order.

    Raises:
        DeadlinePassedError: the next records do not come.
    """
    found: list[CommittedRecord] = []
    with closing(
        KafkaConsumer(bootstrap_servers=bootstrap_servers, isolation_level="read_committed", enable_auto_commit=False)
    ) as consumer:
        numbers = in_time(
            lambda: consumer.partitions_for_topic(topic), within=Deadline.METADATA, what=f"the partitions of {topic}"
        )
        assert numbers, f"there is no topic {topic}"
        partitions = [TopicPartition(topic, number) for number in sorted(numbers)]
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(partitions)

        def at_end() -> bool:
            # without a time limit it may wait for ever; with one it is None until the beginning is known
            return all(
                (consumer.position(partition, timeout_ms=POLL_MILLISECONDS) or 0) >= ends[partition]
                for partition in partitions
            )

        def went_on() -> bool:
            came = [record for batch in consumer.poll(POLL_MILLISECONDS).values() for record in batch]
            found.extend(CommittedRecord(one.partition, one.offset, one.timestamp, one.key, one.value) for one in came)
            return bool(came) or at_end()

        while not at_end():
            eventually(went_on, within=Deadline.METADATA, what=f"more records of {topic}")
    return found
