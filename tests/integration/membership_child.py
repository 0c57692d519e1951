"""A member in a process of its own: `python membership_child.py SERVERS STREAM TOPIC`; says what it lives through.

It ends by itself after `LIFE_SECONDS`, for its test may be killed.
"""

from __future__ import annotations

import signal
import sys
import threading

from millrace.adapters.group_member import GroupMember, MembershipLostError
from millrace.adapters.kafka_log import KafkaLog
from millrace.domain.groups import stream_commits
from millrace.settings import KafkaSettings

LIFE_SECONDS = 600


def main(servers: str, stream: str, topic: str) -> None:
    signal.alarm(LIFE_SECONDS)
    settings = KafkaSettings({"bootstrap.servers": servers})
    partitions = KafkaLog(settings, client_id="child").partitions([topic])
    member = GroupMember(settings, stream=stream, group=f"millrace.{stream}", epoch=1)
    member.join(partitions)
    member.commit(stream_commits(stream, 1, 1, dict.fromkeys(partitions, 0)))
    print("joined", flush=True)
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
