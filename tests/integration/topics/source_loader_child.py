"""Loads a source in a process of its own, so that tests can kill it: ROOT PROGRAM TOPIC [STALL_AT].

With STALL_AT the loader stops behind this sequence, the records of its transaction so far flushed to the broker and not
committed, says so, and goes on when its standard input is closed. It ends by itself after `LIFE_SECONDS`, for its test
may be killed.
"""

from __future__ import annotations

import signal
import sys
from contextlib import contextmanager
from pathlib import Path

from millrace.adapters.kafka.producers import source as kafka_producer
from millrace.domain.declaration.pipeline import Pipeline, SourceProgram
from millrace.errors import MillraceError
from millrace.settings import open_settings
from millrace.usecases.topics import sources

RECORDS_A_TRANSACTION = 500
LIFE_SECONDS = 600


class StallingTopic(kafka_producer.LoadedTopic):
    stall_at = -1

    def _produce(self, record, sequence):
        super()._produce(record, sequence)
        if sequence == self.stall_at:
            self._producer.flush(30)
            print("stalled", flush=True)
            sys.stdin.read()


@contextmanager
def open_stalling(kafka, topic, source):
    with kafka_producer.open_source_topic(kafka, topic, source) as opened:
        opened.__class__ = StallingTopic
        print("open", flush=True)
        yield opened


def main(root: str, program: str, topic: str, stall_at: str = "-1") -> int:
    signal.alarm(LIFE_SECONDS)
    sources.TRANSACTION_RECORDS = RECORDS_A_TRANSACTION
    StallingTopic.stall_at = int(stall_at)
    name = topic.replace("-", "_")  # fences nobody else's loader
    declared = SourceProgram("numbers", name, program, topic)
    pipeline = Pipeline(name, "tests", "millrace_kafka", (), (), (declared,))
    try:
        report = sources.load_source(
            open_settings(Path(root)), pipeline, "numbers", lambda _: None, open_topic=open_stalling
        )
    except MillraceError as error:
        print(f"{type(error).__name__}: {error.what}", flush=True)
        return error.exit_code
    print(f"done {report.produced} {report.already_there} {report.total}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
