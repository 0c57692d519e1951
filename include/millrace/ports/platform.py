"""The adapters of one process, in groups: what every use case works with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # for annotations alone: whoever builds or takes a platform needs none of them
    from millrace.domain.declaration.pipeline import BackupApp, Pipeline, S3Sink, Sink, Stream
    from millrace.domain.streams.hosts import Host
    from millrace.ports.archive import ArchiveReader, AuditEvidence, Auditor, ChainHeads, Claims, Collector
    from millrace.ports.control.database import Control
    from millrace.ports.groups import Cluster, ConsumerGroups
    from millrace.ports.jobs import Recomputation, Redriving
    from millrace.ports.kafka import TopicAdmin
    from millrace.ports.logs import RestoreTarget, TopicLogs, TopicRecords, UnreadLogs
    from millrace.ports.objects import ObjectStore
    from millrace.ports.quality import QualityChecker, QualityEvidence
    from millrace.ports.runner import StreamRunner
    from millrace.ports.sink_readers import ActivityReader, DatasetReader, Fences, SinkBooks, SinkReader
    from millrace.settings import Settings


class Kafka(Protocol):
    """The clusters that `kafka` Connections lead to."""

    def topics(self, connection: str = "millrace_kafka") -> TopicAdmin:
        """Return the topics of a cluster, to create and change them."""
        ...

    def groups(self, connection: str = "millrace_kafka") -> ConsumerGroups:
        """Return the consumer groups of a cluster."""
        ...

    def cluster(self, connection: str = "millrace_kafka") -> Cluster:
        """Return the reader of a whole cluster; it keeps its connections."""
        ...

    def logs(self, connection: str = "millrace_kafka") -> TopicLogs:
        """Return the logs of a cluster: bounds, times and commits."""
        ...

    def records(self, connection: str = "millrace_kafka") -> TopicRecords:
        """Return a reader of records, range by range."""
        ...

    def unread(self, connection: str = "millrace_kafka") -> UnreadLogs:
        """Return the unread part of a cluster's logs, with the time until its records may be deleted."""
        ...

    def restore_target(
        self, topic: str, transactional_id: str, max_message_bytes: int, connection: str = "millrace_kafka"
    ) -> AbstractContextManager[RestoreTarget]:
        """Open a topic for one restore."""
        ...


class Sinks(Protocol):
    """The results of streams, to be read."""

    def tables(self, connection: str) -> SinkReader:
        """Return a reader of the database that a `postgres` Connection leads to."""
        ...

    def hasty_tables(self, connection: str) -> SinkReader:
        """Return the same for a page or a check of declarations: a statement has 1.5 s, a connection 2 s."""
        ...

    def books(self, connection: str) -> SinkBooks:
        """Return the books in the database that a `postgres` Connection leads to."""
        ...

    def fences(self, connection: str) -> Fences:
        """Return the fences in the database that a `postgres` Connection leads to."""
        ...

    def dataset(self, sink: S3Sink) -> DatasetReader:
        """Return a reader of the dataset that a stream writes to."""
        ...

    def epochs(self, sink: Sink) -> Mapping[str, Callable[[str], int]]:
        """Return readers of epochs that a sink keeps beside its fence, by Connection.

        Each takes a stream, PIPELINE.STREAM, and returns its newest epoch, 0 where there is none. A request has 5 s,
        because a start waits for it.
        """
        ...

    def checker(self, connection: str) -> QualityChecker:
        """Return the checker of rules on tables of the database that a `postgres` Connection leads to."""
        ...

    def activity(self, connection: str) -> ActivityReader:
        """Return the readings that the stream over the coordinator's log keeps in this database."""
        ...


class Archive(Protocol):
    """The archives of backups."""

    def reader(self, connection: str = "millrace_s3") -> ArchiveReader:
        """Return a reader of the archives in the bucket that an `aws` Connection leads to."""
        ...

    def hasty_heads(self, connection: str) -> ChainHeads:
        """Return the ends of the chains in a bucket for a start: each request is sent twice and has 5 s."""
        ...

    def evidence(self, connection: str = "millrace_s3") -> AuditEvidence:
        """Return the evidence of audits in the bucket that an `aws` Connection leads to."""
        ...

    def claims(self, app: BackupApp, kafka: str = "millrace_kafka") -> Claims:
        """Return what a backup's commits know of its chains."""
        ...

    def auditor(self, app: BackupApp, kafka: str = "millrace_kafka") -> Auditor:
        """Return the auditor of a backup's archives; it compares them with the cluster."""
        ...

    def collector(self, app: BackupApp, kafka: str = "millrace_kafka") -> Collector:
        """Return the collector of objects that a backup's archives no longer need."""
        ...


class Objects(Protocol):
    """Buckets."""

    def store(self, connection: str = "millrace_s3") -> ObjectStore:
        """Return the bucket that an `aws` Connection leads to; the same one to every thread."""
        ...

    def quality_evidence(self, connection: str = "millrace_s3") -> QualityEvidence:
        """Return the evidence of quality checks in this bucket."""
        ...


class Apps(Protocol):
    """Runners of apps and jobs, and the host that runs them."""

    def runner(self) -> StreamRunner:
        """Return the runner of stream apps.

        Raises:
            RefusedError: the apps run in another container.
            UsageError: the Connection asks for a runner that does not exist.
        """
        ...

    def last_lines(self, stream: str, epoch: int, count: int) -> Sequence[str]:
        """Return the last lines of an epoch's driver, `count` at most; also where no app may be started."""
        ...

    def host(self) -> Host:
        """Return this host; its identity is empty before the first start, and where it cannot be read."""
        ...

    def make_host(self) -> Host:
        """Return this host, with a new identity where it has none.

        Raises:
            RefusedError: the file of its identity is damaged, or cannot be written.
        """
        ...

    def digest_of(self, pipeline: Pipeline, stream: Stream) -> str:
        """Return the digest of the code and the declaration that decide what a stream makes of its records."""
        ...

    def recomputation(self) -> Recomputation:
        """Return the job that computes a stream's rows again.

        Raises:
            RefusedError: the apps run in another container.
        """
        ...

    def redriving(self) -> Redriving:
        """Return the job that puts quarantined records through a stream's app again.

        Raises:
            RefusedError: the apps run in another container.
        """
        ...


class Platform(Protocol):
    """The adapters of one process. Each is built on its first use and contacted by its first call."""

    @property
    def settings(self) -> Settings:
        """The installation's settings."""
        ...

    @property
    def kafka(self) -> Kafka:
        """The clusters."""
        ...

    @property
    def sinks(self) -> Sinks:
        """The results of streams."""
        ...

    @property
    def archive(self) -> Archive:
        """The archives of backups."""
        ...

    @property
    def control(self) -> Control:
        """The control database."""
        ...

    @property
    def apps(self) -> Apps:
        """Runners, jobs, and the host."""
        ...

    @property
    def objects(self) -> Objects:
        """Buckets."""
        ...

    @property
    def unanswered(self) -> MutableMapping[str, float]:
        """Connections that did not answer an optional look, and when, by `time.monotonic`."""
        ...

    @property
    def signed(self) -> MutableMapping[str, float]:
        """When this host last gave a sign of life, by `time.monotonic`, under its identity."""
        ...

    def close(self) -> None:
        """Give back what is kept between calls; the next use opens it again. May wait for a call that goes on."""
        ...

    def post(self, connection: str, document: Mapping[str, object]) -> None:
        """Send a document to the webhook that an `http` Connection leads to."""
        ...
