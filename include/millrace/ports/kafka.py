"""Topics of a Kafka cluster."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from millrace.domain.topics.changes import NewTopic, ObservedTopic


class TopicAdmin(Protocol):
    """Topics of one Kafka cluster. Calls are batched: their number does not grow with the number of topics."""

    def cluster_id(self) -> str:
        """The cluster's own id."""
        ...

    def observe(self, names: Collection[str]) -> Mapping[str, ObservedTopic]:
        """The topics that exist among `names`.

        Raises:
            TopicAccessError: some may not be described, so that nobody can tell whether they exist.
            UnreachableError: the cluster does not answer.
        """
        ...

    def names(self) -> Collection[str]:
        """Return the names of all topics that this user may see, in one request.

        Raises:
            UnreachableError: the cluster does not answer.
        """
        ...

    def create(self, topics: Sequence[NewTopic]) -> Mapping[str, str | None]:
        """Create topics; per topic None, or why it failed. One that exists already is a failure.

        So is one whose name differs from an existing one in `.` and `_` only.
        """
        ...

    def add_partitions(self, totals: Mapping[str, int]) -> Mapping[str, str | None]:
        """Grow topics to these partition counts; per topic None, or why it failed."""
        ...

    def set_config(self, changes: Mapping[str, Mapping[str, str | None]]) -> Mapping[str, str | None]:
        """Set these keys of these topics and leave every other key alone; per topic None, or why it failed.

        A key without a value follows the broker's default again.
        """
        ...
