"""What a stream writes to, built for one instance of it, as the Connections say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.domain.declaration import KafkaSink, OnBadRecord, PostgresSink, S3Sink, SinkMode
from millrace.domain.offsets import TopicPartition
from millrace.errors import DeclarationError

if TYPE_CHECKING:
    from millrace.adapters.kafka_log import KafkaLog
    from millrace.adapters.postgres_sink import Views
    from millrace.domain.declaration import Pipeline, Stream
    from millrace.domain.groups import Committed
    from millrace.domain.sinks import Identity
    from millrace.ports import SinkStore
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
    from millrace.adapters.postgres_sink import PostgresAppend
    from millrace.adapters.postgres_upsert import PostgresUpsert

    if sink.mode is SinkMode.UPSERT:
        return PostgresUpsert(to, identity, sink.table, sink.key, views)
    return PostgresAppend(to, identity, sink.table, views)


def _dataset(settings: Settings, sink: S3Sink, identity: Identity) -> SinkStore:
    from millrace.adapters.dataset import sink as dataset_sink
    from millrace.adapters.dataset.output import open_store
    from millrace.adapters.postgres_aside import Aside

    s3 = settings.s3(sink.store)
    aside = Aside(settings.postgres(sink.connection), identity)
    return dataset_sink.S3Sink(s3, identity, sink, store=open_store(s3), aside=aside)


def _kafka_sink(
    settings: Settings, pipeline: Pipeline, stream: Stream, sink: KafkaSink, identity: Identity
) -> SinkStore:
    from millrace.adapters import kafka_sink
    from millrace.adapters.kafka_log import KafkaLog
    from millrace.adapters.kafka_topics import KafkaTopicAdmin
    from millrace.adapters.postgres_aside import Aside

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
