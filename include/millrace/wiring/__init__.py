"""The only place that builds adapters: what a use case works with, opened when first asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from millrace.domain.declaration.pipeline import CONTROL, S3Sink, Sink
from millrace.errors import RefusedError, UsageError
from millrace.settings import Settings
from millrace.wiring.sinks import HASTY_SECONDS, EpochReader, sink_epochs

if TYPE_CHECKING:
    from millrace.adapters.archive.audits.auditor import Auditor
    from millrace.adapters.archive.audits.claims import Claims
    from millrace.adapters.archive.audits.evidence import EvidenceStore
    from millrace.adapters.archive.collecting import Collector
    from millrace.adapters.archive.heads import ChainHeads
    from millrace.adapters.archive.reading import ArchiveReader
    from millrace.adapters.control.pages import PageReader
    from millrace.adapters.control.store import ControlStore
    from millrace.adapters.kafka.cluster.snapshot import ClusterReader
    from millrace.adapters.kafka.groups import KafkaGroups
    from millrace.adapters.kafka.headroom import UnreadLogs
    from millrace.adapters.kafka.log import KafkaLog
    from millrace.adapters.kafka.producers.restore import RestoreTarget
    from millrace.adapters.kafka.reader import TopicReader
    from millrace.adapters.postgres.activity import ActivityReader
    from millrace.adapters.quality.checker import QualityChecker
    from millrace.adapters.quality.evidence import QualityEvidence
    from millrace.adapters.sinks.fence import FenceReader
    from millrace.adapters.sinks.postgres.books import SinkBooks
    from millrace.adapters.sinks.postgres.reader import SinkReader
    from millrace.adapters.sinks.s3.reading import DatasetReader
    from millrace.domain.archive.names import Incarnation
    from millrace.domain.declaration.pipeline import BackupApp, Pipeline, Stream
    from millrace.domain.streams.control import MigrationReport
    from millrace.domain.streams.hosts import Host
    from millrace.ports.jobs import Recomputation, Redriving
    from millrace.ports.kafka import TopicAdmin
    from millrace.ports.objects import ObjectStore
    from millrace.ports.runner import StreamRunner
    from millrace.usecases.example.run import ExampleParts
    from millrace.usecases.topics.sources import LoadProgress, LoadReport

CONTROL_OWNER = "millrace_control_owner"
SPARK = "millrace_spark"
BOOKS_SECONDS = 600  # for one statement about a million offsets: in a table whose key was dropped it reads all rows
PAGE_SECONDS = 1.5  # for the statements of one page; the page as a whole has two seconds


@dataclass(frozen=True)
class Platform:
    """The adapters of one process. Each is built on its first use and then kept; none is contacted before.

    Attributes:
        unanswered: connections that did not answer a look that can be left out, and when by `time.monotonic`.
        signed: when this host last gave a sign of life, by `time.monotonic`, under its identity.
    """

    settings: Settings
    _control: list[ControlStore] = field(default_factory=list, repr=False)
    _topic_admins: dict[str, TopicAdmin] = field(default_factory=dict, repr=False)
    _runners: list[StreamRunner] = field(default_factory=list, repr=False)
    _groups: dict[str, KafkaGroups] = field(default_factory=dict, repr=False)
    _pages: list[PageReader] = field(default_factory=list, repr=False)
    unanswered: dict[str, float] = field(default_factory=dict, repr=False)
    signed: dict[str, float] = field(default_factory=dict, repr=False)
    _logs: dict[str, KafkaLog] = field(default_factory=dict, repr=False)
    _stores: dict[str, ObjectStore] = field(default_factory=dict, repr=False)
    _cluster_readers: dict[str, ClusterReader] = field(default_factory=dict, repr=False)

    def control(self) -> ControlStore:
        """The control database."""
        if not self._control:
            from millrace.adapters.control.store import ControlStore

            self._control.append(ControlStore(self.settings.postgres(CONTROL)))
        return self._control[0]

    def topic_admin(self, connection: str = "millrace_kafka") -> TopicAdmin:
        """The topics of the cluster that a `kafka` Connection leads to."""
        if connection not in self._topic_admins:
            from millrace.adapters.kafka.topics import KafkaTopicAdmin

            self._topic_admins[connection] = KafkaTopicAdmin(self.settings.kafka(connection))
        return self._topic_admins[connection]

    def groups(self, connection: str = "millrace_kafka") -> KafkaGroups:
        """The consumer groups of the cluster that a `kafka` Connection leads to."""
        if connection not in self._groups:
            from millrace.adapters.kafka.groups import KafkaGroups

            self._groups[connection] = KafkaGroups(self.settings.kafka(connection))
        return self._groups[connection]

    def cluster_reader(self, connection: str = "millrace_kafka") -> ClusterReader:
        """Looks at the whole cluster that a `kafka` Connection leads to; keeps its connections."""
        if connection not in self._cluster_readers:
            from millrace.adapters.kafka.cluster.snapshot import ClusterReader

            self._cluster_readers[connection] = ClusterReader(self.settings.kafka(connection))
        return self._cluster_readers[connection]

    def kafka_log(self, connection: str = "millrace_kafka") -> KafkaLog:
        """The logs of the cluster that a `kafka` Connection leads to."""
        if connection not in self._logs:
            from millrace.adapters.kafka.log import KafkaLog

            self._logs[connection] = KafkaLog(self.settings.kafka(connection), client_id="millrace")
        return self._logs[connection]

    def object_store(self, connection: str = "millrace_s3") -> ObjectStore:
        """The bucket that an `aws` Connection leads to."""
        if connection not in self._stores:
            from millrace.adapters.s3.store import S3Store

            self._stores.setdefault(connection, S3Store(self.settings.s3(connection)))  # one, also for two threads
        return self._stores[connection]

    def archive_reader(self, connection: str = "millrace_s3") -> ArchiveReader:
        """The archives in the bucket that an `aws` Connection leads to, to be read."""
        from millrace.adapters.archive.reading import ArchiveReader

        return ArchiveReader(self.object_store(connection))

    def hasty_heads(self, connection: str) -> ChainHeads:
        """The ends of the chains in a bucket, for a start of their app: each request is sent twice, and has 5 s."""
        from millrace.adapters.archive.heads import ChainHeads
        from millrace.adapters.s3.store import S3Store

        return ChainHeads(S3Store(self.settings.s3(connection), attempts=2, read_seconds=HASTY_SECONDS))

    def evidence(self, connection: str = "millrace_s3") -> EvidenceStore:
        """What audits of archives found, in the bucket that an `aws` Connection leads to."""
        from millrace.adapters.archive.audits.evidence import EvidenceStore

        return EvidenceStore(self.object_store(connection))

    def claims(self, app: BackupApp, kafka: str = "millrace_kafka") -> Claims:
        """What a backup's commits know of its chains, by the cluster that a `kafka` Connection leads to."""
        from millrace.adapters.archive.audits.claims import Claims

        return Claims(self.kafka_log(kafka), app)

    def auditor(self, app: BackupApp, kafka: str = "millrace_kafka") -> Auditor:
        """Audits a backup's archives, held against the cluster that a `kafka` Connection leads to."""
        from millrace.adapters.archive.audits.auditor import Auditor
        from millrace.adapters.archive.looks import Looks
        from millrace.domain.topics.offsets import TopicPartition

        looks, reader = Looks(self.kafka_log(kafka), self.topic_admin(kafka)), self.topic_reader(kafka)

        def deletable(here: Incarnation, positions: dict[int, int]) -> timedelta | None:
            asked = {TopicPartition(here.topic, here.topic_id, number): at for number, at in positions.items()}
            least = self.unread_logs(kafka).least(asked)
            return least.left if least else None

        return Auditor(
            app=app.qualified_name,
            store=self.object_store(app.store),
            look=lambda topic: looks.look([topic])[topic],
            reads=reader.between,
            claims=self.claims(app, kafka).of,
            deletable=deletable,
        )

    def collector(self, app: BackupApp, kafka: str = "millrace_kafka") -> Collector:
        """Finds and deletes what a backup's archives need no more."""
        from millrace.adapters.archive.collecting import Collector
        from millrace.adapters.archive.looks import Looks

        looks = Looks(self.kafka_log(kafka), self.topic_admin(kafka))
        return Collector(self.object_store(app.store), lambda topic: looks.look([topic])[topic])

    def topic_reader(self, connection: str = "millrace_kafka") -> TopicReader:
        """Bounded reads of topics of the cluster that a `kafka` Connection leads to."""
        from millrace.adapters.kafka.reader import TopicReader

        return TopicReader(self.settings.kafka(connection))

    def restore_target(
        self, topic: str, transactional_id: str, max_message_bytes: int, connection: str = "millrace_kafka"
    ) -> AbstractContextManager[RestoreTarget]:
        """A topic open for one restore (see `adapters.kafka.producers.restore.open_restore_target`)."""
        from millrace.adapters.kafka.producers.restore import open_restore_target

        return open_restore_target(self.settings.kafka(connection), topic, transactional_id, max_message_bytes)

    def unread_logs(self, connection: str = "millrace_kafka") -> UnreadLogs:
        """What readers have not read of the cluster that a `kafka` Connection leads to, and how long it stays."""
        from millrace.adapters.kafka.headroom import UnreadLogs

        return UnreadLogs(self.kafka_log(connection), self.topic_admin(connection), self.topic_reader(connection))

    def dataset(self, sink: S3Sink) -> DatasetReader:
        """The dataset that a stream writes to, to be read."""
        from millrace.adapters.sinks.s3.reading import DatasetReader
        from millrace.domain.sinks.dataset.names import Dataset

        return DatasetReader(self.object_store(sink.store), Dataset(sink.prefix))

    def sink_epochs(self, sink: Sink) -> Mapping[str, EpochReader]:
        """Readers of epochs that a sink keeps beside its fence, by Connection; each request has 5 s."""
        return sink_epochs(self.settings, sink)

    def fences(self, connection: str) -> FenceReader:
        """The fences in the sink database that a `postgres` Connection leads to."""
        from millrace.adapters.sinks.fence import FenceReader

        return FenceReader(self.settings.postgres(connection))

    def sink(self, connection: str) -> SinkReader:
        """What streams have written to the database that a `postgres` Connection leads to."""
        from millrace.adapters.sinks.postgres.reader import SinkReader

        return SinkReader(self.settings.postgres(connection))

    def sink_books(self, connection: str) -> SinkBooks:
        """The books in the database that a `postgres` Connection leads to."""
        from millrace.adapters.sinks.postgres.books import SinkBooks

        return SinkBooks(self.settings.postgres(connection), statement_seconds=BOOKS_SECONDS)

    def recomputation(self) -> Recomputation:
        """What makes rows of a stream again: Spark, in a process of its own, where apps run.

        Raises:
            RefusedError: the apps run in another container.
        """
        from millrace.adapters.apps.jobs.recompute import RecomputeJob

        self._must_be_here()
        return RecomputeJob(self.settings)

    def digest_of(self, pipeline: Pipeline, stream: Stream) -> str:
        """What decides what becomes of a stream's records, as a digest."""
        from millrace.adapters.apps.code import digest_of

        return digest_of(self.settings.root, pipeline, stream)

    def redriving(self) -> Redriving:
        """What puts records in quarantine through again: Spark, in a process of its own, where apps run.

        Raises:
            RefusedError: the apps run in another container.
        """
        from millrace.adapters.apps.jobs.redrive import RedriveJob

        self._must_be_here()
        return RedriveJob(self.settings)

    def quality_checker(self, connection: str) -> QualityChecker:
        """Holds rules against tables of the database that a `postgres` Connection leads to."""
        from millrace.adapters.quality.checker import QualityChecker

        return QualityChecker(self.settings.postgres(connection))

    def quality_evidence(self, connection: str = "millrace_s3") -> QualityEvidence:
        """What checks of quality found, in the bucket that an `aws` Connection leads to."""
        from millrace.adapters.quality.evidence import QualityEvidence

        return QualityEvidence(self.object_store(connection))

    def activity(self, connection: str) -> ActivityReader:
        """Who read what, as the stream over the coordinator's log has kept it in this database."""
        from millrace.adapters.postgres.activity import ActivityReader

        return ActivityReader(self.settings.postgres(connection))

    def hasty_sink(self, connection: str) -> SinkReader:
        """The same for a page or a check of declarations, that have no time to wait."""
        from millrace.adapters.sinks.postgres.reader import SinkReader

        return SinkReader(self.settings.postgres(connection), statement_seconds=PAGE_SECONDS, connect_seconds=2)

    def post(self, connection: str, document: Mapping[str, object]) -> None:
        """Send a document to the webhook that an `http` Connection leads to (see `adapters.alarms.webhook.post`)."""
        from millrace.adapters.alarms.webhook import post

        post(self.settings.connection(connection), document)

    def pages(self) -> PageReader:
        """What pages show, out of the control database."""
        if not self._pages:
            from millrace.adapters.control.pages import PageReader

            self._pages.append(PageReader(self.settings.postgres(CONTROL), timedelta(seconds=PAGE_SECONDS)))
        return self._pages[0]

    def host(self) -> Host:
        """Return this host; its identity is empty before the first start, and where it cannot be read."""
        from millrace.adapters.apps.host import read_host

        return read_host(self.settings.root)

    def make_host(self) -> Host:
        """Return this host, with a new identity where it has none.

        Raises:
            RefusedError: the file of its identity is damaged, or cannot be written.
        """
        from millrace.adapters.apps.host import make_host

        return make_host(self.settings.root)

    def runner(self) -> StreamRunner:
        """Where stream apps run: `process` for a `millrace_spark` whose host is `local`.

        Raises:
            RefusedError: the apps run in another container.
            UsageError: the Connection asks for a runner that does not exist.
        """
        host = self.settings.connection(SPARK).host if self.settings.lookup(SPARK) else "local"
        if host != "local":
            raise UsageError(
                f"there is no runner for a Spark at `{host}` yet",
                where="connection " + SPARK,
                next_step="run this where its host is `local`: apps are processes of that machine "
                "(with docker-compose.yaml, of the container `streams`)",
            )
        self._must_be_here()
        return self._process_runner()

    def _must_be_here(self) -> None:
        from millrace.adapters.apps.processes import is_elsewhere

        if is_elsewhere(self.settings.root):
            raise RefusedError(
                "the apps of this project run in another container, where they cannot be seen from here",
                where=str(self.settings.root),
                next_step="run this in that container: `docker compose exec streams ./millrace ...`",
            )

    def last_lines(self, stream: str, epoch: int, count: int) -> Sequence[str]:
        """What the driver of an epoch said last, at most so many lines; also where no app may be started."""
        return self._process_runner().last_lines(stream, epoch, count)

    def _process_runner(self) -> StreamRunner:
        if not self._runners:
            from millrace.adapters.apps.runners.process import ProcessRunner

            self._runners.append(ProcessRunner(self.settings))
        return self._runners[0]


