"""Any request to any broker, all at the same time and under one deadline."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from kafka.errors import Cancelled, IncompatibleBrokerVersion, KafkaConnectionError, KafkaError, KafkaTimeoutError
from kafka.errors import for_code as error_for_code
from kafka.future import Future
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector

from millrace.adapters.kafka.cluster.messages import all_topics

HEDGE_SECONDS = 1.0
"""After so long without the topics the next broker is asked for them too: the first may be one that hangs."""
_LARGEST_ANSWER_BYTES = 100_000_000
_IN_FLIGHT = 1000  # kafka-python refuses, rather than delays, what is over its limit
_PAUSE_SECONDS = 0.02


def reason(error: BaseException) -> str:
    """Why a broker did not answer, in a few words without secrets."""
    if isinstance(error, KafkaTimeoutError | TimeoutError) or "imed" in type(error).__name__:
        return "no answer in time"
    return (str(error) or type(error).__name__).splitlines()[0][:200]


def code_name(code: int) -> str:
    """Kafka's own name of an error code."""
    name = getattr(error_for_code(code), "message", None)
    return str(name) if name and name != "UNKNOWN" else f"error {code}"


class Conversation:
    """Connections to one cluster, driven by whoever calls `run`; no thread works between its calls.

    Args:
        addresses: `host:port`, in the order in which they are tried.
        configuration: kafka-python's, for security.
        client_id: how the broker's own tools name this client.

    Attributes:
        requests: how many were sent; what opening a connection takes (versions, authentication) is not among them.
        hung: something did not answer in time: connections may be half made, and it is best closed.

    Does not guarantee: anything for two threads at once.
    """

    def __init__(self, addresses: Sequence[str], configuration: Mapping[str, Any], client_id: str) -> None:
        logging.getLogger("kafka").setLevel(logging.CRITICAL)  # what it warns of is said in the snapshot's faults
        self.requests = 0
        self.hung = False
        self._net = NetworkSelector(client_id=client_id, slow_task_threshold_secs=0)
        self._manager = KafkaConnectionManager(
            self._net,
            bootstrap_servers=list(addresses),
            client_id=client_id,
            receive_message_max_bytes=_LARGEST_ANSWER_BYTES,
            max_in_flight_requests_per_connection=_IN_FLIGHT,
            **configuration,
        )
        self._addresses: dict[int, tuple[str, int]] = {}
        self._first: int | None = None

    def run(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """Do this work to its end; every other connection is served meanwhile."""
        return self._net.run(work)

    def close(self) -> None:
        """Close every connection; nothing may be asked after it."""
        self._manager.close()
        self._net.close()

    async def topics(self, deadline: float) -> Any:
        """The metadata of all topics, from the first broker that answers.

        Those that do not answer quickly are not waited for before the next is asked.

        Raises:
            KafkaError: none answered; it is what one of them met.
        """
        nodes = self._candidates()
        found, failures, tries = Future(), dict[Any, BaseException](), list[Any]()
        for node in nodes:
            tries.append(self._net.call_soon_with_future(self._try_topics, node, deadline, found, failures))
            wait_ms = max(0.0, min(HEDGE_SECONDS, deadline - time.monotonic())) * 1000
            with suppress(KafkaTimeoutError):
                await self._manager.wait_for(tries[-1], wait_ms)
            if found.is_done:
                break
        node, answer = await self._manager.wait_for(found, max(0.0, deadline - time.monotonic()) * 1000)
        self.hung = not all(each.is_done for each in tries if each is not tries[nodes.index(node)])
        self._learn(node, answer)
        return answer

    async def _try_topics(self, node: Any, deadline: float, found: Future, failures: dict[Any, BaseException]) -> None:
        try:
            answer = await self.ask(node, all_topics(), deadline)
            if not answer.brokers:
                raise KafkaConnectionError("it knows of no brokers")
        except Exception as error:
            failures[node] = error
            if len(failures) == len(self._candidates()) and not found.is_done:
                found.failure(error)
        else:
            if not found.is_done:
                found.success((node, answer))

    def _candidates(self) -> list[Any]:
        known = sorted(self._addresses, key=lambda node: (node != self._first, node))
        return [*known, *(broker.node_id for broker in self._manager.cluster.bootstrap_brokers())]

    def _learn(self, node: Any, answer: Any) -> None:
        """Remember where brokers are. A connection to where one was before is closed; so is that of the address."""
        now = {broker.node_id: (str(broker.host), int(broker.port)) for broker in answer.brokers}
        for known, address in self._addresses.items():
            if now.get(known) != address:
                self._manager.close(known)
        self._addresses = now
        self._manager.cluster.update_metadata(answer)
        self._first = node if node in now else None
        for bootstrap in self._manager.cluster.bootstrap_brokers():
            self._manager.close(bootstrap.node_id)

    @property
    def addresses(self) -> list[str]:
        """Where the brokers were last, the one that answered first at the head."""
        known = sorted(self._addresses, key=lambda node: (node != self._first, node))
        places = [self._addresses[node] for node in known]
        return [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in places]

    async def ask(self, node: Any, request: Any, deadline: float) -> Any:
        """One answer of one broker. A connection that turns out to be dead is opened again, once.

        Raises:
            IncompatibleBrokerVersion: the broker does not know such a request; nothing was sent.
            KafkaError: it did not answer.
        """
        for last in (False, True):
            was_open = self._is_open(node)
            try:
                return await self._ask_once(node, request, deadline)
            except (KafkaConnectionError, Cancelled):
                if last or not was_open:
                    raise
        raise AssertionError("unreachable")

    def _is_open(self, node: Any) -> bool:
        return any(connection.node_id == node for connection in self._manager.least_used_connections())

    async def _ask_once(self, node: Any, request: Any, deadline: float) -> Any:
        self._manager.reset_backoff(node)  # a look a minute is slow enough; one that came back is asked at once
        left_ms = max(1.0, (deadline - time.monotonic()) * 1000)
        connection = self._manager.get_connection(node, timeout_ms=left_ms, refresh_metadata_on_err=False)
        await connection
        while connection.paused and time.monotonic() < deadline:  # a quota
            await self._net.sleep(_PAUSE_SECONDS)
        left_ms = max(1.0, (deadline - time.monotonic()) * 1000)
        answer = connection.send_request(request, request_timeout_ms=left_ms)
        if not isinstance(answer.exception, IncompatibleBrokerVersion):
            self.requests += 1
        return await answer

    async def each(
        self, works: Mapping[int, Callable[[], Awaitable[None]]], deadline: float
    ) -> dict[int, BaseException]:
        """Do a work for each broker, all at the same time; gives why some did not come to their end.

        One that is not done by the deadline is left, and its connection closed.
        """
        begun = {node: self._net.call_soon_with_future(work) for node, work in works.items()}
        failures: dict[int, BaseException] = {}
        for node, future in begun.items():
            try:
                await self._manager.wait_for(future, max(0.0, deadline - time.monotonic()) * 1000)
            except KafkaError as error:
                failures[node] = error
                self.hung = self.hung or not isinstance(error, KafkaConnectionError)
                self._manager.close(node)
        return failures
