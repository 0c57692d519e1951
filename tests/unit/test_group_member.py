"""What a member makes of a client that fails; all that a broker does to members is tried with a real one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from millrace.adapters.group_member import GroupMember, MembershipLostError
from millrace.settings import KafkaSettings


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
