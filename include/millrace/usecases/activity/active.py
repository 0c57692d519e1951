"""Who read what, as the stream over the coordinator's log has kept it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from millrace.declarations import load_pipeline
from millrace.domain.activity.readings import Reading, UnreadableRecords
from millrace.errors import Code, UsageError
from millrace.usecases.sinks.required import table_of

if TYPE_CHECKING:
    from millrace.ports.platform import Platform

PIPELINE, STREAM = "activity", "groups"
_START = f"run `./millrace streams start {PIPELINE}.{STREAM} --reason ...`"


@dataclass(frozen=True, slots=True)
class Activity:
    """Readings, the latest first, whether there are more, and what could not be read of the log."""

    readings: Sequence[Reading]
    unreadable: Sequence[UnreadableRecords] = ()
    is_cut: bool = False


def active(
    platform: Platform,
    since: timedelta,
    group: str | None = None,
    topic: str | None = None,
    limit: int = 200,
    *,
    now: datetime | None = None,
) -> Activity:
    """Who committed offsets of what, and when.

    Args:
        platform: where the stream's sink is.
        since: how far to look back.
        group: only of this group.
        topic: only of this topic.
        limit: how many readings at most.
        now: the time to look back from; None: by the clock.

    Guarantees: what was committed up to two triggers of the stream ago is among it, while the stream runs.
    Does not guarantee: to see a group that reads and never commits to Kafka, or every commit: of each group and
    partition the last of a batch is kept, and how many there were.

    Raises:
        UsageError: the stream is not declared, or was never started.
        RefusedError: its sink lacks the capability.
        InvalidDeclarationError: its declaration is wrong.
        UnreachableError: the sink database does not answer.
    """
    pipeline = load_pipeline(platform.settings.root, PIPELINE)
    try:
        sink = table_of(pipeline.stream(STREAM))
    except KeyError:
        raise UsageError(
            f"pipeline {PIPELINE} has no stream {STREAM}, which records the readers of topics",
            next_step=f"declare it in include/pipelines/{PIPELINE}.yaml, then {_START}",
            code=Code.UNKNOWN_NAME,
        ) from None
    reader = platform.sinks.activity(sink.connection)
    found = reader.readings((now or datetime.now(UTC)) - since, group, topic)
    if found is None:
        raise UsageError(
            "the stream that records the readers of topics was never started", next_step=_START, code=Code.NEVER_STARTED
        )
    found.sort(key=lambda reading: reading.last_commit, reverse=True)
    return Activity(found[:limit], reader.unreadable(), len(found) > limit)
