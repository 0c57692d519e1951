"""Offsets of a log, asked of the leaders of its partitions: all of them, or those that answer."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from confluent_kafka import OFFSET_INVALID, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo, OffsetSpec

from millrace.adapters.kafka.admin_client import ANSWER_MARGIN_SECONDS

_LEADER_WITHIN_SECONDS = 10.0
_ASKED_EVERY_SECONDS = 0.2


@dataclass(slots=True)
class Answers:
    """Answers of leaders.

    Attributes:
        found: the answers, by partition.
        failed: why a partition got no answer.
    """

    found: dict[TopicPartition, ListOffsetsResultInfo] = field(default_factory=dict)
    failed: dict[TopicPartition, KafkaError] = field(default_factory=dict)


def list_offsets(
    admin: AdminClient, asked: Mapping[TopicPartition, OffsetSpec], isolation: IsolationLevel, seconds: float
) -> dict[TopicPartition, ListOffsetsResultInfo]:
    """Return the answer for every partition, in one request a broker.

    A broker that is not the leader yet, or no longer, is asked again: librdkafka gives that error back, where the Java
    client asks again itself. It comes after a leader moved, and for a moment after a topic was made.

    Args:
        admin: the client.
        asked: what is asked of each partition.
        isolation: whether records of open transactions count.
        seconds: how long one request may take.

    Raises:
        KafkaException: a partition got no answer; the text names it.
    """
    answers, deadline = Answers(), time.monotonic() + _LEADER_WITHIN_SECONDS
    todo = dict(asked)
    while todo:
        moved = _ask(admin, todo, isolation, seconds, answers)
        failed = answers.failed or (moved if time.monotonic() > deadline else {})
        for entry, reason in failed.items():
            raise KafkaException(KafkaError(reason.code(), f"{entry.topic}/{entry.partition}: {reason.str()}"))
        todo = _again(asked, moved)
    return answers.found


def list_answered_offsets(
    admin: AdminClient, asked: Mapping[TopicPartition, OffsetSpec], isolation: IsolationLevel, seconds: float
) -> Answers:
    """Return the answers that come in time, and name the partitions without one. Nothing is raised.

    All requests share one deadline: brokers that do not answer cost `seconds`, however many partitions they lead.

    Args:
        admin: the client.
        asked: what is asked of each partition.
        isolation: whether records of open transactions count.
        seconds: how long all of it may take.
    """
    answers, deadline = Answers(), time.monotonic() + seconds
    todo = dict(asked)
    while todo:
        moved = _ask(admin, todo, isolation, max(0.1, deadline - time.monotonic()), answers)
        if time.monotonic() + _ASKED_EVERY_SECONDS >= deadline:
            answers.failed |= moved
            break
        todo = _again(asked, moved)
    return answers


def _ask(
    admin: AdminClient,
    todo: Mapping[TopicPartition, OffsetSpec],
    isolation: IsolationLevel,
    seconds: float,
    answers: Answers,
) -> dict[TopicPartition, KafkaError]:
    """Ask once and add to the answers; return the partitions whose leader moved."""
    moved: dict[TopicPartition, KafkaError] = {}
    deadline = time.monotonic() + seconds + ANSWER_MARGIN_SECONDS
    for entry, future in admin.list_offsets(todo, isolation_level=isolation, request_timeout=seconds).items():
        try:
            answer = future.result(max(0.0, deadline - time.monotonic()))
            if answer.offset == OFFSET_INVALID:  # librdkafka's answer for a broker that was silent, without an error
                answers.failed[entry] = KafkaError(KafkaError._TIMED_OUT, "it did not answer in time")
            else:
                answers.found[entry] = answer
        except KafkaException as error:
            reason = error.args[0]
            (moved if reason.code() == KafkaError.NOT_LEADER_FOR_PARTITION else answers.failed)[entry] = reason
        except TimeoutError:
            answers.failed[entry] = KafkaError(KafkaError._TIMED_OUT, "the client gave no answer")
    return moved


def _again(
    asked: Mapping[TopicPartition, OffsetSpec], moved: Mapping[TopicPartition, KafkaError]
) -> dict[TopicPartition, OffsetSpec]:
    """Return what to ask once more, after a pause."""
    if moved:
        time.sleep(_ASKED_EVERY_SECONDS)
    return {entry: asked[entry] for entry in moved}
