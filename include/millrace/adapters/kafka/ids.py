"""Kafka's own ids as Kafka prints them."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from uuid import UUID

from confluent_kafka import Uuid


def topic_id_text(topic_id: Uuid) -> str:
    """A topic id in the 22 characters of URL-safe base64 that the stock tools print and that fit into a path.

    The client's own text form is standard base64, which may hold `/` and `+`.

    Source: org.apache.kafka.common.Uuid#toString.
    """
    return str(topic_id).replace("+", "-").replace("/", "_").rstrip("=")


def uuid_text(topic_id: UUID) -> str:
    """The same of an id as kafka-python has it."""
    return urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")
