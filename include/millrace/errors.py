"""The one tree of errors: each names the fault, its place, its code and the next step.

`exit_code` is the exit code of the command: 1 a check found a fault, 2 wrong usage, 3 a server does not answer,
4 refused (stale, fenced, not approved). docs/reference/errors.md explains each `Code`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar


class Code(StrEnum):
    """The codes of errors. A code is stable: runbooks and searches use it. One code stands for one cause and repair."""

    FAILED = "failed"
    INCOMPLETE = "incomplete"
    # wrong usage
    WRONG_USAGE = "wrong-usage"
    UNKNOWN_NAME = "unknown-name"
    WRONG_TIME = "wrong-time"
    WRONG_CONNECTION = "wrong-connection"
    NO_PROJECT = "no-project"
    NOTHING_TO_DO = "nothing-to-do"
    # declarations, apps and tables
    INVALID_DECLARATION = "invalid-declaration"
    WRONG_TRANSFORM = "wrong-transform"
    WRONG_SOURCE = "wrong-source"
    WRONG_TABLE = "wrong-table"
    MISSING_RIGHT = "missing-right"
    # servers
    UNREACHABLE = "unreachable"
    KAFKA_UNREACHABLE = "kafka-unreachable"
    KAFKA_REFUSED = "kafka-refused"
    MISSING_TOPIC = "missing-topic"
    CONTROL_UNREACHABLE = "control-unreachable"
    CONTROL_VERSION = "control-version"
    DATABASE_LOCKED = "database-locked"
    STORE_UNREACHABLE = "store-unreachable"
    STORE_REFUSED = "store-refused"
    NO_SNAPSHOT = "no-snapshot"
    AIRFLOW_UNREACHABLE = "airflow-unreachable"
    AIRFLOW_FAILED = "airflow-failed"
    # refusals
    REFUSED = "refused"
    STALE_PLAN = "stale-plan"
    BUSY_PLAN = "busy-plan"
    FENCED = "fenced"
    CONCURRENT_CHANGE = "concurrent-change"
    RECREATED_TOPIC = "recreated-topic"
    GROUP_IN_USE = "group-in-use"
    NEVER_STARTED = "never-started"
    UNSUPPORTED = "unsupported"
    NEEDS_APPROVAL = "needs-approval"
    RECORDS_AT_RISK = "records-at-risk"
    HELD_TOPIC = "held-topic"
    OVER_BUDGET = "over-budget"
    WRONG_TARGET = "wrong-target"
    OTHER_HOST = "other-host"
    OTHER_USER = "other-user"
    OTHER_LAYOUT = "other-layout"
    ALREADY_EXISTS = "already-exists"
    # records and rows
    DATA_LOSS = "data-loss"
    ROWS_REFUSED = "rows-refused"
    # sinks
    SINK_UNREACHABLE = "sink-unreachable"
    SINK_ROLLED_BACK = "sink-rolled-back"
    SINK_EXHAUSTED = "sink-exhausted"
    SINK_FAILED = "sink-failed"
    # archives and datasets
    CORRUPT_ARCHIVE = "corrupt-archive"
    NO_ARCHIVE = "no-archive"
    # the embedded stack and apps
    PART_FAILED = "part-failed"
    DOWNLOAD_FAILED = "download-failed"
    MISSING_PROGRAM = "missing-program"
    APP_FAILED = "app-failed"


def code_named(name: str) -> Code | None:
    """Return the code of this name; None for a name of another release."""
    return next((code for code in Code if code.value == name), None)


class MillraceError(Exception):
    """Base of every error that Millrace raises on purpose.

    Args:
        what: the fault, in one sentence.
        where: its place: a file and line, a topic, a stream, a table or an address.
        next_step: an action of the reader that repairs it.
        code: a code that tells more than the one of the class.
    """

    exit_code: ClassVar[int] = 1
    usual_code: ClassVar[Code] = Code.FAILED
    quotes_log: ClassVar[bool] = False
    """True where `what` has lines of a program's log after its first line."""

    def __init__(self, what: str, *, where: str = "", next_step: str = "", code: Code | None = None) -> None:
        self.what = what
        self.where = where
        self.next_step = next_step
        self.code = code or self.usual_code
        super().__init__(what, where, next_step)

    def __str__(self) -> str:
        return "\n".join(self.lines)

    @property
    def lines(self) -> tuple[str, ...]:
        """The place, the fault and its code, then the next step. A line may hold foreign names, with any characters."""
        log_begins = self.what.find("\n") if self.quotes_log else -1
        sentence, log = (self.what, "") if log_begins < 0 else (self.what[:log_begins], self.what[log_begins:])
        head = f"{self.where}: {sentence}" if self.where else sentence
        head = f"{head[:-1]} [{self.code}]:{log}" if log and head.endswith(":") else f"{head} [{self.code}]{log}"
        return (head, f"  next: {self.next_step}") if self.next_step else (head,)


