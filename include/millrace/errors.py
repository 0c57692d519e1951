"""The one tree of errors: each says what was wrong, where, and what to do next.

`exit_code` is what the CLI ends with: 1 the check found something wrong, 2 usage, 3 a part cannot be
reached, 4 refused (stale, fenced, not approved).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar


class MillraceError(Exception):
    """Base of every error Millrace raises on purpose.

    Args:
        what: what is wrong, one sentence.
        where: the file and line, topic, stream, table or address it is about.
        next_step: what the reader can do about it.
    """

    exit_code: ClassVar[int] = 1
    quotes_log: ClassVar[bool] = False
    """Whether `what` has several lines: those of a program's log, after the first."""

    def __init__(self, what: str, *, where: str = "", next_step: str = "") -> None:
        self.what = what
        self.where = where
        self.next_step = next_step
        super().__init__(what, where, next_step)

    def __str__(self) -> str:
        return "\n".join(self.lines)

    @property
    def lines(self) -> tuple[str, ...]:
        """What is wrong and where, then the next step. A line may hold names of others, with any characters."""
        head = f"{self.where}: {self.what}" if self.where else self.what
        return (head, f"  next: {self.next_step}") if self.next_step else (head,)


class UsageError(MillraceError):
    """The command was called wrongly: an unknown name, a missing argument."""

    exit_code = 2


class DeclarationError(MillraceError):
    """A declaration, an environment file or an app does not say something Millrace can do."""


class UnreachableError(MillraceError):
    """A server (broker, database, object store, Airflow) did not answer."""

    exit_code = 3


class RefusedError(MillraceError):
    """Asked for something that may not be done now; doing it could lose or damage data."""

    exit_code = 4


class StalePlanError(RefusedError):
    """The plan no longer describes what is there: expired, already run, another cluster, or the world moved."""


class BusyPlanError(RefusedError):
    """Somebody is running the plan, or was a moment ago: the same may be asked again."""


class FencedError(RefusedError):
    """A newer epoch of the same stream, or a newer attempt of the same job, has taken over."""


class ChainFencedError(FencedError):
    """A chain has a manifest of another epoch or instance where this one was to go on.

    Args:
        epoch, instance: whose manifest it is.
        what, where, next_step: as of every error.
    """

    def __init__(self, epoch: int, instance: str, what: str, *, where: str = "", next_step: str = "") -> None:
        self.epoch = epoch
        self.instance = instance
        super().__init__(what, where=where, next_step=next_step)


class DataLossError(MillraceError):
    """Records that should have been read are gone, or a gap between ranges would hide some."""


class RecreatedTopicError(RefusedError):
    """A topic of this name exists, but it is not the one the work on record was done from."""


class PartFailedError(MillraceError):
    """A part of the embedded stack, or a stream's process, ended or did not become ready."""

    quotes_log = True


class TopicAccessError(RefusedError):
    """The cluster would not describe some topics. `failures` holds the reason for each of them by name."""

    def __init__(self, failures: Mapping[str, str], *, where: str = "") -> None:
        self.failures = dict(failures)
        named = ", ".join(f"{name} ({reason})" for name, reason in sorted(self.failures.items()))
        super().__init__(
            f"the cluster would not describe {named}",
            where=where,
            next_step="give the user of this connection the rights Describe and DescribeConfigs on these topics",
        )


class SinkUnreachableError(UnreachableError):
    """The sink is away, or the connection to it is gone: wait, and take up again."""


class SinkRolledBackError(MillraceError):
    """The sink gave up what it was asked for the sake of others: the same once more will do."""


class SinkExhaustedError(MillraceError):
    """The sink lacks disk, memory or connections: nothing to do but wait until somebody gives it some."""


class SinkFailedError(MillraceError):
    """The sink refused what it was asked, for a reason that is not in the rows."""


class RowsRefusedError(MillraceError):
    """The sink refuses some rows; nothing of the batch was written.

    Attributes:
        sources: the refused rows' sources (topic id, partition, offset), with the sink's reason.
    """

    def __init__(self, sources: Mapping[tuple[str, int, int], str], *, where: str) -> None:
        self.sources = dict(sources)
        super().__init__(f"the rows of {len(sources)} records are refused", where=where)


class ObjectExistsError(RefusedError):
    """An object that may only be created is there already, with other bytes."""


class CorruptArchiveError(MillraceError):
    """An object or a manifest of the archive is not what it says it is, or what the chain says it is."""


class IncompleteError(MillraceError):
    """What could be done by itself was done; the rest waits for a person or failed, and is named."""
