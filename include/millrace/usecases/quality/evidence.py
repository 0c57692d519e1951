"""Evidence of checks in the bucket: what waits for it, and what is old."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from millrace.domain.declaration.pipeline import Stream
from millrace.domain.quality.results import QualityCheck
from millrace.errors import MillraceError, ObjectExistsError, UsageError

if TYPE_CHECKING:
    from millrace.ports.platform import Platform

PAGE = ".html"


def page_of(platform: Platform, check: QualityCheck) -> bytes:
    """The page of a check, from the bucket, or from what waits for it.

    Raises:
        UsageError: it has none, or none any more.
        UnreachableError: the bucket, or the control database, does not answer.
    """
    for one in platform.control.quality.waiting(check.stream):
        if one.check == check.identity and one.key.endswith(PAGE):
            return one.data
    for key in check.evidence:
        if key.endswith(PAGE) and (data := platform.objects.quality_evidence().get(key)) is not None:
            return data
    raise UsageError(
        f"check {check.identity} has no page: it checked no rows, or its page has expired",
        where=check.stream,
        next_step=f"run `millrace quality check {check.stream}`",
    )


def upload_waiting(platform: Platform, stream: Stream, keep: timedelta, now: datetime) -> str:
    """Give the bucket what waits for it of a stream, and delete there what is older than it is kept.

    Returns:
        Why not all could be done; empty where all is. The verdict stands without: the next check tries again.

    Raises:
        UnreachableError: the control database does not answer.
    """
    store = platform.control.quality
    waiting = store.waiting(stream.qualified_name)
    try:
        evidence = platform.objects.quality_evidence()
        for one in waiting:
            with suppress(ObjectExistsError):  # its name has the hash of the check: another page of the very same
                evidence.put(one.key, one.data)
            store.uploaded(one)
        evidence.expire(stream.qualified_name, keep, now)
    except MillraceError as error:
        left = len(store.waiting(stream.qualified_name))
        return f"{left} documents wait for the bucket: {error.what}" if left else f"the bucket: {error.what}"
    return ""
