"""What about a topic's settings is allowed and probably not meant.

The same advice is given of what is declared, before there is a topic, and of what is in force on one. `declared` says
which settings somebody has chosen: of a setting that nobody has, nothing is said by itself, only of how Kafka's default
of it meets one that somebody has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from millrace.domain.formats.durations import roughly
from millrace.domain.formats.sizes import roughly_bytes
from millrace.domain.retention.settings import KEYS, LogSettings

PARTITIONS, REPLICATION = "partitions", "replication"
IN_FORCE = frozenset({*KEYS, PARTITIONS, REPLICATION})
"""What is `declared` where the settings are those in force on a topic: all of them are known."""

MOST_SEGMENTS = 1_000
"""Segments of a partition: each takes three open files and two mapped ones of its broker."""

_LEAST_SEGMENT, _USUAL_SEGMENT = 1024**2, 1024**3  # Kafka 4 takes no smaller `segment.bytes` (KIP-1030)
_LEAST_ROLL = timedelta(seconds=1)
_FOR_EVER = timedelta(days=365)
_COUNTED_SECONDS = 8e13  # the longest span that Python counts
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to look at: the setting it is about by its Kafka name, what is so, and what would be better."""

    setting: str
    what: str
    next_step: str


@dataclass(frozen=True, slots=True)
class _Case:
    name: str
    settings: LogSettings
    replication: int | None
    partitions: int | None
    has_key: bool | None
    fed_by_source: bool
    declared: frozenset[str]

    def chosen(self, *keys: str) -> str:
        """The first of these settings that somebody has chosen; empty where nobody has any."""
        return next((key for key in keys if key in self.declared), "")

    def origin(self, key: str) -> str:
        """What is said beside a value that nobody has chosen."""
        return "" if key in self.declared else " (Kafka's default)"


def advise(
    name: str,
    settings: LogSettings,
    *,
    replication: int | None,
    partitions: int | None,
    has_key: bool | None,
    fed_by_source: bool,
    declared: frozenset[str],
) -> list[Advice]:
    """What to look at again in a topic's settings; nothing where they are sound.

    Args:
        name: the topic's name.
        settings: its settings, with Kafka's defaults for those that nobody has chosen.
        replication: its replicas; None where nothing is to be said of them, as where one broker is all there is.
        partitions: how many it has; None where that is not known.
        has_key: whether its records have keys; None where that is not known.
        fed_by_source: whether a declared source program writes to it, whose records may be dated in the past.
        declared: the settings that somebody has chosen, by their Kafka names, `partitions` and `replication` among
            them; `IN_FORCE` where all are those of the topic as it is.
    """
    case = _Case(name, settings, replication, partitions, has_key, fed_by_source, declared)
    found = list(_durability(case))
    if settings.compacts and has_key is False and "cleanup.policy" in declared:
        what = "a compacted topic keeps the last record of each key, and refuses records without a key"
        found.append(
            Advice("cleanup.policy", what, "declare `key: {field: COLUMN}`, or choose the cleanup policy `delete`")
        )
    if settings.deletes:
        found += [*_too_large(case), *_too_long(case), *_too_short(case), *_too_small(case), *_dated(case)]
    return found


def _durability(case: _Case) -> Iterator[Advice]:
    """What the defaults that suit a developer's machine take from a cluster."""
    if case.partitions == 1 and PARTITIONS in case.declared:
        what = "one partition: records can be read by one task only, and adding partitions later moves keys"
        yield Advice(PARTITIONS, what, "declare as many as you may need")
    if case.replication is None:
        return
    in_sync, key = case.settings.in_sync, "min.insync.replicas"
    if case.replication == 1:
        yield Advice(REPLICATION, "one replica: records are lost with their broker", "declare 3 replicas")
    elif case.settings.unclean_election and "unclean.leader.election.enable" in case.declared:
        what = "a replica that lacks records may become the leader: acknowledged records are lost"
        yield Advice("unclean.leader.election.enable", what, _config("unclean.leader.election.enable", "false"))
    if key not in case.declared:
        return
    if in_sync > case.replication:
        what = f"{in_sync} replicas must be in sync, of only {case.replication}: writes with acks=all would fail"
        yield Advice(key, what, f"write at most {case.replication}")
    elif in_sync <= 1 < case.replication:
        what = "one replica in sync is enough: a record acknowledged with acks=all may be on one broker only"
        yield Advice(key, what, _config(key, 2))


