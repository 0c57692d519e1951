"""The job that makes rows again: some offsets read once more, decoded, transformed, and held against the sink.

It runs in a process of its own (`adapters.apps.jobs.recompute`). Records are read by the plain client, so Spark starts
without Kafka's source.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from millrace.adapters.apps.jobs.recompute import REQUESTS, Request
from millrace.adapters.apps.jobs.spark import Progress, serve
from millrace.adapters.kafka.log import KafkaLog
from millrace.adapters.kafka.reader import TopicReader
from millrace.adapters.sinks.postgres.comparison import MADE, SinkComparison, open_comparison
from millrace.domain.declaration.pipeline import Pipeline
from millrace.domain.quality.recompute import Made, Recomputed, Tally
from millrace.domain.topics.offsets import OffsetRange, SourceAt, TopicPartition
from millrace.errors import DataLossError, RecreatedTopicError
from millrace.runtime.formats.plain_decoder import plain_decoder_of
from millrace.runtime.jobs.rows_again import OpenedApp, RowMaker, opened_app, sources_of
from millrace.runtime.stream.plain_read import Part, read_in_parts
from millrace.settings import Settings

_MOST_RANGES = 100  # of a part: to begin with each takes longer than to read its records


def main(argv: Sequence[str]) -> int:
    """Do what standard input asks, and answer on standard output; `argv` is the folder for what is temporary."""
    scratch = Path(argv[0])

    def act(request: Request, progress: Progress) -> Recomputed:
        with opened_app(request.stream, scratch) as app:
            return recompute(app, request.ranges, scratch / "rows", progress)

    return serve(REQUESTS, scratch, act)


def recompute(app: OpenedApp, ranges: Sequence[OffsetRange], folder: Path, progress: Progress) -> Recomputed:
    """Make the rows of these ranges again, and hold them against what the stream's sink has of them.

    Args:
        app: makes the rows.
        ranges: offsets of its topics as they are now, in the order of partition and offset.
        folder: for rows on their way; is made.
        progress: told how many offsets are done.

    Raises:
        DeclarationError: the app is not one, or there is no table of rows.
        RecreatedTopicError: a topic was deleted meanwhile.
        UnreachableError: Kafka or the sink does not answer.
    """
    settings, pipeline, stream = app.settings, app.pipeline, app.stream
    sink, table = settings.postgres(stream.sink.connection), stream.sink.appended
    assert table is not None, "who asks has refused every stream that does not append to a table"
    reader = _Rereader(TopicReader(settings.kafka(pipeline.kafka), sparing=True), list(ranges))
    tally, found = Tally(), Recomputed(offsets=sum(map(len, ranges)))
    with open_comparison(sink, stream.qualified_name, table) as comparison:
        columns = comparison.prepare(app.columns)
        wanted = [column.name for column in columns.both]
        maker = RowMaker(
            app, wanted, folder, plain_decoder_of, on_try=lambda step: progress(found.offsets - reader.left)
        )
        for part, records in reader.parts():
            tally.add(_made(maker, comparison, part, records))
            found = replace(found, records=found.records + len(records))
            progress(found.offsets - reader.left)
    _check_topics(settings, pipeline, ranges)
    return replace(
        found,
        unread=reader.unread,
        unjudged=tally.unjudged,
        compared=tally.compared,
        alike=tally.alike,
        apart=tally.apart(),
        lacking=columns.lacking,
        retyped=columns.retyped,
        idle=columns.idle,
    )


def _check_topics(settings: Settings, pipeline: Pipeline, ranges: Sequence[OffsetRange]) -> None:
    """Records are read by a topic's name: what was read may be of another topic of that name."""
    ids = {range_.partition.topic: range_.partition.topic_id for range_ in ranges}
    log = KafkaLog(settings.kafka(pipeline.kafka), client_id="millrace.recompute")
    now = {partition.topic: partition.topic_id for partition in log.partitions(ids)}
    if changed := sorted(topic for topic in ids if now.get(topic) != ids[topic]):
        raise RecreatedTopicError(
            f"{', '.join(changed)} was deleted, or deleted and created again, while it was read",
            where=f"pipeline {pipeline.name}",
            next_step="run it again",
        )


@dataclass
class _Rereader:
    """Reads ranges in parts; what the log loses meanwhile is counted and left out."""

    reader: TopicReader
    ranges: list[OffsetRange]
    unread: int = 0

    @property
    def left(self) -> int:
        """How many offsets are not done."""
        return sum(map(len, self.ranges))

    def parts(self) -> Iterator[Part]:
        while self.ranges:
            try:
                for part, records in read_in_parts(self.reader, self.ranges[:_MOST_RANGES]):
                    self.ranges = _from(self.ranges, {range_.partition: range_.next for range_ in part})
                    yield part, records
            except DataLossError:
                topics = {range_.partition.topic for range_ in self.ranges}
                starts = {(topic, number): at for topic in topics for number, at in self.reader.starts(topic).items()}
                here = {r.partition: starts.get((r.partition.topic, r.partition.partition), 0) for r in self.ranges}
                kept = _from(self.ranges, here)
                if kept == self.ranges:
                    raise
                self.unread += self.left - sum(map(len, kept))
                self.ranges = kept


def _from(ranges: Sequence[OffsetRange], begins: Mapping[TopicPartition, int]) -> list[OffsetRange]:
    """These ranges without what lies below; none is empty."""
    cut = [(range_, max(range_.first, begins.get(range_.partition, 0))) for range_ in ranges]
    return [OffsetRange(range_.partition, first, range_.next) for range_, first in cut if first < range_.next]


def _made(maker: RowMaker, sink: SinkComparison, part: Sequence[OffsetRange], records: pa.Table) -> Made:
    """Make the rows of one part, and look at what is stored of the same offsets."""
    topics = {range_.partition.topic_id: range_.partition.topic for range_ in part}
    ids = {topic: topic_id for topic_id, topic in topics.items()}
    _, refused = maker.copy(records, ids, sink.connection, MADE)
    sink.leave_out(set(refused))
    bad: dict[SourceAt, str] = {source: broken.rule for source, broken in maker.bad(records).items()}
    for (topic_id, number, offset), broken in refused.items():
        bad[SourceAt(topics.get(topic_id, topic_id), number, offset)] = broken.rule
    rows, quarantined = sink.compare(part)
    times = dict(zip(sources_of(records), records.column("timestamp_ms").to_pylist(), strict=True))
    if strange := next((row.source for row in rows if row.made and row.source not in times), None):
        raise maker.strange(strange)
    return Made(times, bad, rows, quarantined)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
