"""Messages of Kafka's protocol that kafka-python 3.0 has not: their layouts lie beside this file, as Kafka's own do.

Source: KIP-848 (ConsumerGroupDescribe, key 69), held against a real broker by tests/contract/test_kafka_snapshot.py.
"""

from __future__ import annotations

from kafka.protocol.api_message import ApiMessage


class ConsumerGroupDescribeRequest(ApiMessage, load_json=__name__):  # type: ignore[call-arg, misc]
    """Asks a coordinator to describe groups of the protocol of KIP-848."""


class ConsumerGroupDescribeResponse(ApiMessage, load_json=__name__):  # type: ignore[call-arg, misc]
    """Its answer."""
