"""Threads that find out what a driver waits for: Spark's JVM, a lock in the sink, records that no batch takes up.

Each asks one server, so that none that is silent keeps the others from being asked, and the heartbeat from none.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import structlog
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from millrace.adapters.kafka.log import KafkaLog
from millrace.domain.topics.offsets import TopicPartition
from millrace.errors import MillraceError
from millrace.ports.sinks import SinkStore
from millrace.runtime.life.pulse import Pulse

log = structlog.get_logger()

_LOOK_AFTER_BEATS = 2


class Lookout:
    """Tells a driver's pulse what the driver waits for.

    Args:
        pulse: who is told. When it closes the threads end.
    """

    def __init__(self, pulse: Pulse) -> None:
        self._pulse = pulse

    def watch_jvm(self, session: SparkSession) -> None:
        """Ask Spark's JVM for a sign of life, again and again."""
        self._pulse.jvm_answered()

        def ask() -> None:
            try:
                session._jvm.java.lang.System.nanoTime()
            except (Py4JError, OSError):  # it is gone: the driver's own calls fail as well
                return
            self._pulse.jvm_answered()

        self._start("jvm-watch", ask)

    def watch_sink(self, sink: SinkStore) -> None:
        """Ask the sink whom a step has waited for."""

        def ask() -> None:
            step = self._pulse.in_sink_step
            if step is None or step[1] < _LOOK_AFTER_BEATS * self._pulse.every_seconds:
                return
            self._pulse.waits_for_lock(step[0], sink.waits_for())

        self._start("sink-watch", ask)

    def watch_log(self, kafka: KafkaLog, positions: Callable[[], Mapping[TopicPartition, int]]) -> None:
        """Ask the brokers whether records wait that no batch takes up."""

        def ask() -> None:
            if self._pulse.ready_for < _LOOK_AFTER_BEATS * self._pulse.every_seconds:
                return
            done = positions()
            try:
                ends = kafka.ends(done)
            except MillraceError as error:
                self._pulse.behind(None, why=f"the brokers: {error.what}")
                return
            self._pulse.behind(sum(max(0, ends[partition] - offset) for partition, offset in done.items()))

        self._start("log-watch", ask)

    def _start(self, name: str, ask: Callable[[], Any]) -> None:
        def run() -> None:
            said = ""
            while not self._pulse.closing.wait(self._pulse.every_seconds):
                try:
                    ask()
                    said = ""
                except Exception as error:  # what only tells people must not end, and never ends the stream
                    if str(error) != said:
                        said = str(error)
                        log.warning("not_looked", what=name, error=said)

        threading.Thread(target=run, name=name, daemon=True).start()
