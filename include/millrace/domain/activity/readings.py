"""Who read what, when, and as whom: consumer groups by their commits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Reading:
    """What one client of a group committed of one topic in a time.

    Attributes:
        group: the group.
        topic: the topic.
        offsets: its last committed offset by partition.
        client_id: what the client that had the partitions calls itself; None: nobody is known to have had them, as of
            commits from outside the group.
        host: the address that the broker saw.
        instance: its `group.instance.id`, where it is a static member.
        first_commit: the first seen in that time.
        last_commit: the last seen.
        commits: how many, each partition by itself.
    """

    group: str
    topic: str
    offsets: Mapping[int, int]
    client_id: str | None
    host: str | None
    instance: str | None
    first_commit: datetime
    last_commit: datetime
    commits: int


@dataclass(frozen=True, slots=True)
class UnreadableRecords:
    """Records of the coordinator's log that this release cannot read, by the version in their keys (None: no key)."""

    version: int | None
    error: str
    records: int
