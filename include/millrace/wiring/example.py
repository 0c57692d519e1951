"""The example's run, with its adapters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.settings import Settings

if TYPE_CHECKING:
    from millrace.usecases.example.run import ExampleParts


def open_example(settings: Settings, airflow_url: str) -> ExampleParts:
    """Return the parts of the example's run: its declaration, its source program, Airflow, Kafka and the sink."""
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
    from millrace.wiring.platform import open_platform

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
