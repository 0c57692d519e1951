"""What a member makes of a client that fails; all that a broker does to members is tried with a real one."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientTopicPartition

from millrace.adapters.kafka import member as group_member
from millrace.adapters.kafka.member import GroupMember, MembershipLostError, _CommitRequest
from millrace.domain.groups.commits import Committed
from millrace.domain.topics.offsets import TopicPartition
from millrace.errors import UnreachableError
from millrace.settings import KafkaSettings
from support.waiting import Deadline, eventually, in_background, result_of

COMMITS = {TopicPartition("t", "id", 0): Committed(5, "")}
HELD = [ClientTopicPartition("t", 0)]


@pytest.fixture
def member() -> GroupMember:
    """One whose broker is not there."""
    return GroupMember(KafkaSettings({"bootstrap.servers": "127.0.0.1:1"}), stream="a.b", group="millrace.a.b", epoch=1)


def raising(error: Exception) -> Any:
    """A client each call of which fails."""

    def fail(*arguments: object) -> None:
        raise error

    return SimpleNamespace(unsubscribe=fail, poll=fail, commit=fail)


def test_a_session_that_expired_is_told_though_the_client_was_fenced_before_it_could_unsubscribe(
    member: GroupMember,
) -> None:
    member._on_lost(raising(KafkaException(KafkaError(KafkaError._FATAL))), [])
    with pytest.raises(MembershipLostError, match="the session expired"):
        member.check()


def test_who_cannot_leave_for_another_reason_says_so_and_is_no_member(member: GroupMember) -> None:
    with pytest.raises(KafkaException):
        member._on_lost(raising(KafkaException(KafkaError(KafkaError._STATE))), [])
    assert member.lost == "the session expired"


def test_a_client_that_fails_is_no_member_and_nobody_waits_for_it(member: GroupMember) -> None:
    member._consumer = raising(ValueError("a bug of a callback"))
    member._poll()
    assert member.lost == "its client failed: a bug of a callback"


@pytest.mark.parametrize("code", [KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED])
def test_an_app_none_of_whose_topics_can_be_seen_waits_for_them_as_a_member(member: GroupMember, code: int) -> None:
    said = deque([SimpleNamespace(error=lambda: KafkaError(code), topic=lambda: "t")])

    def poll(seconds: float) -> Any:
        threading.Event().wait(0.001)
        return said.popleft() if said else None

    client = SimpleNamespace(subscribe=lambda topics, **callbacks: None, poll=poll, close=lambda: None)
    member._consumer = client  # type: ignore[assignment]
    joining = in_background(lambda: member.join([], ["t"]))
    result_of(joining, within=Deadline.THREAD, what="the join")
    member.check()
    member.close()


class Client:
    """A client of a group that rebalances: the broker refuses commits as a script says.

    Args:
        member: gets the client's callbacks.
        refusals: the error code of each commit in turn; None and what comes later is taken.
    """

    def __init__(self, member: GroupMember, *refusals: int | None) -> None:
        self._member = member
        self._refusals = deque(refusals)
        self.happens = deque[Callable[[], object]]()  # what the next polls tell of
        self.id = "first"
        self.assigned: list[ClientTopicPartition] = []
        self.commits = 0
        self.polls_with_a_commit_left = 0

    def assign(self, partitions: Sequence[ClientTopicPartition]) -> None:
        self.assigned = list(partitions)

    def pause(self, partitions: Sequence[ClientTopicPartition]) -> None:
        """Do nothing: the client fetches nothing."""

    def unsubscribe(self) -> None:
        """Do nothing: nobody is told."""

    close = unsubscribe

    def memberid(self) -> str:
        return self.id

    def commit(self, *, offsets: list[ClientTopicPartition], asynchronous: bool) -> None:
        self.commits += 1
        code = self._refusals.popleft() if self._refusals else None
        self.happens.append(lambda: self._member._on_commit(None if code is None else KafkaError(code), offsets))

    def poll(self, seconds: float) -> None:
        request = self._member._request
        if request is not None and not request.sent_in:
            self.polls_with_a_commit_left += 1
        if self.happens:
            self.happens.popleft()()
        else:
            threading.Event().wait(0.001)

    def is_assigned(self) -> None:
        self.happens.append(lambda: self._member._on_assign(self, HELD))  # type: ignore[arg-type]

    def is_revoked(self) -> None:
        """The group rebalances, from when this returns."""
        self.happens.append(lambda: self._member._on_revoke(self, HELD))  # type: ignore[arg-type]
        eventually(lambda: not self._member._in_group, within=Deadline.THREAD, what="the rebalance")

    def is_lost(self) -> None:
        self.happens.append(lambda: self._member._on_lost(self, HELD))  # type: ignore[arg-type]


@contextmanager
def served(member: GroupMember, client: Client) -> Iterator[None]:
    """Let the member's thread serve this client, which holds the group."""
    member._consumer = client  # type: ignore[assignment]
    client.is_assigned()
    member._thread.start()
    try:
        eventually(lambda: member._assigned, within=Deadline.THREAD, what="the assignment")
        yield
    finally:
        member.close()


