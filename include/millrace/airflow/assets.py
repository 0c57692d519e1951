"""Topics, streams and tables as Airflow assets, so that the asset graph shows the pipeline.

A URI names the Connection and not its server: it holds no secret and is the same in every environment.
"""

from __future__ import annotations

from airflow.sdk import Asset

from millrace.domain.declaration import PostgresSink, Stream


def topic_asset(connection: str, topic: str) -> Asset:
    """A Kafka topic."""
    return Asset(name=f"topic {topic}", uri=f"kafka://{connection}/{topic}", group="topic")


def stream_asset(stream: Stream) -> Asset:
    """A running stream."""
    return Asset(
        name=f"stream {stream.qualified_name}", uri=f"millrace://stream/{stream.pipeline}/{stream.name}", group="stream"
    )


def table_asset(sink: PostgresSink) -> Asset:
    """A table of a PostgreSQL sink.

    Airflow wants a port and a database in the URI; those given here are not real, the Connection knows.
    """
    schema, _, table = sink.table.partition(".")
    uri = f"postgres://{sink.connection}:5432/{sink.connection}/{schema}/{table}"
    return Asset(name=f"table {sink.table}", uri=uri, group="table")
