"""Sinks by their kind: what an instance of a stream writes to, and what a start asks beside the fence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from millrace.domain.declaration.pipeline import KafkaSink, OnBadRecord, PostgresSink, S3Sink, Sink, SinkMode
from millrace.domain.topics.offsets import TopicPartition
from millrace.errors import Code, DeclarationError
from millrace.wiring.objects import hasty_store

if TYPE_CHECKING:
    from millrace.adapters.kafka.log import KafkaLog
    from millrace.adapters.sinks.postgres.sink import Views
    from millrace.adapters.sinks.s3.reading import DatasetReader
    from millrace.domain.declaration.pipeline import Pipeline, Stream
    from millrace.domain.groups.commits import Committed
    from millrace.domain.sinks.batch import Identity
    from millrace.ports.objects import ObjectStore
    from millrace.ports.sinks import SinkStore
    from millrace.settings import Settings

Declared = TypeVar("Declared", bound=Sink)
EpochReader = Callable[[str], int]
"""Return the newest epoch that is on record of a stream, PIPELINE.STREAM; 0 where none is."""


@dataclass(frozen=True, slots=True)
class Instance:
    """An instance of a stream, and what its sink is opened with."""

    settings: Settings
    pipeline: Pipeline
    stream: Stream
    identity: Identity
    views: Views | None


def _no_epochs(settings: Settings, sink: Any) -> Mapping[str, EpochReader]:
    return {}


@dataclass(frozen=True, slots=True)
class Opener(Generic[Declared]):
    """How sinks of one kind are opened.

    Attributes:
        open: the sink of one instance; nothing is connected to yet.
        takes_views: whether an app may say something about a table.
        epochs: readers of epochs that the sink keeps beside the fence, by Connection; each has few seconds.
    """

    open: Callable[[Instance, Declared], SinkStore]
    takes_views: bool = False
    epochs: Callable[[Settings, Declared], Mapping[str, EpochReader]] = _no_epochs


def open_sink(
    settings: Settings, pipeline: Pipeline, stream: Stream, identity: Identity, views: Views | None
) -> SinkStore:
    """Return what a stream writes to, for one instance of it; nothing is connected to yet.

    Args:
        settings: the installation's.
        pipeline: the stream's.
        stream: as declared.
        identity: the instance.
        views: what its app says about its table, where it says something.

    Raises:
        DeclarationError: it says something about a table that the stream does not have.
    """
    opener = OPENERS[stream.sink.kind]
    if views is not None and not opener.takes_views:
        raise DeclarationError(
            f"the app has statements for a table, but {stream.qualified_name} writes to {stream.sink.named}",
            where=views.where,
            next_step="remove the file",
            code=Code.WRONG_TRANSFORM,
        )
    return opener.open(Instance(settings, pipeline, stream, identity, views), stream.sink)


def sink_epochs(settings: Settings, sink: Sink) -> Mapping[str, EpochReader]:
    """Return who else knows epochs of the streams that write to a sink, by Connection."""
    return OPENERS[sink.kind].epochs(settings, sink)


def _table(instance: Instance, sink: PostgresSink) -> SinkStore:
    from millrace.adapters.sinks.postgres.sink import PostgresAppend
    from millrace.adapters.sinks.postgres.upsert import PostgresUpsert

    to = instance.settings.postgres(sink.connection)
    if sink.mode is SinkMode.UPSERT:
        return PostgresUpsert(to, instance.identity, sink.table, sink.key, instance.views)
    return PostgresAppend(to, instance.identity, sink.table, instance.views)


def _dataset(instance: Instance, sink: S3Sink) -> SinkStore:
    from millrace.adapters.sinks.aside import Aside
    from millrace.adapters.sinks.s3 import sink as dataset_sink
    from millrace.adapters.sinks.s3.output import open_store

    s3 = instance.settings.s3(sink.store)
    aside = Aside(instance.settings.postgres(sink.connection), instance.identity)
    return dataset_sink.S3Sink(s3, instance.identity, sink, store=open_store(s3), aside=aside)


def dataset_reader(store: ObjectStore, sink: S3Sink) -> DatasetReader:
    """Return a reader of the dataset that streams write to by a sink; nothing is connected to yet."""
    from millrace.adapters.sinks.s3.reading import DatasetReader
    from millrace.domain.sinks.dataset.names import Dataset

    return DatasetReader(store, Dataset(sink.prefix))


def _epochs_of_dataset(settings: Settings, sink: S3Sink) -> Mapping[str, EpochReader]:
    """The control database, with its copy of the fence, may be what was restored: the chain knows too."""

    def newest_epoch(stream: str) -> int:
        return dataset_reader(hasty_store(settings, sink.store, attempts=1), sink).newest_epoch(stream)

    return {sink.store: newest_epoch}


def _topics(instance: Instance, sink: KafkaSink) -> SinkStore:
    from millrace.adapters.kafka.log import KafkaLog
    from millrace.adapters.kafka.topics import KafkaTopicAdmin
    from millrace.adapters.sinks.aside import Aside
    from millrace.adapters.sinks.kafka import sink as kafka_sink

    pipeline, stream, identity = instance.pipeline, instance.stream, instance.identity
    kafka = instance.settings.kafka(pipeline.kafka)
    logs = KafkaLog(kafka, client_id=f"millrace.{identity.application_name}")
    return kafka_sink.KafkaSink(
        kafka,
        identity,
        sink,
        [pipeline.topic(name) for name in sink.topics],
        admin=KafkaTopicAdmin(kafka),
        commits=partial(_of_now, logs, stream),
        aside=Aside(instance.settings.postgres(sink.connection), identity),
        stops=stream.on_bad_record is OnBadRecord.FAIL,
    )


def _of_now(logs: KafkaLog, stream: Stream) -> dict[TopicPartition, Committed]:
    """A group's commits of the partitions that the stream's topics have now."""
    partitions = logs.partitions(stream.reads)
    found = logs.committed(stream.group, partitions)
    return {p: found[p.topic, p.partition] for p in partitions if (p.topic, p.partition) in found}


OPENERS: Mapping[str, Opener[Any]] = {
    "postgres": Opener(_table, takes_views=True),
    "kafka": Opener(_topics),
    "s3": Opener(_dataset, epochs=_epochs_of_dataset),
}
"""By the word below `writes` in YAML."""
