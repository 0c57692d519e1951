"""Offsets of a log, asked of the leaders of its partitions."""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo, OffsetSpec

_LEADER_WITHIN_SECONDS = 10.0
_ASKED_EVERY_SECONDS = 0.2


def list_offsets(
    admin: AdminClient, asked: Mapping[TopicPartition, OffsetSpec], isolation: IsolationLevel, seconds: float
) -> dict[TopicPartition, ListOffsetsResultInfo]:
    """What the leaders answer, in one request a broker.

    A broker that is not the leader yet, or no longer, is asked again: librdkafka gives that error back, where the Java
    client asks again itself. It comes after a leader moved, and for a moment after a topic was made.

    Args:
        admin: the client.
        asked: what is asked of each partition.
        isolation: whether records of open transactions count.
        seconds: how long one request may take.

    Raises:
        KafkaException: a partition was not answered for; its text names it.
    """
    found: dict[TopicPartition, ListOffsetsResultInfo] = {}
    todo, deadline = dict(asked), time.monotonic() + _LEADER_WITHIN_SECONDS
    while todo:
        answers = admin.list_offsets(todo, isolation_level=isolation, request_timeout=seconds)
        moved = {}
        for entry, future in answers.items():
            try:
                found[entry] = future.result(seconds + 5)
            except KafkaException as error:
                reason = error.args[0]
                if reason.code() != KafkaError.NOT_LEADER_FOR_PARTITION or time.monotonic() > deadline:
                    where = f"{entry.topic}/{entry.partition}: {reason.str()}"
                    raise KafkaException(KafkaError(reason.code(), where)) from error
                moved[entry] = todo[entry]
            except TimeoutError as error:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "the client gave no answer")) from error
        todo = moved
        if todo:
            time.sleep(_ASKED_EVERY_SECONDS)
    return found
