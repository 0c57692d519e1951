"""Errors of librdkafka by which a broker is known to be silent."""

from __future__ import annotations

from confluent_kafka import KafkaError

SILENT = frozenset(
    {
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
        KafkaError._DESTROY,  # the client was replaced while it waited
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.BROKER_NOT_AVAILABLE,
    }
)
"""Errors that say that a broker did not answer, and nothing of what was asked."""
