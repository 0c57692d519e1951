"""The driver as the one static member of its consumer group.

It joins with a `group.instance.id`, is assigned every partition, pauses them all and never fetches. So the broker
itself refuses to reset the group of a running stream, fences an older driver's commits, keeps the offsets from
expiring, and shows client id and host to every tool (KIP-345).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import structlog
from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import AdminClient

from millrace.adapters.kafka.admin_client import ANSWER_MARGIN_SECONDS
from millrace.domain.groups.commits import Committed, in_parts
from millrace.domain.topics.offsets import TopicPartition
from millrace.errors import Code, FencedError, UnreachableError
from millrace.settings import KafkaSettings

SESSION_TIMEOUT = timedelta(seconds=10)
_JOIN_WITHIN = timedelta(seconds=45)
_COMMIT_WITHIN = timedelta(seconds=30)
_ANSWER_WITHIN = timedelta(seconds=5)
_POLL_SECONDS = 0.05
_LOOK_SECONDS = 2.0

# A consumer's poll tells of a fenced instance by _FATAL alone, without the fatal mark and without the first reason.
_FENCED = {KafkaError.FENCED_INSTANCE_ID, KafkaError._FENCED, KafkaError._FATAL}
_UNSEEN = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED}
_PASSING = {
    KafkaError.ILLEGAL_GENERATION,  # the group rebalanced meanwhile; a client that is no member any more says so itself
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
    """One commit, handed to the thread that polls and answered by it.

    Attributes:
        offsets: what is committed.
        sent_in: the number of the assignment in which it was sent; 0: it was not sent yet.
        answered: the broker took or refused it.
        error: why it was refused.
    """

    offsets: list[ClientTopicPartition]
    sent_in: int = 0
    answered: bool = False
    error: KafkaError | None = None

    def matches(self, partitions: list[ClientTopicPartition]) -> bool:
        """Whether an answer is to this request and not to a former one that was given up."""
        return self.sent_in > 0 and {(p.topic, p.partition, p.offset) for p in partitions} == {
            (p.topic, p.partition, p.offset) for p in self.offsets
        }


class GroupMember:
    """Holds the group for one running app.

    One thread alone touches the client: a commit from a second thread can wait for ever for one that polls.

    Guarantees: after `join` returns, an older instance's commits are refused by the broker.
    Does not guarantee: that membership lasts; `lost` says when it ended, and `commit` then fails. A member whose
    topics may go, and that joins anew in a rebalance, passes for the same one. It may commit over a reset made then.

    Args:
        settings: the cluster's Connection.
        stream: PIPELINE.APP, also the member's `group.instance.id`.
        group: the consumer group.
        epoch: part of the client's name.
        topics_may_go: whether the app goes on without topics that are deleted: partitions that are taken away are
            then another member's doing only where the group has one.
    """

    def __init__(
        self, settings: KafkaSettings, *, stream: str, group: str, epoch: int, topics_may_go: bool = False
    ) -> None:
        self._where = settings.bootstrap_servers
        self._group = group
        self._topics_may_go = topics_may_go
        self._assigned: set[tuple[str, int]] = set()
        self._in_group = False  # between an assignment and the next rebalance; the thread that polls sets it
        self._assignments = 0
        self._member_id = ""
        self._topics: set[str] = set()
        self._unknown: set[str] = set()  # topics that are not there, or that this user may not describe
        self._taken: set[tuple[str, int]] = set()  # partitions that went to nobody knows whom yet
        self._ask_at = 0.0
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

    def join(self, partitions: Sequence[TopicPartition], topics: Collection[str] | None = None) -> None:
        """Join the group and wait until this member holds it for all of `partitions`.

        Args:
            partitions: may be empty where `topics` are given.
            topics: those to hold the group for. One that is not there, or may not be described, is held from when it
                can be seen. Where none can, the client joins later by itself, and `commit` waits for that. None: those
                of `partitions`.

        Raises:
            MembershipLostError: a newer instance took the membership over.
            UnreachableError: the group did not settle in time.
        """
        wanted = {(p.topic, p.partition) for p in partitions}
        self._topics = set(topics) if topics is not None else {topic for topic, _ in wanted}
        self._consumer.subscribe(
            sorted(self._topics),
            on_assign=self._on_assign,
            on_revoke=self._on_revoke,
            on_lost=self._on_lost,
        )
        self._thread.start()
        deadline = time.monotonic() + _JOIN_WITHIN.total_seconds()
        while not self._has_joined(wanted):
            if time.monotonic() > deadline:
                missing = _names(wanted - self._assigned) or "anything"
                raise UnreachableError(
                    f"the group did not assign {missing} within {_JOIN_WITHIN.total_seconds():.0f} s",
                    where=f"group {self._group} at {self._where}",
                    next_step=f"run `kafka-consumer-groups --describe --members --group {self._group}` to find other "
                    "members: a stream must be alone in its group",
                    code=Code.GROUP_IN_USE,
                )

    def _has_joined(self, wanted: set[tuple[str, int]]) -> bool:
        """Whether this member holds the group: every partition is assigned to it, or nobody else is there.

        A static member that comes back within its session is handed its former assignment as it was (KIP-345), without
        partitions made meanwhile; alone in the group, it needs no assignment of them to commit them.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._lost is not None or self._holds(wanted), timeout=_LOOK_SECONDS)
            self.check()
            if self._holds(wanted) or not self._assigned:
                return self._holds(wanted)
        return self._members() == 1

    def _holds(self, wanted: set[tuple[str, int]]) -> bool:
        if not wanted:  # librdkafka joins no group for the sake of topics none of which it can see
            return self._in_group or self._topics <= self._unknown
        return wanted <= self._assigned

    def _members(self) -> int:
        """How many members the group has; 0 where nobody says."""
        try:
            answer = self._admin.describe_consumer_groups([self._group], request_timeout=_ANSWER_WITHIN.total_seconds())
            described = answer[self._group].result(_ANSWER_WITHIN.total_seconds() + ANSWER_MARGIN_SECONDS)
            return len(described.members)
        except KafkaException as error:
            log.info("group_not_described", error=error.args[0].str())
            return 0
        except TimeoutError:
            log.info("group_not_described", error="the client gave no answer")
            return 0

    def check(self) -> None:
        """Raise `MembershipLostError` where the membership has ended."""
        if self._lost:
            raise MembershipLostError(
                self._lost,
                where=f"group {self._group}",
                next_step="run `kafka-consumer-groups --describe --members` to find the group's current members",
            )

    def commit(self, commits: Mapping[TopicPartition, Committed]) -> None:
        """Commit the next offset to read of each partition, with its metadata.

        Waits out rebalances and a moving coordinator. Very many go in parts: where one fails, those before it are made.

        Raises:
            MembershipLostError: the broker refused the commit as that of no member, or of a fenced one.
            UnreachableError: the coordinator did not answer in time, or one of the topics is not there.
        """
        for part in in_parts(self._group, commits):
            self._commit_part(
                [
                    ClientTopicPartition(partition.topic, partition.partition, entry.offset, entry.metadata)
                    for partition, entry in part.items()
                ]
            )

    def _commit_part(self, offsets: list[ClientTopicPartition]) -> None:
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
                    next_step="wait for the next start: it commits again; the record of work is ahead of the group",
                    code=Code.KAFKA_UNREACHABLE,
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
            if request.answered:
                return request.error
        return KafkaError(KafkaError._TIMED_OUT, None if request.sent_in else "the group rebalances")

    def _send_request(self) -> None:
        request = self._request
        if request is None or request.sent_in:
            return
        if self._lost or not self._in_group:
            # No topic is there yet, or the group rebalances. The commit would name no generation, and fence nobody, or
            # the former one, and be refused. It is sent after the next assignment.
            return
        request.sent_in = self._assignments
        try:
            self._consumer.commit(offsets=request.offsets, asynchronous=True)
        except KafkaException as error:
            self._answer(request, error.args[0])

    def _on_commit(self, error: KafkaError | None, partitions: list[ClientTopicPartition]) -> None:
        request = self._request
        if request is not None and request.matches(partitions):
            found = error or next((entry.error for entry in partitions if entry.error), None)
            refused = found is not None and found.code() == KafkaError.ILLEGAL_GENERATION
            if refused and request.sent_in == self._assignments:
                self._in_group = False  # until the next assignment
            self._answer(request, found)

    def _answer(self, request: _CommitRequest, error: KafkaError | None) -> None:
        with self._changed:
            request.answered, request.error = True, error
            self._changed.notify_all()

    def _raise_if_lost(self, error: KafkaError) -> None:
        if error.code() in _FENCED or error.code() == KafkaError.UNKNOWN_MEMBER_ID:
            self._mark_lost(error.str())
        self.check()

    def _poll(self) -> None:
        """Serve the client until it is closed or no member any more; a client that fails is no member either."""
        try:
            self._serve()
        except Exception as error:
            log.exception("group_member_failed")
            self._mark_lost(f"its client failed: {error}")

    def _serve(self) -> None:
        while not self._closing.is_set():
            self._send_request()
            message = self._consumer.poll(_POLL_SECONDS)
            error = message.error() if message is not None else None
            if error is not None and (error.code() in _FENCED or error.fatal()):
                self._mark_lost(error.str())
                return
            if error is not None and not self._is_known(error, message.topic()):
                log.info("group_member_waits", error=error.str())
            if self._taken and time.monotonic() >= self._ask_at:
                self._look_for_others()

    def _is_known(self, error: KafkaError, topic: str | None) -> bool:
        """Return whether the error only repeats that a topic cannot be seen, as every look at the topics does."""
        if error.code() not in _UNSEEN or topic is None:
            return False
        with self._changed:
            known = topic in self._unknown
            self._unknown.add(topic)
            self._changed.notify_all()
        return known

    def _look_for_others(self) -> None:
        """Find out whether partitions went with their topics or to another member.

        Between two polls, not in the callback that told of them: there the client waits for its end to be a member.
        """
        members = self._members()
        if members > 1:
            self._mark_lost(f"another member of the group was assigned {_names(self._taken)}")
        elif members == 0:  # nobody knows yet
            self._ask_at = time.monotonic() + _LOOK_SECONDS
            return
        else:
            topics = sorted({topic for topic, _ in self._taken})
            log.info("partitions_gone", partitions=len(self._taken), topics=", ".join(topics))
        self._taken = set()

    def _on_assign(self, consumer: Consumer, partitions: list[ClientTopicPartition]) -> None:
        if not self._topics_may_go and not self._is_the_same_member(consumer):
            consumer.assign([])  # else the client fetches from them until it has left
            self._end_membership(consumer, "the session expired, and the group took this driver for a new member")
            return
        # With positions of their own the partitions need no look-up of the group's commits.
        consumer.assign([ClientTopicPartition(p.topic, p.partition, OFFSET_END) for p in partitions])
        consumer.pause(partitions)
        assigned = {(p.topic, p.partition) for p in partitions}
        with self._changed:
            taken = self._assigned - assigned
            self._assigned = assigned
            self._in_group = True
            self._assignments += 1
            self._unknown -= {topic for topic, _ in assigned}
            self._changed.notify_all()
        if taken and self._topics_may_go:
            self._taken |= taken
        elif taken:
            self._mark_lost(f"another member of the group was assigned {_names(taken)}")

    def _is_the_same_member(self, consumer: Consumer) -> bool:
        """Return whether the client has the id of its first assignment: it loses that id when a session ends.

        In a rebalance librdkafka looks at no session and tells of no lost assignment. It joins anew, with another id.
        """
        found = consumer.memberid() or ""
        self._member_id = self._member_id or found
        return bool(found) and found == self._member_id

    def _on_lost(self, consumer: Consumer, partitions: list[ClientTopicPartition]) -> None:
        self._end_membership(consumer, "the session expired")

    def _end_membership(self, consumer: Consumer, why: str) -> None:
        # The group may have been reset while the session was gone: to rejoin and commit would undo that. And by
        # itself the client would rejoin under the same instance id, which fences whoever took the place meanwhile.
        self._mark_lost(why)
        try:
            consumer.unsubscribe()
        except KafkaException as error:
            if error.args[0].code() != KafkaError._FATAL:  # fenced meanwhile: it leaves the group, and says this
                raise

    def _on_revoke(self, consumer: Consumer, partitions: list[ClientTopicPartition]) -> None:
        self._in_group = False
        log.info("group_rebalances", partitions=len(partitions))

    def _mark_lost(self, why: str) -> None:
        with self._changed:
            self._lost = self._lost or why
            self._changed.notify_all()


def _names(partitions: Collection[tuple[str, int]]) -> str:
    return ", ".join(f"{topic}/{partition}" for topic, partition in sorted(partitions))