class UsageError(MillraceError):
    """The command was called wrongly: an unknown name, a missing argument."""

    usual_code = Code.WRONG_USAGE
    exit_code = 2


class DeclarationError(MillraceError):
    """A declaration, an environment file or an app does not say something Millrace can do."""

    usual_code = Code.INVALID_DECLARATION


class UnreachableError(MillraceError):
    """A server (broker, database, object store, Airflow) did not answer."""

    usual_code = Code.UNREACHABLE
    exit_code = 3


class RefusedError(MillraceError):
    """Asked for something that may not be done now; doing it could lose or damage data."""

    usual_code = Code.REFUSED
    exit_code = 4


class StalePlanError(RefusedError):
    """The plan no longer describes what is there: expired, already run, another cluster, or the world moved."""

    usual_code = Code.STALE_PLAN


class BusyPlanError(RefusedError):
    """Somebody is running the plan, or was a moment ago: the same may be asked again."""

    usual_code = Code.BUSY_PLAN


class FencedError(RefusedError):
    """A newer epoch of the same stream, or a newer attempt of the same job, has taken over."""

    usual_code = Code.FENCED


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

    usual_code = Code.DATA_LOSS


class RecreatedTopicError(RefusedError):
    """A topic of this name exists, but it is not the one the work on record was done from."""

    usual_code = Code.RECREATED_TOPIC


class PartFailedError(MillraceError):
    """A part of the embedded stack, or a stream's process, ended or did not become ready."""

    usual_code = Code.PART_FAILED
    quotes_log = True


class TopicAccessError(RefusedError):
    """The cluster would not describe some topics. `failures` holds the reason for each of them by name."""

    usual_code = Code.MISSING_RIGHT

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

    usual_code = Code.SINK_UNREACHABLE


class SinkRolledBackError(MillraceError):
    """The sink gave up what it was asked for the sake of others: the same once more will do."""

    usual_code = Code.SINK_ROLLED_BACK


class SinkExhaustedError(MillraceError):
    """The sink lacks disk, memory or connections: nothing to do but wait until somebody gives it some."""

    usual_code = Code.SINK_EXHAUSTED


class SinkFailedError(MillraceError):
    """The sink refused what it was asked, for a reason that is not in the rows."""

    usual_code = Code.SINK_FAILED


class RowsRefusedError(MillraceError):
    """The sink refuses some rows; nothing of the batch was written.

    Attributes:
        sources: the refused rows' sources (topic id, partition, offset), with the sink's reason.
    """

    usual_code = Code.ROWS_REFUSED

    def __init__(self, sources: Mapping[tuple[str, int, int], str], *, where: str) -> None:
        self.sources = dict(sources)
        super().__init__(f"the rows of {len(sources)} records are refused", where=where)


class ObjectExistsError(RefusedError):
    """An object that may only be created is there already, with other bytes."""

    usual_code = Code.ALREADY_EXISTS


class CorruptArchiveError(MillraceError):
    """An object or a manifest of the archive is not what it says it is, or what the chain says it is."""

    usual_code = Code.CORRUPT_ARCHIVE


class IncompleteError(MillraceError):
    """What could be done by itself was done; the rest waits for a person or failed, and is named."""

    usual_code = Code.INCOMPLETE
