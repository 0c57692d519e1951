"""One member of a consumer group, in a process of its own: reads some records, commits them, and stays.

Called with a JSON object: `library` (confluent, kafka-python), `servers`, `group`, `topic`, `client`, `protocol`
(classic, consumer), `session_ms`, `count` (records to read before it only stays; none: it reads on and commits every
second). It ends when its standard input does, leaving the group, or after two minutes.
"""

from __future__ import annotations

import json
import select
import sys
import time
from typing import Any, Protocol

LIVES_SECONDS = 120
COMMIT_SECONDS = 1.0


class Client(Protocol):
    """What both libraries are used for."""

    def read(self, most: int | None) -> int: ...
    def commit(self) -> None: ...
    def stay(self) -> None: ...
    def close(self) -> None: ...


class Confluent:
    """librdkafka's consumer."""

    def __init__(self, asked: dict[str, Any]) -> None:
        from confluent_kafka import Consumer

        settings = {
            "bootstrap.servers": asked["servers"],
            "group.id": asked["group"],
            "client.id": asked["client"],
            "group.protocol": asked["protocol"],
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
        if asked["protocol"] == "classic":
            settings["session.timeout.ms"] = asked["session_ms"]
        self._consumer = Consumer(settings)
        self._consumer.subscribe([asked["topic"]])
        self._paused = False

    def read(self, most: int | None) -> int:
        messages = self._consumer.consume(most or 500, timeout=0.2)
        return len([message for message in messages if message.error() is None])

    def commit(self) -> None:
        self._consumer.commit(asynchronous=False)

    def stay(self) -> None:
        if not self._paused and (assigned := self._consumer.assignment()):
            self._consumer.pause(assigned)
            self._paused = True
        self._consumer.poll(0.2)

    def close(self) -> None:
        self._consumer.close()


class KafkaPython:
    """kafka-python's consumer."""

    def __init__(self, asked: dict[str, Any]) -> None:
        from kafka import KafkaConsumer

        self._consumer = KafkaConsumer(
            asked["topic"],
            bootstrap_servers=asked["servers"],
            group_id=asked["group"],
            client_id=asked["client"],
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=asked["session_ms"],
            heartbeat_interval_ms=1_000,
        )

    def read(self, most: int | None) -> int:
        from support.topics.python_consumer import joined_by_poll

        if self._consumer.assignment():
            found = self._consumer.poll(timeout_ms=200, max_records=most or 500)
        else:
            found = joined_by_poll(self._consumer, most or 500)
        return sum(map(len, found.values()))

    def commit(self) -> None:
        self._consumer.commit()

    def stay(self) -> None:
        if assigned := self._consumer.assignment():
            self._consumer.pause(*assigned)
        self._consumer.poll(timeout_ms=200)

    def close(self) -> None:
        self._consumer.close()


def live(client: Client, count: int | None) -> None:
    """Read, commit, stay; says `ready` once the records it was to read are committed, or the first are."""
    ends, read, committed_at, said = time.monotonic() + LIVES_SECONDS, 0, 0.0, False
    while time.monotonic() < ends and not _told_to_end():
        if count is not None and read >= count:
            client.stay()
            continue
        got = client.read(None if count is None else count - read)
        read += got
        due = read and (read == count if count is not None else time.monotonic() - committed_at >= COMMIT_SECONDS)
        if due:
            client.commit()
            committed_at = time.monotonic()
            if not said:
                print("ready", flush=True)
                said = True
    client.close()


def _told_to_end() -> bool:
    ready, _, _ = select.select([sys.stdin], [], [], 0)
    return bool(ready) and sys.stdin.readline() == ""


if __name__ == "__main__":
    wanted = json.loads(sys.argv[1])
    live(Confluent(wanted) if wanted["library"] == "confluent" else KafkaPython(wanted), wanted["count"])
