"""Many requests to many brokers at once, under one deadline, each counted: what a broker does not answer, it does not.

confluent-kafka asks for groups one by one, and hides what it sends. kafka-python sends what it is given to whom it is
told; its admin client is used for connections alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

from kafka.admin import KafkaAdminClient
from kafka.errors import IncompatibleBrokerVersion, KafkaError, KafkaTimeoutError

from millrace.errors import UnreachableError, UsageError
from millrace.settings import FILES_IN_PYTHON, KafkaSettings

_BOOTSTRAPS_AT_ONCE = 3
_IN_FLIGHT = 10_000  # kafka-python refuses, not queues, what exceeds its own bound
_LARGEST_ANSWER_BYTES = 512 * 1024 * 1024

Request = tuple[int, Any]
"""The id of a broker, and a request of kafka-python's."""


@dataclass(frozen=True, slots=True)
class Unanswered:
    """One request has no answer."""

    why: str

    def __str__(self) -> str:
        return self.why


class Conversation:
    """Connections to every broker of a cluster, until they are closed.

    Args:
        settings: the cluster.
        client_id: what the brokers are told of this client.
        timeout: how long the brokers may take to answer what is asked together.

    Attributes:
        requests: how many were sent so far. The handshakes of each connection are counted as one, and so is looking
            for the cluster at each address.

    Raises:
        UnreachableError: no address answers.
        UsageError: no client can be made of the connection's properties.
    """

    def __init__(self, settings: KafkaSettings, *, client_id: str, timeout: timedelta) -> None:
        self._timeout = timeout
        self._where = settings.bootstrap_servers
        self.requests = 0
        logging.getLogger("kafka").setLevel(logging.CRITICAL)  # it tells each failed connection many times
        self._refuse_missing_files(settings)
        self._client = self._open({**settings.for_python(), **self._bounds(), "client_id": client_id})
        self._greeted: set[int] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def brokers(self) -> list[int]:
        """The ids of the brokers that the cluster names, dead ones it still knows included."""
        return sorted(broker.node_id for broker in self._client._manager.cluster.brokers())

    def ask(self, requests: Sequence[Request]) -> list[Any]:
        """The answers in the order of the requests, each an `Unanswered` where there is none.

        All are sent at once; together they take the timeout at most.
        """
        if not requests:
            return []
        deadline = time.monotonic() + self._timeout.total_seconds()
        answers: list[Any] = self._client._manager.run(self._ask, requests, deadline)
        return answers

    def close(self) -> None:
        """Give the connections back, and end the thread they live in."""
        self._client.close()

    def _bounds(self) -> dict[str, Any]:
        milliseconds = self._timeout // timedelta(milliseconds=1)
        return {
            "request_timeout_ms": milliseconds,
            "bootstrap_timeout_ms": milliseconds,
            "max_in_flight_requests_per_connection": _IN_FLIGHT,
            "receive_message_max_bytes": _LARGEST_ANSWER_BYTES,
        }

    async def _ask(self, requests: Sequence[Request], deadline: float) -> list[Any]:
        pending = [self._send(node, request) for node, request in requests]
        return [one if isinstance(one, Unanswered) else await self._answer(one, deadline) for one in pending]

    def _send(self, node: int, request: Any) -> Any:
        """The future of an answer; an `Unanswered` where nothing can be sent."""
        if node not in self._greeted:
            self._greeted.add(node)
            self.requests += 1
        self.requests += 1
        try:
            return self._client._manager.send(request, node_id=node)
        except KafkaError as error:
            return Unanswered(_said(error))

    async def _answer(self, future: Any, deadline: float) -> Any:
        left = max(0.0, deadline - time.monotonic())
        try:
            return await self._client._manager.wait_for(future, left * 1000)
        except KafkaTimeoutError:
            return Unanswered(f"no answer within {self._timeout.total_seconds():g} s")
        except IncompatibleBrokerVersion:
            return Unanswered("the broker does not know this request")
        except KafkaError as error:
            return Unanswered(_said(error))

    def _open(self, configuration: dict[str, Any]) -> KafkaAdminClient:
        """The client of the first address that answers: one that hangs would take the whole time for itself."""
        addresses = [address.strip() for address in self._where.split(",") if address.strip()]
        failure: Exception | None = None
        for first in range(0, len(addresses), _BOOTSTRAPS_AT_ONCE):
            part = addresses[first : first + _BOOTSTRAPS_AT_ONCE]
            self.requests += 2 * len(part)
            pool = ThreadPoolExecutor(len(part), "kafka bootstrap")
            pending = {pool.submit(_client, {**configuration, "bootstrap_servers": address}) for address in part}
            pool.shutdown(wait=False)
            while pending:
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                opened = [one for one in done if one.exception() is None]
                if opened:
                    for other in (*opened[1:], *pending):
                        other.add_done_callback(_close_late)
                    return opened[0].result()
                failure = next(one.exception() for one in done)  # type: ignore[assignment]
        raise self._error(failure)

    def _refuse_missing_files(self, settings: KafkaSettings) -> None:
        """kafka-python would try again and again, and then call the cluster unreachable."""
        for key, path in settings.librdkafka.items():
            if key in FILES_IN_PYTHON and not Path(path).is_file():
                raise self._error(FileNotFoundError(f"{key}: there is no file {path}"))

    def _error(self, failure: Exception | None) -> Exception:
        if isinstance(failure, KafkaError):
            return UnreachableError(
                f"the Kafka cluster does not answer: {_said(failure)}",
                where=self._where,
                next_step="see with `millrace doctor` whether it runs and the connection is right",
            )
        return UsageError(
            f"no client can be made of the kafka connection's properties: {failure}",
            where=self._where,
            next_step="mend its extra: it holds librdkafka's own keys",
        )


def _client(configuration: dict[str, Any]) -> KafkaAdminClient:
    """A client that has found its cluster. One that has not leaves a thread behind, which is ended here."""
    made = KafkaAdminClient.__new__(KafkaAdminClient)
    try:
        made.__init__(**configuration)
    except BaseException:
        if hasattr(made, "_net"):
            made._client.close()
            made._net.stop()
        raise
    return made


def _close_late(future: Future[KafkaAdminClient]) -> None:
    if future.exception() is None:
        future.result().close()


def _said(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
