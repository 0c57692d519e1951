"""What a stream writes to, built for one instance of it, as the Connections say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.domain.declaration.pipeline import KafkaSink, OnBadRecord, PostgresSink, S3Sink, SinkMode
from millrace.domain.topics.offsets import TopicPartition
from millrace.errors import DeclarationError

if TYPE_CHECKING:
    from millrace.adapters.kafka.log import KafkaLog
    from millrace.adapters.sinks.postgres.sink import Views
    from millrace.domain.declaration.pipeline import Pipeline, Stream
    from millrace.domain.groups.commits import Committed
    from millrace.domain.sinks.batch import Identity
    from millrace.ports.sinks import SinkStore
    from millrace.settings import PostgresSettings, Settings


def open_sink(
    settings: Settings, pipeline: Pipeline, stream: Stream, identity: Identity, views: Views | None
) -> SinkStore:
    """What a stream writes to, for one instance of it; nothing is connected to yet.

    Args:
        settings: the installation's.
        pipeline: the stream's.
        stream: as declared.
        identity: the instance.
        views: what its app says about its table, where it says something.

    Raises:
        DeclarationError: it says something about a table that the stream does not have.
    """
    sink = stream.sink
    if isinstance(sink, PostgresSink):
        return _table(settings.postgres(sink.connection), sink, identity, views)
    if views is not None:
        raise DeclarationError(
            f"the app has statements about a table, and {stream.qualified_name} writes to {sink.named}",
            where=views.where,
            next_step="remove the file",
        )
    if isinstance(sink, KafkaSink):
        return _kafka_sink(settings, pipeline, stream, sink, identity)
    return _dataset(settings, sink, identity)


def _table(to: PostgresSettings, sink: PostgresSink, identity: Identity, views: Views | None) -> SinkStore:
    from millrace.adapters.sinks.postgres.sink import PostgresAppend
    from millrace.adapters.sinks.postgres.upsert import PostgresUpsert

    if sink.mode is SinkMode.UPSERT:
        return PostgresUpsert(to, identity, sink.table, sink.key, views)
    return PostgresAppend(to, identity, sink.table, views)


def _dataset(settings: Settings, sink: S3Sink, identity: Identity) -> SinkStore:
    from millrace.adapters.sinks.aside import Aside
    from millrace.adapters.sinks.s3 import sink as dataset_sink
    from millrace.adapters.sinks.s3.output import open_store

    s3 = settings.s3(sink.store)
    aside = Aside(settings.postgres(sink.connection), identity)
    return dataset_sink.S3Sink(s3, identity, sink, store=open_store(s3), aside=aside)


def _kafka_sink(
    settings: Settings, pipeline: Pipeline, stream: Stream, sink: KafkaSink, identity: Identity
) -> SinkStore:
    from millrace.adapters.kafka.log import KafkaLog
    from millrace.adapters.kafka.topics import KafkaTopicAdmin
    from millrace.adapters.sinks.aside import Aside
    from millrace.adapters.sinks.kafka import sink as kafka_sink

    kafka = settings.kafka(pipeline.kafka)
    logs = KafkaLog(kafka, client_id=f"millrace.{identity.application_name}")
    return kafka_sink.KafkaSink(
        kafka,
        identity,
        sink,
        [pipeline.topic(name) for name in sink.topics],
        admin=KafkaTopicAdmin(kafka),
        commits=lambda: _of_now(logs, stream),
        aside=Aside(settings.postgres(sink.connection), identity),
        stops=stream.on_bad_record is OnBadRecord.FAIL,
    )


def _of_now(logs: KafkaLog, stream: Stream) -> dict[TopicPartition, Committed]:
    """A group's commits of the partitions that the stream's topics have now."""
    partitions = logs.partitions(stream.reads)
    found = logs.committed(stream.group, partitions)
    return {p: found[p.topic, p.partition] for p in partitions if (p.topic, p.partition) in found}
