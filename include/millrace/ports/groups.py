"""Consumer groups, and snapshots of a whole cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from millrace.domain.groups.snapshots import Snapshot
from millrace.domain.topics.offsets import TopicPartition


class ConsumerGroups(Protocol):
    """Reads groups; changes only what `move` is given."""

    def lag(self, group: str, topics: Sequence[str]) -> int | None:
        """Records between the group's commits and the end of the topics, as a reader of committed data sees it.

        Raises:
            UnreachableError: the cluster does not answer.
        """
        ...

    def newest_epoch(self, group: str, topics: Sequence[str], stream: str) -> int:
        """Return the greatest epoch of a stream or a backup that the group's commits name; 0 where none does.

        Raises:
            UnreachableError: the cluster does not answer.
        """
        ...

    def move(self, group: str, moves: Mapping[TopicPartition, tuple[int, str]]) -> None:
        """Commit offsets, with their metadata, to a group that nobody is in; read back, so that it is so.

        Raises:
            RefusedError: somebody is in the group.
            UnreachableError: the cluster does not answer, or does not take a commit.
        """
        ...

    def members(self, group: str) -> int:
        """Return how many members the group has, also those that left without a word and are not timed out yet.

        Raises:
            UnreachableError: the cluster does not answer.
        """
        ...


class Cluster(Protocol):
    """Takes snapshots of one cluster; changes nothing, and keeps its connections from one to the next."""

    def close(self) -> None:
        """Close every connection; the next `take` opens them again."""
        ...

    def take(self) -> Snapshot:
        """Return what the cluster is now. Two threads wait for each other.

        Raises:
            UnreachableError: no broker answers.
            UsageError: the addresses of the Connection cannot be read.
        """
        ...
