"""The job that makes rows again: some offsets read once more, decoded, transformed, and held against the sink.

It runs in a process of its own (`adapters.recompute_job`). Records are read by the plain client, so Spark starts
without Kafka's source; the rest of the way is the stream's: decoding and transform in Spark, the copy with its halving
of blocks of which the database refuses a row.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql
from pyspark.sql import SparkSession

from millrace import spec
from millrace.adapters.kafka_log import KafkaLog
from millrace.adapters.kafka_reader import TopicReader
from millrace.adapters.postgres_merge import Source
from millrace.adapters.recompute_job import Request, Said, failure_of, read_request, say
from millrace.adapters.sink_comparison import MADE, SinkComparison, open_comparison
from millrace.domain.declaration import Pipeline, Stream
from millrace.domain.offsets import OffsetRange, SourceAt, TopicPartition
from millrace.domain.quality.recompute import Made, Recomputed, Tally
from millrace.domain.quarantine import Rule
from millrace.errors import DataLossError, DeclarationError, MillraceError, RecreatedTopicError
from millrace.runtime.app import Transform, load_transform, output_type, target_columns
from millrace.runtime.decoders import decoder_of
from millrace.runtime.inputs import good_records
from millrace.runtime.plain_read import Part, read_in_parts
from millrace.runtime.session import open_session
from millrace.runtime.sinks.postgres import Blocks, as_text, copy_block, with_sources
from millrace.runtime.source import RAW_TYPE, decoded
from millrace.settings import Settings, open_settings, project_root

Progress = Callable[[int], object]

_MOST_RANGES = 100  # of a part: to begin with each takes longer than to read its records


def main(argv: Sequence[str]) -> int:
    """Do what standard input asks, and answer on standard output; `argv` is the folder for what is temporary.

    What Spark and the app print goes to standard error. The end of standard input is the end of the job: who waited for
    it is gone.
    """
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    asked = os.fdopen(0, "rb", buffering=0, closefd=False)
    request = read_request(asked)
    threading.Thread(target=_end_with, args=(asked, Path(argv[0])), daemon=True, name="end").start()
    try:
        answer = _answer(request, Path(argv[0]), lambda done: say(Said(offsets=done), answers))
    except MillraceError as error:
        say(Said(failure=failure_of(error)), answers)
        return error.exit_code
    say(Said(answer=answer), answers)
    return 0


def _end_with(asked: IO[bytes], scratch: Path) -> None:
    while asked.read(1):
        pass
    shutil.rmtree(scratch, ignore_errors=True)
    os._exit(1)


def _answer(request: Request, scratch: Path, progress: Progress) -> Recomputed:
    root = project_root()
    sys.path[0] = str(root / "spark_apps")  # where the entry of an app's driver lies, and what apps share
    settings = open_settings(root)
    pipeline = spec.load_pipeline(root, request.stream.partition(".")[0], os.environ.get("MILLRACE_ENVIRONMENT"))
    stream = pipeline.stream(request.stream.partition(".")[2])
    session = open_session(stream, 0, (), scratch)
    try:
        return recompute(session, settings, pipeline, stream, request.ranges, scratch / "rows", progress)
    finally:
        session.stop()


def recompute(
    session: SparkSession,
    settings: Settings,
    pipeline: Pipeline,
    stream: Stream,
    ranges: Sequence[OffsetRange],
    folder: Path,
    progress: Progress,
) -> Recomputed:
    """Make the rows of these ranges again, and hold them against what the stream's sink has of them.

    Args:
        session: Spark.
        settings: the project's, with its Connections.
        pipeline: whose stream it is.
        stream: its app makes the rows.
        ranges: offsets of its topics as they are now, in the order of partition and offset.
        folder: for rows on their way; is made.
        progress: told how many offsets are done.

    Raises:
        DeclarationError: the app is not one, or there is no table of rows.
        RecreatedTopicError: a topic was deleted meanwhile.
        UnreachableError: Kafka or the sink does not answer.
    """
    folder.mkdir(parents=True, mode=0o700)
    sink = settings.postgres(stream.sink.connection)
    transform = load_transform(settings.root, stream.app)
    made = target_columns(output_type(session, pipeline, stream, transform), stream.app)
    reader = _Rereader(TopicReader(settings.kafka(pipeline.kafka), sparing=True), list(ranges))
    tally, found = Tally(), Recomputed(offsets=sum(map(len, ranges)))
    with open_comparison(sink, stream.qualified_name, stream.sink.table) as comparison:
        columns = comparison.prepare(made)
        maker = _Maker(session, pipeline, stream, transform, comparison, [c.name for c in columns.both], folder)
        for part, records in reader.parts():
            tally.add(maker.make(part, records))
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


class _Maker:
    """Makes the rows of one part after another, and looks at what is stored of the same offsets."""

    def __init__(
        self,
        session: SparkSession,
        pipeline: Pipeline,
        stream: Stream,
        transform: Transform,
        sink: SinkComparison,
        columns: Sequence[str],
        folder: Path,
    ) -> None:
        self._app = stream.app
        self._folder = folder
        self._session = session
        self._transform = transform
        self._sink = sink
        self._columns = tuple(columns)
        self._topics = {name: pipeline.topic(name) for name in stream.reads}
        self._decoders = {
            name: decoder_of(topic.value, key_required=topic.key is not None)
            for name, topic in self._topics.items()
            if topic.value is not None
        }

    def make(self, part: Sequence[OffsetRange], records: pa.Table) -> Made:
        refused = self._copy(part, records)
        self._sink.leave_out(refused)
        topics = {range_.partition.topic_id: range_.partition.topic for range_ in part}
        bad = self._bad(records)
        for topic_id, number, offset in refused:
            bad[SourceAt(topics.get(topic_id, topic_id), number, offset)] = Rule.SINK_REFUSED
        rows, quarantined = self._sink.compare(part)
        times = dict(zip(_sources(records), records.column("timestamp_ms").to_pylist(), strict=True))
        if strange := next((row.source for row in rows if row.made and row.source not in times), None):
            raise DeclarationError(
                f"the transform gives a row of {strange}, which it was not given",
                where=f"app {self._app}",
                next_step="keep the column `_source` as it came",
            )
        return Made(times, bad, rows, quarantined)

    def _copy(self, part: Sequence[OffsetRange], records: pa.Table) -> set[Source]:
        """Make rows and copy them to where they are compared; the sources of those that the database refuses.

        Spark's tasks leave rows in files, block by block: a transform may make many of one record.
        """
        ids = {range_.partition.topic: range_.partition.topic_id for range_ in part}
        raw = self._session.createDataFrame(records, schema=RAW_TYPE)
        inputs = {name: decoded(raw, topic, ids.get(name, "")) for name, topic in self._topics.items()}
        output = with_sources(self._transform(good_records(inputs), {}), self._columns)
        fields = sql.SQL(", ").join(map(sql.Identifier, output.columns))
        statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(MADE, fields)
        refused: list[tuple[Any, ...]] = []
        for written in output.mapInArrow(_writer(self._folder), "path string").collect():
            with pa.OSFile(written.path) as file, pa.ipc.open_stream(file) as blocks:
                for block in blocks:
                    table = pa.table([as_text(column) for column in block.columns], names=output.columns)
                    copy_block(self._sink.connection, statement, table, refused)
            Path(written.path).unlink()
        return {(topic_id, number, offset) for topic_id, number, offset, _ in refused}

    def _bad(self, records: pa.Table) -> dict[SourceAt, str]:
        """The records that are bad, each with the rule it breaks."""
        found: dict[SourceAt, str] = {}
        for name, decoder in self._decoders.items():
            own = records.filter(pc.equal(records.column("topic"), name))
            values, keys, times = (own.column(column).to_pylist() for column in ("value", "key", "timestamp_ms"))
            rules = decoder.decode(values, keys, times).rules
            found |= {source: rule for source, rule in zip(_sources(own), rules, strict=True) if rule is not None}
        return found


def _writer(folder: Path) -> Callable[[Blocks], Blocks]:
    """A task that writes its blocks to a file and reports where; one that is tried again writes another."""

    def write(blocks: Blocks) -> Blocks:
        path, writer = folder / uuid.uuid4().hex, None
        for block in blocks:
            writer = writer or pa.ipc.new_stream(str(path), block.schema)
            writer.write_batch(block)
        if writer is not None:
            writer.close()
            yield pa.RecordBatch.from_pydict({"path": [str(path)]})

    return write


def _sources(records: pa.Table) -> list[SourceAt]:
    places = (records.column(name).to_pylist() for name in ("topic", "partition", "offset"))
    return [SourceAt(*place) for place in zip(*places, strict=True)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
