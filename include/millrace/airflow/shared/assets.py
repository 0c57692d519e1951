"""Topics as Airflow assets, so that the asset graph shows who writes and who reads them.

A URI names the Connection and not its server: it holds no secret and is the same in every environment.
"""

from __future__ import annotations

from airflow.sdk import Asset


def topic_asset(connection: str, topic: str) -> Asset:
    """A Kafka topic."""
    return Asset(name=f"topic {topic}", uri=f"kafka://{connection}/{topic}", group="topic")
