"""One life of a stream's driver, from the claim to the drained end."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import structlog
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from millrace.adapters.control_db import ControlStore
from millrace.adapters.group_member import GroupMember
from millrace.adapters.kafka_log import KafkaLog
from millrace.adapters.kafka_reader import TopicReader
from millrace.adapters.postgres_connection import SinkExhaustedError, SinkStatementError
from millrace.adapters.postgres_fence import Identity
from millrace.adapters.postgres_sink import PostgresSink
from millrace.domain.control import BatchSecond, StreamProgress
from millrace.domain.declaration import Pipeline, Stream
from millrace.domain.offsets import TopicPartition
from millrace.domain.position import Basis, OpenTimeline, Refusal, Refuse, Resume, Wishes, open_at
from millrace.domain.streams import SINK_EXHAUSTED, Phase
from millrace.errors import (
    DataLossError,
    FencedError,
    MillraceError,
    RecreatedTopicError,
    RefusedError,
    UnreachableError,
)
from millrace.runtime.app import load_transform, output_type, target_columns
from millrace.runtime.batches import Batches, BatchReport, BatchRunner
from millrace.runtime.lookout import Lookout
from millrace.runtime.pulse import Pulse
from millrace.runtime.reporter import Reporter
from millrace.runtime.session import open_session
from millrace.runtime.sinks.postgres import Destination
from millrace.runtime.source import read_ranges, read_stream
from millrace.settings import Settings

log = structlog.get_logger()

_LOOK_SECONDS = 0.25
# Source: Spark's KafkaExceptions and KafkaSourceProvider, the client's OffsetOutOfRangeException.
_SIGNS_OF_LOSS = ("data may have been lost", "OffsetOutOfRangeException", "failOnDataLoss")


@dataclass(frozen=True, slots=True)
class Launch:
    """What the runner was told to start."""

    stream: str
    epoch: int
    instance: str
    accept_recreated: bool
    host: str


class ClaimLostError(FencedError):
    """Another instance has claimed this epoch."""


class Driver:
    """Runs one stream until it is told to stop, fails, or loses its place to a newer epoch."""

    def __init__(
        self,
        settings: Settings,
        control: ControlStore,
        pipeline: Pipeline,
        stream: Stream,
        launch: Launch,
        folder: Path,
    ) -> None:
        self._settings = settings
        self._control = control
        self._pipeline = pipeline
        self._stream = stream
        self._launch = launch
        self._folder = folder
        kafka = settings.kafka(pipeline.kafka)
        self._kafka = kafka
        self._log = KafkaLog(kafka, client_id=f"millrace.{launch.stream}#{launch.epoch}")
        self._identity = Identity(launch.stream, launch.epoch, launch.instance)
        self._sink = PostgresSink(settings.postgres(stream.sink.connection), self._identity, stream.sink.table)
        self._member = GroupMember(kafka, stream=launch.stream, group=stream.group, epoch=launch.epoch)
        self._reached: Mapping[TopicPartition, int] = {}  # by the last batch
        self._reporter = Reporter(self._save_progress, self._set_alarm)
        self._pulse = Pulse(folder / "status.json", stream.stuck_after)
        self._lookout = Lookout(self._pulse)

    def _save_progress(self, progress: StreamProgress, history: Sequence[BatchSecond]) -> None:
        """Save it with the lag, which is asked for here and not in the batch: brokers that hang hold up no row."""
        reached = self._reached
        lag: int | None
        try:
            ends = self._log.ends(reached)
            lag = sum(max(0, ends[partition] - offset) for partition, offset in reached.items())
        except MillraceError:  # the batches that fail of it say so
            lag = None
        *before, last = history
        saved = (*before, replace(last, lag=lag))
        self._control.streams.save_progress(replace(progress, lag=lag), saved)

    def _set_alarm(self, detail: str | None) -> None:
        alarms = self._control.alarms
        if detail is None:
            alarms.close(SINK_EXHAUSTED, self._launch.stream)
        else:
            alarms.open(SINK_EXHAUSTED, self._launch.stream, detail)

    def run(self, stop: threading.Event) -> None:
        """Run until `stop` is set (then drain), or raise what ended the stream."""
        self._claim()  # the loser writes nothing: the epoch's folder is the winner's
        self._pulse.phase(Phase.STARTING)
        application = self._identity.application_name
        self._lookout.watch_sink(
            self._settings.postgres(self._stream.sink.connection), application, self._launch.stream
        )
        error: str | None = None
        try:
            with ThreadPoolExecutor(max_workers=1, thread_name_prefix="spark-start") as pool:
                starting = pool.submit(self._open_session)
                self._run_with(starting, stop)
        except MillraceError as failure:
            error = str(failure)
            raise
        finally:
            self._pulse.phase(Phase.ENDED, error=error)
            self._reporter.close()
            self._pulse.close()

    def _run_with(self, starting: Future[SparkSession], stop: threading.Event) -> None:
        try:
            partitions = self._take_over()
            opening = self._begin(partitions)
            self._pulse.at("start Spark")
            session = starting.result()
            self._lookout.watch_jvm(session)
            batches = self._prepare(session, opening)
            if not stop.is_set():
                self._stream_until(stop, session, batches, _offsets(opening))
            self._sink.discard_staging()
        finally:
            self._sink.close()
            self._member.close()
            _end_session(starting)

    def _claim(self) -> None:
        launch = self._launch
        if not self._control.streams.claim(launch.stream, launch.epoch, launch.instance, launch.host):
            raise ClaimLostError(f"another instance has claimed epoch {launch.epoch}", where=f"stream {launch.stream}")
        log.info("claimed", stream=launch.stream, epoch=launch.epoch, instance=launch.instance)

    def _open_session(self) -> SparkSession:
        listing = self._settings.state_folder / "spark-jars"
        jars = [Path(line) for line in listing.read_text(encoding="utf-8").splitlines()] if listing.exists() else []
        return open_session(self._stream, self._launch.epoch, jars, self._folder / "scratch")

    def _take_over(self) -> list[TopicPartition]:
        """Fence older writers in the sink, then in the group; only then may the record of work be read."""
        self._pulse.at("look at the topics")
        partitions = self._log.partitions(self._stream.reads)
        if missing := set(self._stream.reads) - {partition.topic for partition in partitions}:
            raise UnreachableError(
                f"there is no topic {', '.join(sorted(missing))}",
                where=f"stream {self._launch.stream}",
                next_step=f"`topics plan {self._pipeline.name}` shows what is missing, the DAG "
                f"{self._pipeline.name}.topics makes it",
            )
        self._pulse.at("take over the sink", in_sink=True)
        self._sink.take_over()
        log.info("fence_raised", epoch=self._launch.epoch)
        self._pulse.at(f"join the group {self._stream.group}")
        self._member.join(partitions)
        log.info("group_joined", group=self._stream.group, partitions=len(partitions))
        return partitions

    def _begin(self, partitions: list[TopicPartition]) -> Resume | OpenTimeline:
        """Decide where to begin, put that on record, and commit it to the group before anything is read."""
        self._pulse.at("decide where to begin", in_sink=True)
        opening = open_at(
            self._launch.stream,
            self._launch.epoch,
            self._sink.read_record(),
            self._log.committed(self._stream.group, partitions),
            self._log.bounds(partitions),
            Wishes(self._stream.start, self._stream.on_rewind, self._launch.accept_recreated),
        )
        if isinstance(opening, Refuse):
            raise _refused(opening, self._launch.stream)
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
        self._member.commit(_offsets(opening), opening.timeline)
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

    def _prepare(self, session: SparkSession, opening: Resume | OpenTimeline) -> Batches:
        self._pulse.at(f"load the app {self._stream.app}")
        transform = load_transform(self._settings.root, self._stream.app)
        output = output_type(session, self._pipeline, self._stream, transform)
        self._pulse.at("prepare the table", in_sink=True)
        self._sink.prepare(target_columns(output, self._stream.app))
        return Batches(
            stream=self._stream,
            topics={name: self._pipeline.topic(name) for name in self._stream.reads},
            transform=transform,
            sink=self._sink,
            member=self._member,
            log=self._log,
            reader=lambda: TopicReader(self._kafka),
            read_topic=lambda session, ranges: read_ranges(session, self._kafka, self._stream, ranges),
            destination=Destination(self._stream.sink.connection, self._identity),
            timeline=opening.timeline,
            offset_log=self._folder / "scratch" / "checkpoint" / "offsets",
            on_report=lambda report: self._report(opening.timeline, report),
            on_wait=self._tell_of_wait,
            pulse=self._pulse,
        )

    def _stream_until(
        self, stop: threading.Event, session: SparkSession, batches: Batches, positions: dict[TopicPartition, int]
    ) -> None:
        self._pulse.at("start the query")
        runner = BatchRunner(batches, positions)
        source = read_stream(session, self._kafka, self._stream, positions)
        query: StreamingQuery = (
            source.writeStream.queryName(self._launch.stream)
            .foreachBatch(runner)
            .option("checkpointLocation", str(batches.offset_log.parent))
            .trigger(processingTime="0 seconds")  # BatchRunner keeps the pace
            .start()
        )
        log.info("running", stream=self._launch.stream, timeline=batches.timeline)
        self._pulse.phase(Phase.RUNNING)
        self._pulse.ready()
        self._lookout.watch_log(self._log, lambda: runner.positions)
        while not stop.wait(_LOOK_SECONDS) and query.isActive and self._member.lost is None:
            if runner.failure is not None:  # whatever Spark still does about it
                break
        self._pulse.phase(Phase.DRAINING)
        log.info("draining", asked=stop.is_set())
        runner.drain()
        if runner.failure is not None:
            raise self._cause_of(runner.failure) from runner.failure
        self._member.check()
        if not stop.is_set() and (failure := query.exception()) is not None:
            raise _of_spark(failure)
        query.stop()

    def _cause_of(self, failure: Exception) -> Exception:
        """Why a batch failed: who finds its connection or its staging gone cannot know that a newer epoch took it."""
        cause = _of_spark(failure)
        if isinstance(cause, SinkStatementError) or not isinstance(cause, MillraceError):
            try:
                self._member.check()
                self._sink.check_fence()
            except MillraceError as known:
                return known
        return cause

    def _tell_of_wait(self, error: MillraceError | None) -> None:
        """Open an alarm for a wait that ends only when somebody acts; close it when a batch went through."""
        if error is None:
            self._reporter.alarm(None)
        elif isinstance(error, SinkExhaustedError):
            self._reporter.alarm(str(error))

    def _report(self, timeline: int, report: BatchReport) -> None:
        log.info(
            "batch",
            id=report.batch_id,
            rows_in=report.rows_in,
            rows_out=report.counts.rows_out,
            quarantined=report.counts.quarantined,
            truncated=report.truncated,
            seconds=round(report.seconds, 3),
            **{f"{step}_seconds": round(seconds, 3) for step, seconds in report.steps.items()},
        )
        self._pulse.done(report.batch_id)
        self._reached = report.positions
        self._reporter.progress(
            StreamProgress(
                stream=self._launch.stream,
                epoch=self._launch.epoch,
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
            ),
            report.steps,
        )


def _end_session(starting: Future[SparkSession]) -> None:
    """Stop Spark. A JVM that is gone already needs no stopping, and its errors would hide why the stream ended."""
    if starting.exception() is not None:
        return
    try:
        starting.result().stop()
    except (Py4JError, OSError) as error:
        log.warning("spark_ended_first", error=type(error).__name__)


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
    text = str(failure)
    if not isinstance(failure, MillraceError) and any(sign in text for sign in _SIGNS_OF_LOSS):
        return DataLossError(
            f"Spark could not read what it planned: {_message(text)}",
            next_step="see whether the topic's retention overtook the stream; reset its group to go on without them",
        )
    return failure


def _message(text: str) -> str:
    """A Java failure's text without its stack."""
    return " ".join(line.strip() for line in text.splitlines() if not line.startswith("\tat "))[:1500]
