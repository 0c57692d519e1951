"""The driver as the one static member of its consumer group.

It joins with a `group.instance.id`, is assigned every partition, pauses them all and never fetches. So the broker
itself refuses to reset the group of a running stream, fences an older driver's commits, keeps the offsets from
expiring, and shows client id and host to every tool (KIP-345).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import structlog
from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import AdminClient

from millrace.domain.groups import CommitMetadata
from millrace.domain.offsets import TopicPartition
from millrace.errors import FencedError, UnreachableError
from millrace.settings import KafkaSettings

SESSION_TIMEOUT = timedelta(seconds=10)
_JOIN_WITHIN = timedelta(seconds=45)
_COMMIT_WITHIN = timedelta(seconds=30)
_ANSWER_WITHIN = timedelta(seconds=5)
_POLL_SECONDS = 0.05
_LOOK_SECONDS = 2.0

# A consumer's poll tells of a fenced instance by _FATAL alone, without the fatal mark and without the first reason.
_FENCED = {KafkaError.FENCED_INSTANCE_ID, KafkaError._FENCED, KafkaError._FATAL}
_NOT_A_MEMBER = {KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION}
_PASSING = {
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError._WAIT_COORD,
    KafkaError._ALL_BROKERS_DOWN,
}

log = structlog.get_logger()


class MembershipLostError(FencedError):
    """The group no longer counts this driver as its member: it must stop reading and look again."""


@dataclass(slots=True)
class _CommitRequest:
    """One commit, handed to the thread that polls and answered by it."""

    offsets: list[ClientTopicPartition]
    sent: bool = False
    answered: bool = False
    error: KafkaError | None = None

    def matches(self, partitions: list[ClientTopicPartition]) -> bool:
        """Whether an answer is to this request and not to a former one that was given up."""
        return {(p.topic, p.partition, p.offset) for p in partitions} == {
            (p.topic, p.partition, p.offset) for p in self.offsets
        }


class GroupMember:
    """Holds the group for one running stream.

    One thread alone touches the client: a commit from a second thread can wait for ever for one that polls.

    Guarantees: after `join` returns, an older instance's commits are refused by the broker.
    Does not guarantee: that membership lasts; `lost` says when it ended, and `commit` then fails.

    Args:
        settings: the cluster's Connection.
        stream: PIPELINE.STREAM, also the member's `group.instance.id`.
        group: the consumer group.
        epoch: written into each commit.
    """

    def __init__(self, settings: KafkaSettings, *, stream: str, group: str, epoch: int) -> None:
        self._where = settings.bootstrap_servers
        self._stream = stream
        self._group = group
        self._epoch = epoch
        self._assigned: set[tuple[str, int]] = set()
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._lost: str | None = None
        self._request: _CommitRequest | None = None
        self._consumer = Consumer(
            {
                **settings.librdkafka,
                "group.id": group,
                "group.instance.id": stream,
                "client.id": f"millrace.{stream}#{epoch}",
                "session.timeout.ms": int(SESSION_TIMEOUT.total_seconds() * 1000),
                "heartbeat.interval.ms": 2500,
                "partition.assignment.strategy": "range",
                "enable.auto.commit": False,
                "on_commit": self._on_commit,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "latest",
                "topic.metadata.refresh.interval.ms": 10_000,
            }
        )
        self._admin = AdminClient({**settings.librdkafka, "client.id": f"millrace.{stream}#{epoch}", "log_level": 0})
        self._thread = threading.Thread(target=self._poll, name="group-member", daemon=True)

    @property
    def lost(self) -> str | None:
        """Why the membership ended, or None while it holds."""
        return self._lost

    def join(self, partitions: Sequence[TopicPartition]) -> None:
        """Join the group and wait until this member holds it for all of `partitions`.

        Raises:
            MembershipLostError: a newer instance took the membership over.
            UnreachableError: the group did not settle in time.
        """
        wanted = {(p.topic, p.partition) for p in partitions}
        self._consumer.subscribe(
            sorted({topic for topic, _ in wanted}),
            on_assign=self._on_assign,
            on_revoke=self._on_revoke,
            on_lost=self._on_lost,
        )
        self._thread.start()
        deadline = time.monotonic() + _JOIN_WITHIN.total_seconds()
        while not self._has_joined(wanted):
            if time.monotonic() > deadline:
                missing = ", ".join(f"{topic}/{partition}" for topic, partition in sorted(wanted - self._assigned))
                raise UnreachableError(
                    f"the group did not assign {missing} within {_JOIN_WITHIN.total_seconds():.0f} s",
                    where=f"group {self._group} at {self._where}",
                    next_step=f"`kafka-consumer-groups --describe --members --group {self._group}` shows other "
                    "members: a stream must be alone in its group",
                )

    def _has_joined(self, wanted: set[tuple[str, int]]) -> bool:
        """Whether this member holds the group: every partition is assigned to it, or nobody else is there.

        A static member that comes back within its session is handed its former assignment as it was (KIP-345), without
        partitions made meanwhile; alone in the group, it needs no assignment of them to commit them.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._lost is not None or wanted <= self._assigned, timeout=_LOOK_SECONDS)
            self.check()
            if wanted <= self._assigned or not self._assigned:
                return wanted <= self._assigned
        return self._members() == 1

    def _members(self) -> int:
        answer = self._admin.describe_consumer_groups([self._group], request_timeout=_ANSWER_WITHIN.total_seconds())
        try:
            return len(answer[self._group].result().members)
        except KafkaException as error:
            log.info("group_not_described", error=error.args[0].str())
            return 0

    def check(self) -> None:
        """Raise `MembershipLostError` where the membership has ended."""
        if self._lost:
            raise MembershipLostError(
                self._lost,
                where=f"group {self._group}",
                next_step="`kafka-consumer-groups --describe --members` shows who is in the group now",
            )

    def commit(self, positions: Mapping[TopicPartition, int], timeline: int) -> None:
        """Commit the next offset to read of each partition, with metadata that names this stream and epoch.

        Waits out rebalances and a moving coordinator.

        Raises:
            MembershipLostError: the broker refused the commit as that of no member, or of a fenced one.
            UnreachableError: the coordinator did not answer in time.
        """
        offsets = [
            ClientTopicPartition(
                p.topic,
                p.partition,
                offset,
                CommitMetadata(self._stream, p.topic_id, timeline, self._epoch, offset).encode(),
            )
            for p, offset in positions.items()
        ]
        if not offsets:
            return
        deadline = time.monotonic() + _COMMIT_WITHIN.total_seconds()
        while True:
            error = self._try_commit(offsets)
            if error is None:
                return
            self._raise_if_lost(error)
            if error.code() not in _PASSING or time.monotonic() > deadline:
                raise UnreachableError(
                    f"the group's commit failed: {error.str()}",
                    where=f"group {self._group} at {self._where}",
                    next_step="the record of work is ahead of the group; the next start commits again",
                )
            log.info("commit_waits", error=error.str())
            self._closing.wait(0.5)

    def close(self) -> None:
        """Stop polling and leave. A static member stays listed until its session times out."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=5)
        self._consumer.close()

    def _try_commit(self, offsets: list[ClientTopicPartition]) -> KafkaError | None:
        """Have the polling thread commit once; None where the broker took it."""
        request = _CommitRequest(offsets)
        with self._changed:
            self._request = request
            self._changed.wait_for(
                lambda: request.answered or self._lost is not None, timeout=_ANSWER_WITHIN.total_seconds()
            )
            self._request = None
            return request.error if request.answered else KafkaError(KafkaError._TIMED_OUT)

    def _send_request(self) -> None:
        request = self._request
        if request is None or request.sent:
            return
        request.sent = True
        try:
            self._consumer.commit(offsets=request.offsets, asynchronous=True)
        except KafkaException as error:
            self._answer(request, error.args[0])

    def _on_commit(self, error: KafkaError | None, partitions: list[ClientTopicPartition]) -> None:
        request = self._request
        if request is not None and request.matches(partitions):
            self._answer(request, error or next((entry.error for entry in partitions if entry.error), None))

    def _answer(self, request: _CommitRequest, error: KafkaError | None) -> None:
        with self._changed:
            request.answered, request.error = True, error
            self._changed.notify_all()

    def _raise_if_lost(self, error: KafkaError) -> None:
        if error.code() in _FENCED | _NOT_A_MEMBER:
            self._mark_lost(error.str())
        self.check()

    def _poll(self) -> None:
        while not self._closing.is_set():
            self._send_request()
            message = self._consumer.poll(_POLL_SECONDS)
            error = message.error() if message is not None else None
            if error is None:
                continue
            if error.code() in _FENCED or error.fatal():
                self._mark_lost(error.str())
                return
            log.info("group_member_waits", error=error.str())

    def _on_assign(self, consumer: Consumer, partitions: list[ClientTopicPartition]) -> None:
        # With positions of their own the partitions need no look-up of the group's commits.
        consumer.assign([ClientTopicPartition(p.topic, p.partition, OFFSET_END) for p in partitions])
        consumer.pause(partitions)
        assigned = {(p.topic, p.partition) for p in partitions}
        with self._changed:
            taken = self._assigned - assigned
            self._assigned = assigned
            self._changed.notify_all()
        if taken:
            names = ", ".join(f"{topic}/{partition}" for topic, partition in sorted(taken))
            self._mark_lost(f"another member of the group was assigned {names}")

    def _on_lost(self, consumer: Consumer, partitions: list[ClientTopicPartition]) -> None:
        # The group may have been reset while the session was gone: to rejoin and commit would undo that. And by
        # itself the client would rejoin under the same instance id, which fences whoever took the place meanwhile.
        consumer.unsubscribe()
        self._mark_lost("the session expired")

    def _on_revoke(self, consumer: Consumer, partitions: list[ClientTopicPartition]) -> None:
        log.info("group_rebalances", partitions=len(partitions))

    def _mark_lost(self, why: str) -> None:
        with self._changed:
            self._lost = self._lost or why
            self._changed.notify_all()
