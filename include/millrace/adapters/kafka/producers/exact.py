"""A transactional producer that writes every timestamp there is: slower than librdkafka, which takes 0 for "now".

kafka-python's own `send` refuses a header without a value, and a record with neither key nor value. Both are valid, so
key, value and headers are handed over by its serializers, behind those checks.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from kafka import KafkaProducer
from kafka.errors import IllegalStateError, InvalidProducerEpochError, KafkaError, ProducerFencedError
from kafka.serializer import Serializer

from millrace.adapters.kafka.producers.transactions import ANSWER_SECONDS
from millrace.domain.archive.restore.records import Restored
from millrace.domain.archive.restore.target import CODEC
from millrace.domain.declaration.kafka_security import Client, refusals
from millrace.errors import Code, RefusedError
from millrace.settings import KafkaSettings

FENCED = (InvalidProducerEpochError, ProducerFencedError)
_CLOSE_SECONDS = 10.0
_DELIVERY_SECONDS = 45.0  # well below the answer time, so that it is the client which gives up, and says why
_MOST_RECORD_BYTES = 1_000_000_000
_MOST_DELTA = 1 << 63  # timestamps of a batch are kept as their distance from its first one
_SAME = {
    "client.id": "client_id",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
}
_WITHOUT_THEM = "leave such records out with --from or --to, or restore through a connection without these keys"
_TRANSLATED = frozenset({"sasl.mechanism", "sasl.mechanisms", "ssl.endpoint.identification.algorithm"})


class ExactProducer:
    """Writes records in transactions, bit for bit.

    Args:
        kafka: where the cluster is.
        transactional_id: whose producer this is; an older one is fenced, and what it had open is aborted.
        most_batch_bytes: what records that are sent together weigh.

    Raises:
        RefusedError: this client has no word for a setting of the connection.
        KafkaError: the broker does not answer, or says no.
    """

    def __init__(self, kafka: KafkaSettings, transactional_id: str, most_batch_bytes: int) -> None:
        self._failed = False
        logging.getLogger("kafka").setLevel(logging.CRITICAL)  # what it warns of is raised as well
        self._producer = KafkaProducer(
            **settings_of(kafka),
            transactional_id=transactional_id,
            acks="all",
            compression_type=CODEC,
            linger_ms=20,
            batch_size=most_batch_bytes,
            max_request_size=_MOST_RECORD_BYTES,
            max_in_flight_requests_per_connection=1,
            delivery_timeout_ms=int(_DELIVERY_SECONDS * 1000),
            metrics_enabled=False,
            key_serializer=_KeyAndHeaders(),
            value_serializer=_Value(),
        )
        try:
            self._producer.init_transactions()
        except KafkaError:
            self.close()
            raise

    def write(self, topic: str, records: Iterable[Restored]) -> None:
        """Write the records in one transaction: all of them, or none. After an error it writes no more.

        The transaction is committed only once every record of it was taken: the client commits one of which a batch
        has failed where it could renew its epoch meanwhile (kafka-python 3.0.12).

        Raises:
            KafkaError: it was not committed, as far as the client knows; the broker's own error where there is one.
            TimeoutError: the broker did not answer.
        """
        if self._failed:
            raise IllegalStateError("an earlier transaction of this producer has failed")
        try:
            _in_time(lambda: self._write(topic, records))
        except BaseException:
            self._failed = True
            raise

    def _write(self, topic: str, records: Iterable[Restored]) -> None:
        sent: list[Any] = []
        try:
            self._producer.begin_transaction()
            unsent: dict[int, tuple[int, int]] = {}  # least and greatest timestamp since the last flush, by partition
            for record in records:
                at = record.timestamp_ms
                least, greatest = unsent.get(record.partition, (at, at))
                least, greatest = min(least, at), max(greatest, at)
                if greatest - least >= _MOST_DELTA:
                    self._producer.flush(ANSWER_SECONDS)
                    unsent, least, greatest = {}, at, at
                unsent[record.partition] = least, greatest
                sent.append(
                    self._producer.send(
                        topic,
                        key=record,
                        value=record,
                        headers=_Headers(),
                        partition=record.partition,
                        timestamp_ms=at,
                    )
                )
            _all_taken(sent)
            self._producer.commit_transaction()
            _all_taken(sent)
        except KafkaError as error:
            raise next((future.exception for future in sent if future.failed()), error) from error

    def close(self) -> None:
        """End it; what was not committed counts as never written."""
        with suppress(KafkaError):  # that it could not send everything in time
            self._producer.close(0 if self._failed else _CLOSE_SECONDS)


def _all_taken(sent: Iterable[Any]) -> None:
    """See that the broker has taken every record; `flush` tells nothing of those that it refused."""
    deadline = time.monotonic() + ANSWER_SECONDS
    for future in sent:
        future.get(max(0.0, deadline - time.monotonic()))


class _Headers(list[tuple[str, bytes | None]]):
    """Headers that say they are none: the client then does not add up their lengths, which null values have not."""

    def __bool__(self) -> bool:
        return False


class _KeyAndHeaders(Serializer):  # type: ignore[misc]  # the package has no types
    """Gives a record's key, and puts its headers in."""

    def serialize(self, topic: str, headers: list[tuple[str, bytes | None]], data: Restored) -> bytes | None:
        """The key."""
        headers.extend(data.headers)
        return data.key


class _Value(Serializer):  # type: ignore[misc]  # the package has no types
    """Gives a record's value."""

    def serialize(self, topic: str, headers: list[tuple[str, bytes | None]], data: Restored) -> bytes | None:
        """The value."""
        return data.value


def settings_of(kafka: KafkaSettings) -> dict[str, Any]:
    """The connection's settings in the words of kafka-python.

    Raises:
        RefusedError: one that decides who may connect has no such word.
    """
    given: Mapping[str, str] = kafka.librdkafka
    if why := refusals(given, Client.PYTHON):
        raise RefusedError(
            f"a record of timestamp 0 needs the client kafka-python, which cannot connect: {'; '.join(why)}",
            where=kafka.bootstrap_servers,
            next_step=_WITHOUT_THEM,
            code=Code.UNSUPPORTED,
        )
    unknown = [
        key
        for key in sorted(given)
        if key.startswith(("sasl.", "ssl.", "enable.ssl.")) and key not in _SAME and key not in _TRANSLATED
    ]
    if unknown:
        raise RefusedError(
            f"a record of timestamp 0 needs the client kafka-python, which does not know {', '.join(unknown)}",
            where=kafka.bootstrap_servers,
            next_step=_WITHOUT_THEM,
            code=Code.UNSUPPORTED,
        )
    found: dict[str, Any] = {_SAME[key]: value for key, value in given.items() if key in _SAME}
    found["bootstrap_servers"] = given["bootstrap.servers"].split(",")
    found["security_protocol"] = given.get("security.protocol", "plaintext").upper()
    if mechanism := given.get("sasl.mechanism") or given.get("sasl.mechanisms"):
        found["sasl_mechanism"] = mechanism
    if given.get("ssl.endpoint.identification.algorithm") == "none":
        found["ssl_check_hostname"] = False
    return found


def _in_time(call: Callable[[], None]) -> None:
    """Make a call of a client that would wait for ever: in a thread that nobody has to join.

    Raises:
        TimeoutError: it did not return in twice the answer time.
        BaseException: whatever it raised.
    """
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, name="exact producer", daemon=True)
    thread.start()
    thread.join(2 * ANSWER_SECONDS)
    if thread.is_alive():
        raise TimeoutError(f"no answer within {2 * ANSWER_SECONDS:.0f} s")
    if raised:
        raise raised[0]
