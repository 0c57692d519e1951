"""Capabilities of a sink: what can be asked of the streams that write to it, and the way out where something cannot."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Capability(StrEnum):
    """A thing that may be asked of a sink. Each is a field of `Capabilities`."""

    TABLE = "table"  # rows lie in a table of PostgreSQL, where others look into them
    BOOKS = "books"  # a ledger beside the rows proves each offset
    QUALITY = "quality"  # rules are held against the rows
    REWIND = "rewind"  # a plan rewinds the stream
    REDRIVE = "redrive"  # records in quarantine are put through again
    RECOMPUTE = "recompute"  # stored rows are compared with rows that the app makes again
    FILES = "files"  # a reader asks which objects hold rows that count
    DELETES = "deletes"  # a row that says so deletes its key


_BASES = {
    Capability.BOOKS: Capability.TABLE,
    Capability.QUALITY: Capability.TABLE,
    Capability.RECOMPUTE: Capability.TABLE,
    Capability.REWIND: Capability.BOOKS,
    Capability.REDRIVE: Capability.BOOKS,
}


@dataclass(frozen=True, slots=True)
class Lack:
    """A capability that a sink does not have.

    Attributes:
        reason: what is missing, for people; `{stream}` and `{group}` stand for those of the stream.
        next_step: the way out; the same two may stand in it.
    """

    reason: str
    next_step: str

    def of(self, stream: str, group: str) -> Lack:
        """Return the same for one stream: PIPELINE.STREAM and its consumer group."""
        names = {"{stream}": stream, "{group}": group}
        reason, next_step = self.reason, self.next_step
        for placeholder, name in names.items():
            reason, next_step = reason.replace(placeholder, name), next_step.replace(placeholder, name)
        return Lack(reason, next_step)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """All capabilities of a sink: None where it has one, else what it lacks.

    There is no default: a new capability is answered by each sink, or mypy names those that do not.

    Raises:
        ValueError: a sink has a capability without the one that it rests on. Books, quality and recomputation are held
            against a table; a rewind and a redrive change rows of a table, and their forms check the books afterwards.
    """

    table: Lack | None
    books: Lack | None
    quality: Lack | None
    rewind: Lack | None
    redrive: Lack | None
    recompute: Lack | None
    files: Lack | None
    deletes: Lack | None

    def __post_init__(self) -> None:
        for capability, basis in _BASES.items():
            if capability in self and basis not in self:
                raise ValueError(f"a sink with the capability `{capability}` also has `{basis}`")

    def lack(self, capability: Capability) -> Lack | None:
        """Return what is missing for a capability; None where the sink has it."""
        found: Lack | None = getattr(self, capability.value)
        return found

    def __contains__(self, capability: Capability) -> bool:
        """Return whether the sink has a capability."""
        return self.lack(capability) is None


RESET_GROUP = (
    "stop the stream, reset its group {group} with kafka-consumer-groups --reset-offsets, and start it: this opens a "
    "new timeline"
)
"""How a stream is made to read again where no plan can rewind it."""

KEEPS_EACH_ROW = Lack(
    "{stream} keeps each row that it writes; a delete removes no row",
    "declare `mode: upsert` with a key for a table of PostgreSQL, or write to a topic",
)
"""Why no row deletes another one, of sinks that append."""


def without_a_table(service: str, *, record: str, files: Lack | None, deletes: Lack | None) -> Capabilities:
    """Return the capabilities of a sink whose rows lie in no table.

    Args:
        service: where the rows are, for people: "Kafka".
        record: whose the record of work is, for people: "group".
        files: what is missing to ask for files; None where nothing is.
        deletes: what is missing to delete a row by its key; None where nothing is.
    """

    def lacks(
        reason: str, next_step: str = "see the progress of its group with `millrace streams show {stream}`"
    ) -> Lack:
        return Lack(f"{{stream}} writes to {service}: {reason}", next_step)

    no_place = "its rows cannot be found by their source"
    return Capabilities(
        table=lacks("it has no table"),
        books=lacks("its sink keeps no ledger"),
        quality=lacks(
            "quality rules need a table",
            "declare a second stream that reads the topic and writes to a table, and give that one rules",
        ),
        rewind=lacks(f"its work on record is its {record}'s", RESET_GROUP),
        redrive=lacks(no_place, f"to read its records again: {RESET_GROUP}"),
        recompute=lacks(no_place),
        files=files,
        deletes=deletes,
    )


def no_dataset(named: str) -> Lack:
    """Return why a sink has no objects to ask for."""
    return Lack(
        f"{{stream}} writes to the {named}, not to a dataset", "choose a stream with `writes.s3` in its declaration"
    )


def of_table(named: str, *, upserts: bool) -> Capabilities:
    """Return the capabilities of a table of PostgreSQL.

    Args:
        named: the table, for people.
        upserts: whether it has the last row of each key, not each row.
    """
    if not upserts:
        return Capabilities(
            table=None,
            books=None,
            quality=None,
            rewind=None,
            redrive=None,
            recompute=None,
            files=no_dataset(named),
            deletes=KEEPS_EACH_ROW,
        )
    return Capabilities(
        table=None,
        books=None,
        quality=Lack(
            "quality rules need appended rows, and the sink of {stream} has `mode: upsert`",
            "declare a second stream that reads the topic and appends to a table, and give that one rules",
        ),
        rewind=None,
        redrive=Lack(
            "a redrive writes rows by source, and an upserted table stores rows by key",
            "rewind the stream to a time before the records; see docs/guide/rewind.md",
        ),
        recompute=Lack(
            "an upserted table has the last row of each key, not the row of each offset",
            "compare its books without a sample: `millrace quality reconcile {stream}`",
        ),
        files=no_dataset(named),
        deletes=None,
    )
