"""kafka-python's consumer, as tests use it."""

from __future__ import annotations

from typing import Any

from support.waiting import Deadline


def joined_by_poll(consumer: Any, most: int = 500) -> dict[Any, Any]:
    """The first records of a consumer that has a group to join; none where they did not come in time.

    In one poll: where a poll runs out of time between the client's SyncGroup and the answer, the client forgets what it
    was assigned and takes itself for joined ever after (3.0.12; two of twelve with polls of 200 ms on a busy machine).

    Args:
        consumer: a `kafka.KafkaConsumer` of a topic with records, read from the earliest.
        most: how many records.
    """
    return consumer.poll(timeout_ms=int(Deadline.SESSION.seconds * 1000), max_records=most)
