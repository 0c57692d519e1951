"""A member in a process of its own: `python membership_child.py SERVERS STREAM TOPIC [stops]`; says what happens to it.

With `stops` it stops itself in the first rebalance, as with SIGSTOP, and commits as soon as it continues.

It ends by itself after `LIFE_SECONDS`, for its test may be killed.
"""

from __future__ import annotations

import signal
import sys
import threading
from typing import Any

import structlog
from confluent_kafka import Consumer, TopicPartition

from millrace.adapters.kafka.log import KafkaLog
from millrace.adapters.kafka.member import GroupMember, MembershipLostError
from millrace.domain.groups.commits import stream_commits
from millrace.settings import KafkaSettings

LIFE_SECONDS = 600


class StopsInARebalance(GroupMember):
    """One whose process stops between two generations."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.continued = threading.Event()

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        super()._on_revoke(consumer, partitions)
        if not self.continued.is_set():
            print("rebalances", flush=True)
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # at once: this thread would go on for a moment
            self.continued.set()


def main(servers: str, stream: str, topic: str, stops: str = "") -> None:
    signal.alarm(LIFE_SECONDS)
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))  # what it says goes to stdout
    settings = KafkaSettings({"bootstrap.servers": servers})
    partitions = KafkaLog(settings, client_id="child").partitions([topic])
    made = StopsInARebalance if stops else GroupMember
    member = made(settings, stream=stream, group=f"millrace.{stream}", epoch=1)
    member.join(partitions)
    member.commit(stream_commits(stream, 1, 1, dict.fromkeys(partitions, 0)))
    print("joined", flush=True)
    if isinstance(member, StopsInARebalance):
        member.continued.wait()
    else:
        turn = threading.Event()
        while member.lost is None:
            turn.wait(0.05)
        print(f"lost: {member.lost}", flush=True)
    try:
        member.commit(stream_commits(stream, 1, 1, dict.fromkeys(partitions, 1)))
    except MembershipLostError:
        print("refused", flush=True)
    else:
        print("committed", flush=True)
    sys.stdin.readline()  # a driver that is lost may take long to end, and must be harmless meanwhile
    member.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
