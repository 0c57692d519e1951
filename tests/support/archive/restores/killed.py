"""A restore in a process of its own that is gone at a call of its Kafka client."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from typing import Any
from unittest.mock import patch

from confluent_kafka import KafkaException, Producer

from millrace.adapters.kafka.producers import restore as kafka_restore
from millrace.domain.archive.names import Incarnation
from millrace.usecases.archive import restore_run
from support.archive.restores.real import Restores, platform_of
from support.stack.faults import Life, Moment, crash_at_call
from support.stack.killed_child import alarmed, die
from support.waiting import Deadline

CLIENT = ("init_transactions", "begin_transaction", "produce", "poll", "commit_transaction", "purge", "flush")
OF_A_TRANSACTION = 7


def watched(life: Life) -> Any:
    """The producers of a life, whose calls are counted."""

    def producer(*arguments: Any, **named: Any) -> Any:
        real = Producer(*arguments, **named)

        def drop() -> None:
            with suppress(KafkaException):
                real.purge()
                real.flush(Deadline.METADATA.seconds)

        return life.watch("producer", real, hang_up=drop, local=CLIENT)

    return producer


def live_in_child(call: str, moment: str, occurrence: str) -> None:
    """Restore, and be gone at a call."""
    alarmed()
    told = json.load(sys.stdin)
    life = crash_at_call(f"producer.{call}", Moment[moment], occurrence=int(occurrence), dying=die)
    restores = Restores(None, Incarnation(*told["here"]), platform_of(told["root"]))
    with (
        patch.object(kafka_restore, "Producer", watched(life)),
        patch.object(restore_run, "TRANSACTION_RECORDS", OF_A_TRANSACTION),
    ):
        restores.restore(told["into"])
