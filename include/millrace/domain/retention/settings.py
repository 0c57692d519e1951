"""What decides how long a topic keeps its records, out of the settings in force on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

_MILLISECOND = timedelta(milliseconds=1)
_LONGEST_MS = timedelta(days=3_650_000) // _MILLISECOND  # ten thousand years: sums of these are still times
_DEFAULTS = {
    "cleanup.policy": "delete",
    "delete.retention.ms": "86400000",
    "file.delete.delay.ms": "60000",
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.insync.replicas": "1",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.ms": "604800000",
    "unclean.leader.election.enable": "false",
}
KEYS = tuple(sorted(_DEFAULTS))
"""The topic settings that are looked at, by their Kafka names. Source: `TopicConfig` of Kafka 4.3."""


@dataclass(frozen=True, slots=True)
class LogSettings:
    """How a topic's logs are rolled, deleted and compacted.

    Attributes:
        deletes: whether `cleanup.policy` has `delete`.
        compacts: whether it has `compact`.
        time: `retention.ms`; None: without limit.
        size_bytes: `retention.bytes`, of each partition; None: without limit.
        segment_time: `segment.ms`: a record rolls a segment whose first one is older than this.
        segment_bytes: `segment.bytes`.
        delete_delay: `file.delete.delay.ms`: how long the files of what was deleted stay on disk.
        dirty_ratio: `min.cleanable.dirty.ratio`: how much of a log is written anew before it is compacted.
        tombstones: `delete.retention.ms`: how long a compacted log keeps them after it was compacted.
        by_append_time: whether `message.timestamp.type` is LogAppendTime: nothing is dated but by the broker.
        in_sync: `min.insync.replicas`.
        unclean_election: `unclean.leader.election.enable`.
    """

    deletes: bool = True
    compacts: bool = False
    time: timedelta | None = timedelta(days=7)
    size_bytes: int | None = None
    segment_time: timedelta = timedelta(days=7)
    segment_bytes: int = 1 << 30
    delete_delay: timedelta = timedelta(minutes=1)
    dirty_ratio: float = 0.5
    tombstones: timedelta = timedelta(days=1)
    by_append_time: bool = False
    in_sync: int = 1
    unclean_election: bool = False

    @property
    def limited(self) -> bool:
        """Whether it deletes what is old or too much."""
        return self.deletes and (self.time is not None or self.size_bytes is not None)


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """What of the brokers' own settings decides it.

    Attributes:
        check_every: `log.retention.check.interval.ms`: how often a broker looks for what it may delete.
    """

    check_every: timedelta = timedelta(minutes=5)


def log_settings(values: Mapping[str, str]) -> LogSettings:
    """The settings of a topic by their Kafka names; what is missing, or empty, is as Kafka 4.3 has it by default."""

    def text(key: str) -> str:
        return values.get(key) or _DEFAULTS[key]

    policy = values.get("cleanup.policy", _DEFAULTS["cleanup.policy"])  # empty: neither, as Kafka has it since KIP-1161
    policies = {part.strip().lower() for part in policy.split(",")}
    size = int(text("retention.bytes"))
    return LogSettings(
        deletes="delete" in policies,
        compacts="compact" in policies,
        time=limit_of(text("retention.ms")),
        size_bytes=None if size < 0 else size,
        segment_time=_time(text("segment.ms")),
        segment_bytes=int(text("segment.bytes")),
        delete_delay=_time(text("file.delete.delay.ms")),
        dirty_ratio=float(text("min.cleanable.dirty.ratio")),
        tombstones=_time(text("delete.retention.ms")),
        by_append_time=text("message.timestamp.type") == "LogAppendTime",
        in_sync=int(text("min.insync.replicas")),
        unclean_election=text("unclean.leader.election.enable").lower() == "true",
    )


def limit_of(milliseconds: str) -> timedelta | None:
    """A limit of time as Kafka has it: -1, and what is longer than ten thousand years, is without limit."""
    number = int(milliseconds)
    return None if number < 0 or number > _LONGEST_MS else timedelta(milliseconds=number)


def _time(milliseconds: str) -> timedelta:
    return timedelta(milliseconds=min(int(milliseconds), _LONGEST_MS))
