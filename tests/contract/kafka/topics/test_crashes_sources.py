"""A loader that dies at any call of its producer or reader: the next load completes, and each record is there once."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from confluent_kafka import KafkaException, Producer

from millrace.adapters.kafka.producers import source as kafka_producer
from millrace.adapters.kafka.reader import TopicReader
from millrace.adapters.kafka.topics import KafkaTopicAdmin
from millrace.domain.declaration.pipeline import Pipeline, SourceProgram
from millrace.domain.topics.changes import NewTopic
from millrace.embedded.stack import Stack
from millrace.errors import MillraceError
from millrace.settings import KafkaSettings, Settings, open_settings
from millrace.usecases.topics import sources
from support.crash_walks import crash_at_every_call
from support.stack import embedded as runs
from support.stack.faults import Life, Moment, unexpected
from support.topics.new import create_topics
from support.topics.reader import committed_records
from support.waiting import Deadline

RECORDS, OF_A_TRANSACTION = 5, 2
PROGRAM = f"""
from millrace.domain.topics.sources import SourceRecord

def records():
    for number in range({RECORDS}):
        yield SourceRecord(None, str(number).encode(), None)
"""
CLIENT = ("init_transactions", "begin_transaction", "produce", "poll", "commit_transaction", "purge", "flush")
MOMENTS = (Moment.AFTER, Moment.ANSWER_LOST, pytest.param(Moment.BEFORE, marks=pytest.mark.full))
ADAPTER = ("source.open", "reader.partitions", "reader.committed", "topic.committed", "topic.write")


@dataclass
class Loading:
    """One project with one source program, whose loaders are those of lives."""

    settings: Settings
    of_thread: threading.local

    def new(self) -> Pipeline:
        """A pipeline that loads the source into a new topic."""
        name = f"crash_{uuid.uuid4().hex[:8]}"
        topic = f"{name}.t"
        create_topics(KafkaTopicAdmin(self.settings.kafka()), NewTopic(topic, 2, 1, {}))
        source = SourceProgram("numbers", name, "numbers", topic)
        return Pipeline(name, "tests", "millrace_kafka", (), (), (source,))

    def load(self, life: Life, pipeline: Pipeline) -> MillraceError | None:
        """One life of a loader; what ended it before, but for a crash."""
        self.of_thread.life = life
        source = life.watch("source", SimpleNamespace(open=self._open), blocks=("open",))
        return life.lived(
            lambda: sources.load_source(
                self.settings, pipeline, "numbers", lambda progress: None, open_topic=source.open
            )
        )

    @contextmanager
    def _open(self, kafka: KafkaSettings, topic: str, source: str) -> Iterator[Any]:
        life = self.of_thread.life
        with kafka_producer.open_source_topic(kafka, topic, source) as opened:
            yield life.watch("topic", opened)

    def once(self, life: Life) -> list[str]:
        """A load that is struck, and one that is not: what was wrong."""
        pipeline = self.new()
        wrong = unexpected(life, self.load(life, pipeline))
        whole = Life()
        wrong += unexpected(whole, self.load(whole, pipeline))
        found = committed_records(self.settings.kafka().bootstrap_servers, f"{pipeline.name}.t")
        values = sorted(int(record.value or b"-1") for record in found)
        return wrong + ([] if values == list(range(RECORDS)) else [f"committed are {values}"])


@pytest.fixture(scope="module")
def loading(idle_stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loading]:
    root = tmp_path_factory.mktemp("crashes")
    (root / "sources").mkdir()
    (root / "sources" / "numbers.py").write_text(PROGRAM)
    of_thread = threading.local()

    def producer(*arguments: Any, **named: Any) -> Any:
        real = Producer(*arguments, **named)

        def drop() -> None:
            with suppress(KafkaException):
                real.purge()
                real.flush(Deadline.METADATA.seconds)

        return of_thread.life.watch("producer", real, hang_up=drop, local=CLIENT)

    def reader(kafka: KafkaSettings) -> Any:
        return of_thread.life.watch("reader", TopicReader(kafka))

    with (
        patch.object(kafka_producer, "Producer", producer),
        patch.object(kafka_producer, "TopicReader", reader),
        patch.object(sources, "TRANSACTION_RECORDS", OF_A_TRANSACTION),
    ):
        lookup = open_settings(runs.start(idle_stack, "kafka").root).lookup
        yield Loading(Settings(root, lookup), of_thread)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_source_whose_loader_dies_at_any_call_is_loaded_once(loading: Loading, moment: Moment) -> None:
    inside = [f"producer.{call}" for call in CLIENT]
    crash_at_every_call(moment, loading.once).must_be_well(*ADAPTER, *(() if moment is Moment.ANSWER_LOST else inside))
