"""The admin client of one cluster, replaced where the broker that it keeps to gives no answer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from confluent_kafka.admin import AdminClient

from millrace.errors import UnreachableError

ANSWER_MARGIN_SECONDS = 5.0
"""How much later than its own time-out the client may answer."""

Answer = TypeVar("Answer")


class SharedAdminClient:
    """An admin client that threads share; opened on first use.

    librdkafka sends requests to the broker that it once took for the controller, and keeps to it for minutes. A new
    client finds one that answers.

    Guarantees: threads that fail together open one new client. The client before the present one stays alive, with the
    requests that other threads have under way.
    Does not guarantee: that a request outlives two replacements; it then fails with `_DESTROY`.

    Args:
        open_client: opens a client.
    """

    def __init__(self, open_client: Callable[[], AdminClient]) -> None:
        self._open = open_client
        self._lock = threading.Lock()
        self._present: AdminClient | None = None
        self._former: AdminClient | None = None

    @property
    def present(self) -> AdminClient:
        """The client to ask now."""
        with self._lock:
            if self._present is None:
                self._present = self._open()
            return self._present

    def ask(self, call: Callable[[AdminClient, float], Answer], first_seconds: float, second_seconds: float) -> Answer:
        """Ask the present client, and a new one where nothing answers.

        Args:
            call: asks a client, within so many seconds.
            first_seconds: how long the first try may take.
            second_seconds: how long the second try may take.

        Raises:
            UnreachableError: neither got an answer.
        """
        client = self.present
        try:
            return call(client, first_seconds)
        except UnreachableError:
            self._replace(client)
        return call(self.present, second_seconds)

    def _replace(self, failed: AdminClient) -> None:
        """Put the client aside, unless another thread has done so already."""
        older = None  # its end takes a while, and comes after the lock
        with self._lock:
            if self._present is failed:
                older, self._former, self._present = self._former, failed, None
        del older
