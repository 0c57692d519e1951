"""A drill's stream that writes to Kafka: its group is its record of work, and its rows are read by our reader."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from confluent_kafka.admin import NewTopic

from millrace.adapters.kafka.reader import TopicReader
from millrace.domain.sinks.origin import Origin
from millrace.domain.topics.offsets import Source
from millrace.reader import Deduplicator
from support.drills.crashes import Drill
from support.streams.project import StreamProject, committed
from support.waiting import result_of

TARGET = """  {target}:
    partitions: 2
    replication: 1
    key: {{field: id}}
    retention: {{time: unlimited}}
    value: {{format: json, schema: "id STRING NOT NULL, amount INT NOT NULL"}}
streams:
"""


@dataclass
class KafkaProject(StreamProject):
    """Writes to a topic of two partitions."""

    @property
    def target(self) -> str:
        return f"{self.name}.out"

    @property
    def writes(self) -> str:
        return f"{{kafka: {{topic: {self.target}}}}}"

    def declare(self, **changes: Any) -> None:
        super().declare(**changes)
        path = self.root / "include" / "pipelines" / f"{self.name}.yaml"
        path.write_text(path.read_text().replace("streams:\n", TARGET.format(target=self.target), 1))

    def create_topic(self) -> None:
        super().create_topic()
        made = self.admin.create_topics([NewTopic(self.target, 2, 1, config={"retention.ms": "-1"})])
        result_of(made[self.target], what="the topic that is written to")

    def record_of_work(self) -> dict[int, int]:
        return committed(self)

    @cached_property
    def _reader(self) -> TopicReader:
        return TopicReader(self.settings.kafka())

    def written(self) -> tuple[Counter[Source], int]:
        """The source of every row that is new to our reader, and how many were not new."""
        rows, seen, found = list(self._reader.committed(self.target)), Deduplicator(), Counter[Source]()
        for row in rows:
            if seen.is_new(self.target, row.partition, row.headers):
                origin = Origin.of(row.headers)
                assert origin is not None
                found[origin.source] += 1
        return found, len(rows) - found.total()

    def sink_sources(self) -> Counter[Source]:
        """The source of every row that is new to our reader, and of every record in quarantine."""
        return self.written()[0] + self.set_aside()

    def drop(self) -> None:
        for topic in (self.topic, self.target):
            result_of(self.admin.delete_topics([topic])[topic], what="the end of a topic")


class KafkaDrill(Drill):
    """Holds what is in the topic and in quarantine against the group."""

    project: KafkaProject

    def group_ahead(self) -> list[str]:
        return []  # the group is the record of work

    def rows_against_record(self) -> list[str]:
        """Sources that the group has done and that are missing, or that are new to our reader twice."""
        done, sources = committed(self.project), self.project.sink_sources()
        id_ = self.project.topic_id()
        missing = [(n, at) for n, end in done.items() for at in range(end) if not sources[id_, n, at]]
        twice = [source for source, times in sources.items() if times > 1]
        return [f"missing {missing[:5]}, twice {twice[:5]}, done {done}"] if missing or twice else []