def open_platform(settings: Settings) -> Platform:
    """The real adapters, as the Connections of these settings say."""
    return Platform(settings)


def upgrade_control(settings: Settings) -> MigrationReport:
    """Bring the control database up to date, as its owner where `millrace_control_owner` is defined."""
    from millrace.adapters.control.migrations.upgrade import upgrade

    working = settings.postgres(CONTROL)
    owner = settings.postgres(CONTROL_OWNER) if settings.lookup(CONTROL_OWNER) is not None else working
    return upgrade(owner, working.user)


def load_source(
    settings: Settings, pipeline: Pipeline, name: str, progress: Callable[[LoadProgress], None]
) -> LoadReport:
    """Load a declared source into its topic (see `usecases.topics.sources.load_source`)."""
    from millrace.adapters.kafka.producers.source import open_source_topic
    from millrace.usecases.topics import sources

    return sources.load_source(settings, pipeline, name, progress, open_topic=open_source_topic)


def open_example(settings: Settings, airflow_url: str) -> ExampleParts:
    """What the example works with: its declaration, its source program, Airflow at this address, Kafka and the sink."""
    from millrace.adapters.airflow.api import AirflowApi, embedded_address
    from millrace.adapters.kafka.log import KafkaLog
    from millrace.adapters.kafka.reader import TopicReader
    from millrace.adapters.sinks.postgres.reader import SinkReader
    from millrace.declarations.project import load_pipeline
    from millrace.domain.quality.recompute import MOST_SAMPLED
    from millrace.usecases.archive.audits import backed_topics
    from millrace.usecases.example import run as example
    from millrace.usecases.example.backup import prove
    from millrace.usecases.example.quality import ACTOR, verdict_on
    from millrace.usecases.example.retention import retention_line
    from millrace.usecases.quality import books as quality_books
    from millrace.usecases.quality.recompute import recompute
    from millrace.usecases.topics.sources import find_source, load_program

    pipeline = load_pipeline(settings.root, example.PIPELINE)
    stream = pipeline.stream(example.STREAM)
    kafka = settings.kafka(pipeline.kafka)
    platform = open_platform(settings)
    return example.ExampleParts(
        pipeline=pipeline,
        records=load_program(settings.root, find_source(pipeline, example.SOURCE).program),
        airflow=AirflowApi(embedded_address(settings.state_folder, airflow_url)),
        reader=TopicReader(kafka),
        log=KafkaLog(kafka, client_id="millrace.example"),
        sink=SinkReader(settings.postgres(stream.sink.connection)),
        proof=lambda incarnation: prove(platform, backed_topics([pipeline], incarnation.topic)[0], incarnation),
        kept=lambda topic: retention_line(platform, pipeline.kafka, topic),
        books=lambda: quality_books.reconcile(platform, pipeline, stream, actor=ACTOR, deep=True, kept=False),
        made_again=lambda: recompute(platform, pipeline, stream, sample=MOST_SAMPLED, seed=0),
        quality=lambda: verdict_on(platform, pipeline, stream),
        state_folder=settings.state_folder,
    )