def _too_large(case: _Case) -> Iterator[Advice]:
    """Segments too large for the limit by size: Kafka deletes whole ones."""
    limit, size = case.settings.size_bytes, case.settings.segment_bytes
    about = case.chosen("segment.bytes", "retention.bytes")
    if limit is None or not about or size <= limit / 2:
        return
    what = (
        f"Kafka deletes whole segments, of up to {roughly_bytes(size)}{case.origin('segment.bytes')}, "
        f"and keeps {roughly_bytes(limit)}: a partition holds up to {roughly_bytes(limit + size)}"
    )
    yield Advice(about, what, _config("segment.bytes", _segment(limit // 10)) + ", or a larger limit")


def _too_long(case: _Case) -> Iterator[Advice]:
    """Segments that are written to for longer than records are to be kept."""
    limit, roll = case.settings.time, case.settings.segment_time
    about = case.chosen("segment.ms", "retention.ms")
    if limit is None or not about or roll <= limit:
        return
    kept = timedelta(seconds=min(roll.total_seconds() + limit.total_seconds(), _COUNTED_SECONDS))
    what = (
        f"a segment is rolled when a record comes and its first one is {roughly(roll)} old"
        f"{case.origin('segment.ms')}, and deleted whole once its last one is {roughly(limit)} old: "
        f"records are kept for up to {roughly(kept)}"
    )
    yield Advice(about, what, _config("segment.ms", max(limit / 10, _LEAST_ROLL) // _MILLISECOND))


def _too_short(case: _Case) -> Iterator[Advice]:
    """Segments rolled so often that a partition has too many."""
    limit, roll = case.settings.time, case.settings.segment_time
    about = case.chosen("segment.ms", *(() if limit is None else ("retention.ms",)))
    kept = _FOR_EVER if limit is None else limit
    if not about or roll <= timedelta(0) or kept // roll <= MOST_SEGMENTS:
        return
    span = "a year, and no limit by time" if limit is None else roughly(kept) + case.origin("retention.ms")
    what = (
        f"a segment every {roughly(roll)}{case.origin('segment.ms')} for {span}: "
        f"up to {_segments(case, kept // roll)}, each with three open files"
    )
    yield Advice(about, what, _config("segment.ms", kept / 100 // _MILLISECOND))


def _too_small(case: _Case) -> Iterator[Advice]:
    """Segments so small that a partition has too many."""
    limit, size = case.settings.size_bytes, case.settings.segment_bytes
    about = case.chosen("segment.bytes", "retention.bytes")
    if limit is None or not about or not 0 < size < _USUAL_SEGMENT or limit // size <= MOST_SEGMENTS:
        return  # a limit that so many usual segments fit in cannot do with much fewer: Kafka takes none above 2 GiB
    what = (
        f"segments of {roughly_bytes(size)}{case.origin('segment.bytes')} for "
        f"{roughly_bytes(limit)}{case.origin('retention.bytes')}: "
        f"up to {_segments(case, limit // size)}, each with three open files"
    )
    yield Advice(about, what, _config("segment.bytes", _segment(limit // 100)))


def _config(key: str, value: object) -> str:
    return f"declare `config: {{{key}: {value}}}`"


def _segment(size: int) -> int:
    """A size of segments that Kafka takes, and none above its default."""
    return min(max(size, _LEAST_SEGMENT), _USUAL_SEGMENT)


def _segments(case: _Case, count: int) -> str:
    of_all = case.partitions and case.partitions > 1
    return f"{count:,} segments a partition" + (f", {count * (case.partitions or 1):,} in all" if of_all else "")


def _dated(case: _Case) -> Iterator[Advice]:
    """A limit by time on records that a program dates."""
    settings, about = case.settings, case.chosen("retention.ms")
    if case.fed_by_source and about and settings.time is not None and not settings.by_append_time:
        what = (
            f"a source program feeds {case.name} and dates its records itself (CreateTime): those dated more than "
            f"{roughly(settings.time)} ago are deleted at the next sweep, however new they are here"
        )
        by_append = _config("message.timestamp.type", "LogAppendTime").removeprefix("declare ")
        yield Advice(about, what, f"declare `retention: {{time: unlimited}}` or {by_append}")
