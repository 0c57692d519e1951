"""What a stream's driver does with its life: take the sink over, decide where to begin, run batches, drain."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta

import structlog
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from millrace.adapters.kafka.reader import TopicReader
from millrace.domain.alarms.all_quarantined import Refused, Verdict, judge
from millrace.domain.alarms.kinds import AlarmKind
from millrace.domain.declaration.pipeline import Pipeline, Stream
from millrace.domain.groups.commits import stream_commits
from millrace.domain.sinks.batch import Identity
from millrace.domain.streams.batch_size import BatchSize
from millrace.domain.streams.control import StreamProgress
from millrace.domain.streams.position import Basis, OpenTimeline, Refusal, Refuse, Resume, Wishes, open_at
from millrace.domain.streams.supervision import Phase
from millrace.domain.topics.offsets import TopicPartition
from millrace.errors import (
    Code,
    DataLossError,
    FencedError,
    MillraceError,
    RecreatedTopicError,
    RefusedError,
    SinkExhaustedError,
    SinkFailedError,
    UnreachableError,
)
from millrace.ports.sinks import SinkStore
from millrace.runtime.life.app import Life
from millrace.runtime.life.spark_failures import lacks_partitions, means_loss, message
from millrace.runtime.stream.batch.constants import StreamConstants
from millrace.runtime.stream.batch.group import StreamGroup
from millrace.runtime.stream.batch.records import RecordReader
from millrace.runtime.stream.batch.reporting import BatchReport, BatchReporting
from millrace.runtime.stream.batch.runner import BatchRunner
from millrace.runtime.stream.batch.sink import BatchSink
from millrace.runtime.stream.inputs import keeps_order
from millrace.runtime.stream.source import read_ranges, read_stream
from millrace.runtime.stream.transform import load_transform, load_views, output_columns, output_type
from millrace.wiring.sinks import open_sink

log = structlog.get_logger()

_LOOK_SECONDS = 0.25
_LONGEST_POLL = timedelta(seconds=10)
_MOST_BEGUN_AGAIN = 5


class Driver:
    """Runs one stream until it is told to stop, fails, or loses its place to a newer epoch."""

    _sink: SinkStore
    _runner: BatchRunner
    _begun_again = 0  # queries in a row that met a partition which they did not name

    def __init__(self, life: Life, pipeline: Pipeline, stream: Stream) -> None:
        self._life = life
        self._pipeline = pipeline
        self._stream = stream
        launch = life.launch
        self._identity = Identity(launch.stream, launch.epoch, launch.instance)
        self._refused = Refused()

    def run(self, stop: threading.Event) -> None:
        """Run until `stop` is set (then drain), or raise what ended the stream."""
        # How long Spark waits before it looks again for records, where it has found none. The trigger's pace is kept
        # apart from this; who looks once an hour only would leave what came meanwhile, and seem to be stuck.
        delay = min(self._stream.trigger, _LONGEST_POLL)
        options = {"spark.sql.streaming.pollingDelay": f"{delay.total_seconds() * 1000:.0f}ms"}
        self._life.run(lambda starting: self._run_with(starting, stop), options)

    def _run_with(self, starting: Future[SparkSession], stop: threading.Event) -> None:
        life = self._life
        self._sink = self._open_sink()
        life.lookout.watch_sink(self._sink)
        try:
            partitions = self._take_over()
            opening = self._begin(partitions)
            life.pulse.at("start Spark")
            session = starting.result()
            life.lookout.watch_jvm(session)
            self._runner = self._prepare(session, opening)
            if not stop.is_set():
                self._stream_until(stop, session)
            self._sink.discard()
        finally:
            self._sink.close()

    def _open_sink(self) -> SinkStore:
        settings, views = self._life.settings, load_views(self._life.settings.root, self._stream.app)
        return open_sink(settings, self._pipeline, self._stream, self._identity, views)

    def _take_over(self) -> list[TopicPartition]:
        """Fence older writers in the sink, then in the group; only then may the record of work be read."""
        self._life.pulse.at("look at the topics")
        partitions = self._life.log.partitions(self._stream.reads)
        if missing := set(self._stream.reads) - {partition.topic for partition in partitions}:
            raise UnreachableError(
                f"topic {', '.join(sorted(missing))} does not exist",
                where=f"stream {self._life.launch.stream}",
                next_step=f"run `topics plan {self._pipeline.name}` to see what is missing, then the DAG "
                f"{self._pipeline.name}.topics to create it",
                code=Code.MISSING_TOPIC,
            )
        self._life.pulse.at("take over the sink", in_sink=True)
        self._sink.take_over()
        log.info("fence_raised", epoch=self._life.launch.epoch)
        self._life.join(partitions)
        return partitions

    def _begin(self, partitions: list[TopicPartition]) -> Resume | OpenTimeline:
        """Decide where to begin, put that on record, and commit it to the group before anything is read."""
        self._life.pulse.at("decide where to begin", in_sink=True)
        opening = open_at(
            self._life.launch.stream,
            self._life.launch.epoch,
            self._sink.read_record(),
            self._life.log.committed(self._stream.group, partitions),
            self._life.log.bounds(partitions),
            Wishes(self._stream.start, self._stream.on_rewind, self._life.launch.accept_recreated),
        )
        if isinstance(opening, Refuse):
            raise _refused(opening, self._life.launch.stream)
        for partition, position in opening.positions.items():
            log.info(
                "begins",
                timeline=opening.timeline,
                partition=str(partition),
                offset=position.offset,
                basis=position.basis.value,
                note=position.note,
            )
        self._put_on_record(opening)
        launch = self._life.launch
        self._life.member.commit(stream_commits(launch.stream, launch.epoch, opening.timeline, _offsets(opening)))
        return opening

    def _put_on_record(self, opening: Resume | OpenTimeline) -> None:
        """Write a new timeline's positions, or those of partitions that are new on the one that goes on."""
        positions = {
            partition: position.offset
            for partition, position in opening.positions.items()
            if isinstance(opening, OpenTimeline) or position.basis is Basis.BEGINNING
        }
        if positions:
            self._sink.open_positions(opening.timeline, positions)

    def _prepare(self, session: SparkSession, opening: Resume | OpenTimeline) -> BatchRunner:
        """Prepare the sink for the app's rows; return the runner of the first query."""
        constants = self._constants(session, opening.timeline)
        life = self._life
        return BatchRunner(
            constants,
            BatchSink(constants, self._sink),
            StreamGroup(
                constants,
                life.member,
                life.log,
                positions=_offsets(opening),
                offset_log=life.folder / "scratch" / "checkpoint" / "offsets",
            ),
            RecordReader(
                self._stream,
                read_topic=lambda session, ranges: read_ranges(session, life.kafka, self._stream, ranges),
                reader=lambda: TopicReader(life.kafka),
            ),
            BatchReporting(
                life.pulse,
                on_report=lambda report: self._report(opening.timeline, report),
                on_wait=self._tell_of_wait,
            ),
            BatchSize.of(self._stream.resources.max_records_per_batch),
        )

    def _constants(self, session: SparkSession, timeline: int) -> StreamConstants:
        self._life.pulse.at(f"load the app {self._stream.app}")
        transform = load_transform(self._life.settings.root, self._stream.app)
        output = output_type(session, self._pipeline, self._stream, transform)
        columns = output_columns(output, self._stream.app, self._sink.metadata)
        self._life.pulse.at("prepare the sink", in_sink=True)
        self._sink.prepare(columns)
        return StreamConstants(
            stream=self._stream,
            topics=self._pipeline.topics_of(self._stream),
            transform=transform,
            columns=tuple(columns.names),
            epoch=self._identity.epoch,
            timeline=timeline,
            in_order=self._sink.quarantine is None  # of no consequence where rows count with the commit
            or keeps_order(session, self._pipeline, self._stream, transform),
        )

    def _stream_until(self, stop: threading.Event, session: SparkSession) -> None:
        """Run one query, and behind it another one where that is needed, which begins where it ended.

        It is needed for batches of another size, and where a partition was made between the look and the query.
        """
        query = self._start_query(session)
        log.info("running", stream=self._life.launch.stream, timeline=self._runner.constants.timeline)
        self._life.pulse.phase(Phase.RUNNING)
        self._life.pulse.ready()
        self._life.lookout.watch_log(self._life.log, lambda: self._runner.group.positions)
        while self._watch(stop, query):
            self._drain(stop, query)
            self._life.pulse.at("begin another query")
            former = self._runner
            if former.resized:
                self._life.pulse.notice(former.size.notice)
                log.warning("batches_resized", records=former.size.records, declared=former.size.declared)
            following = former.next_query()
            if not former.resized and following.group.positions == former.group.positions:
                raise _of_spark(query.exception() or RuntimeError("the query ended by itself"))
            self._runner = following
            query = self._start_query(session)
            self._life.pulse.ready()
        self._life.pulse.phase(Phase.DRAINING)
        log.info("draining", asked=stop.is_set())
        self._drain(stop, query)

    def _start_query(self, session: SparkSession) -> StreamingQuery:
        self._life.pulse.at("start the query")
        runner = self._runner
        source = read_stream(session, self._life.kafka, self._stream, runner.group.positions, runner.size.records)
        return (
            source.writeStream.queryName(self._life.launch.stream)
            .foreachBatch(runner)
            .option("checkpointLocation", str(runner.group.offset_log.parent))
            .trigger(processingTime="0 seconds")  # BatchRunner keeps the pace
            .start()
        )

    def _watch(self, stop: threading.Event, query: StreamingQuery) -> bool:
        """Wait until the query has to end; whether another one is to begin then."""
        runner = self._runner
        while not stop.wait(_LOOK_SECONDS) and query.isActive and self._life.member.lost is None:
            if runner.failure is not None:  # whatever Spark still does about it
                return False
            if runner.resized:
                self._begun_again = 0
                return True
        return not stop.is_set() and _lacks_partitions(query) and self._may_begin_again()

    def _may_begin_again(self) -> bool:
        self._begun_again += 1
        return self._begun_again <= _MOST_BEGUN_AGAIN

    def _drain(self, stop: threading.Event, query: StreamingQuery) -> None:
        """End a query behind the batch in flight, or raise what ended it."""
        runner = self._runner
        runner.drain()
        if runner.failure is not None:
            raise self._cause_of(runner.failure) from runner.failure
        self._life.member.check()
        if not stop.is_set() and (failure := query.exception()) is not None:
            if _lacks_partitions(query) and self._begun_again <= _MOST_BEGUN_AGAIN:
                return
            raise _of_spark(failure)
        query.stop()

    def _cause_of(self, failure: Exception) -> Exception:
        """Why a batch failed: who finds its connection or its staging gone cannot know that a newer epoch took it."""
        cause = _of_spark(failure)
        if isinstance(cause, SinkFailedError) or not isinstance(cause, MillraceError):
            try:
                self._life.member.check()
                self._sink.check_fence()
            except MillraceError as known:
                return known
        return cause

    def _tell_of_wait(self, error: MillraceError | None) -> None:
        """Open an alarm for a wait that ends only when somebody acts; close it when a batch went through."""
        if error is None:
            self._life.reporter.alarm(AlarmKind.STREAM_SINK_EXHAUSTED, None)
        elif isinstance(error, SinkExhaustedError):
            self._life.reporter.alarm(AlarmKind.STREAM_SINK_EXHAUSTED, str(error))

    def _tell_of_refusals(self, report: BatchReport) -> None:
        """Open an alarm where every record of a while went to quarantine; close it with the first row."""
        counts = report.counts
        self._refused, verdict = judge(
            self._refused, rows_in=report.rows_in, rows_out=counts.rows_out, quarantined=counts.quarantined
        )
        if verdict is Verdict.OPEN:
            detail = self._refused.detail(self._life.launch.stream)
            self._life.reporter.alarm(AlarmKind.STREAM_ALL_QUARANTINED, detail, self._refused.extent)
        elif verdict is Verdict.CLOSE:
            self._life.reporter.alarm(AlarmKind.STREAM_ALL_QUARANTINED, None)

    def _report(self, timeline: int, report: BatchReport) -> None:
        log.info(
            "batch",
            id=report.batch_id,
            rows_in=report.rows_in,
            rows_out=report.counts.rows_out,
            quarantined=report.counts.quarantined,
            truncated=report.truncated,
            undeclared=report.undeclared.records,
            seconds=round(report.seconds, 3),
            **{f"{step}_seconds": round(seconds, 3) for step, seconds in report.steps.items()},
        )
        self._life.report(
            StreamProgress(
                stream=self._life.launch.stream,
                epoch=self._life.launch.epoch,
                timeline=timeline,
                at=datetime.now(UTC),
                batch_id=report.batch_id,
                rows_in=report.rows_in,
                rows_out=report.counts.rows_out,
                quarantined=report.counts.quarantined,
                batch_seconds=report.seconds,
                last_error=None,
                positions={str(partition): offset for partition, offset in report.positions.items()},
                truncated=report.truncated,
                undeclared=report.undeclared,
            ),
            report.steps,
            report.positions,
        )
        self._tell_of_refusals(report)


def _lacks_partitions(query: StreamingQuery) -> bool:
    """Return true where a query ended because its start offsets do not name a new partition."""
    failure = query.exception()
    return failure is not None and lacks_partitions(failure)


def _offsets(opening: Resume | OpenTimeline) -> dict[TopicPartition, int]:
    return {partition: position.offset for partition, position in opening.positions.items()}


def _refused(opening: Refuse, stream: str) -> MillraceError:
    kind: type[MillraceError] = {
        Refusal.RECREATED: RecreatedTopicError,
        Refusal.DATA_LOSS: DataLossError,
        Refusal.FENCED: FencedError,
    }.get(opening.refusal, RefusedError)
    return kind(opening.what, where=f"stream {stream}", next_step=opening.next_step)


def _of_spark(failure: Exception) -> Exception:
    """What ended a query: our own errors as they are, and of Spark's those that mean lost records by their name."""
    if not isinstance(failure, MillraceError) and means_loss(failure):
        return DataLossError(
            f"Spark could not read the planned offsets: {message(failure)}",
            next_step="check whether retention deleted unread records; reset the group to continue without them",
        )
    return failure