def commit_that_waits(member: GroupMember, client: Client) -> Future[None]:
    """Commit, and let the member's thread pass the commit by for some polls."""
    committing = in_background(lambda: member.commit(COMMITS))
    eventually(lambda: client.polls_with_a_commit_left > 3, within=Deadline.THREAD, what="the commit to wait")
    return committing


def test_a_commit_of_a_former_generation_is_sent_again_after_the_next_assignment(member: GroupMember) -> None:
    client = Client(member, KafkaError.ILLEGAL_GENERATION)
    with served(member, client):
        committing = commit_that_waits(member, client)
        assert client.commits == 1
        client.is_assigned()
        result_of(committing, within=Deadline.THREAD, what="the second commit")
    assert client.commits == 2
    assert member.lost is None


def test_no_commit_is_sent_while_the_group_rebalances(member: GroupMember) -> None:
    client = Client(member)
    with served(member, client):
        client.is_revoked()
        committing = commit_that_waits(member, client)
        assert client.commits == 0
        client.is_assigned()
        result_of(committing, within=Deadline.THREAD, what="the commit")
    assert client.commits == 1


def test_a_commit_of_a_former_generation_by_a_member_that_lost_its_place_is_not_sent_again(member: GroupMember) -> None:
    client = Client(member, KafkaError.ILLEGAL_GENERATION)
    with served(member, client):
        committing = commit_that_waits(member, client)
        client.is_lost()
        with pytest.raises(MembershipLostError, match="the session expired"):
            result_of(committing, within=Deadline.THREAD, what="the refusal")
    assert client.commits == 1


def test_a_refusal_that_comes_after_the_next_assignment_does_not_wait_for_another(member: GroupMember) -> None:
    client = Client(member)
    with served(member, client):
        request = _CommitRequest(HELD, sent_in=member._assignments)
        client.is_assigned()
        eventually(lambda: member._assignments > request.sent_in, within=Deadline.THREAD, what="the assignment")
        member._request = request
        member._on_commit(KafkaError(KafkaError.ILLEGAL_GENERATION), HELD)
        assert request.answered
        member.commit(COMMITS)
    assert client.commits == 1


def test_a_member_that_lost_its_place_sends_no_commit_that_waits(member: GroupMember) -> None:
    client = Client(member)
    member._consumer = client  # type: ignore[assignment]
    member._on_assign(client, HELD)  # type: ignore[arg-type]
    member._mark_lost("another member of the group was assigned t/0")
    member._request = _CommitRequest(HELD)
    member._send_request()
    assert client.commits == 0


def test_a_driver_that_the_group_takes_for_a_new_member_has_lost_its_place(member: GroupMember) -> None:
    """Its session ended in a rebalance, which the client does not tell: the group may have been reset meanwhile."""
    client = Client(member)
    with served(member, client):
        client.is_revoked()
        committing = commit_that_waits(member, client)
        client.id = "second"
        client.is_assigned()
        with pytest.raises(MembershipLostError, match="took this driver for a new member"):
            result_of(committing, within=Deadline.THREAD, what="the refusal")
    assert client.commits == 0
    assert client.assigned == []


def test_a_commit_that_no_assignment_comes_for_says_that_the_group_rebalances(
    member: GroupMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_member, "_ANSWER_WITHIN", timedelta(seconds=0.1))
    monkeypatch.setattr(group_member, "_COMMIT_WITHIN", timedelta())
    client = Client(member)
    with served(member, client):
        client.is_revoked()
        with pytest.raises(UnreachableError, match="the group rebalances"):
            member.commit(COMMITS)


def test_a_driver_whose_session_ended_before_its_first_assignment_was_served_is_no_member(member: GroupMember) -> None:
    client = Client(member)
    client.id = ""
    member._on_assign(client, HELD)  # type: ignore[arg-type]
    with pytest.raises(MembershipLostError, match="took this driver for a new member"):
        member.check()
    assert client.assigned == []
