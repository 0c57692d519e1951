"""Why a record is bad: the rules under which records go to quarantine instead of the sink."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from millrace.domain.topics.offsets import SourceAt


class Rule(StrEnum):
    """One reason a record cannot become rows. The name is what people see in the quarantine table."""

    NULL_VALUE = "null_value"  # unless the stream upserts and the topic says that such a record deletes its key
    EMPTY_VALUE = "empty_value"
    NULL_KEY = "null_key"  # the topic declares a key, the record has none
    NO_TIMESTAMP = "no_timestamp"  # the record's timestamp is absent or negative
    FAR_TIMESTAMP = "far_timestamp"  # the record's timestamp is after the year 9999: not in milliseconds, as a rule
    INVALID_UTF8 = "invalid_utf8"  # also a key that would be deleted
    NOT_JSON = "not_json"  # also truncated documents, trailing garbage and half of a surrogate pair
    DUPLICATE_FIELD = "duplicate_field"  # at any depth, also where the schema names no such field
    MISSING_FIELD = "missing_field"  # a NOT NULL column is absent
    WRONG_TYPE = "wrong_type"  # also null in a NOT NULL column, and a text of another form
    OUT_OF_RANGE = "out_of_range"  # a number or a date that its declared type cannot hold exactly
    NUL_CHARACTER = "nul_character"  # valid JSON, or a key that would be deleted, but no PostgreSQL text can hold it
    KEY_MISMATCH = "key_mismatch"  # where records delete their keys: the key is not the text of the field it is made of
    TRANSFORM_FAILED = "transform_failed"  # the record fits its schema and the app's transform raises on it
    SINK_REFUSED = "sink_refused"  # the row is well-formed and the sink's own constraints refuse it


@dataclass(frozen=True, slots=True)
class Broken:
    """The rule that a record breaks, and why, in words that may hold some of it."""

    rule: Rule
    error: str


@dataclass(frozen=True, slots=True)
class RuleCount:
    """How many records of one topic a stream has in quarantine under one rule, with the first and the last of them."""

    stream: str
    topic: str
    rule: str
    records: int
    first: SourceAt
    first_at: datetime
    last: SourceAt
    last_at: datetime


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The beginning of a record's key, value or header, and how many bytes the whole has."""

    data: bytes
    size_bytes: int

    @property
    def is_whole(self) -> bool:
        """Whether nothing is left out."""
        return len(self.data) == self.size_bytes


@dataclass(frozen=True, slots=True)
class Header:
    """A header of a record; a value may be absent."""

    name: str
    value: Excerpt | None


@dataclass(frozen=True, slots=True)
class Former:
    """Why a record was in quarantine before a plan of a redrive tried it again, and it broke another rule."""

    rule: str
    error: str
    until: datetime
    plan: str


@dataclass(frozen=True, slots=True)
class QuarantinedRecord:
    """One record in quarantine, whole but for the end of a long key or value; None: the record has none.

    `former` is empty, or begins with why it came there and goes on with the newest reasons before the present one.

    `timestamp_ms` stands where `timestamp` cannot hold the record's.
    """

    stream: str
    source: SourceAt
    topic_id: str
    rule: str
    error: str
    key: Excerpt | None
    value: Excerpt | None
    headers: tuple[Header, ...]
    timestamp: datetime | None
    timestamp_ms: int | None
    quarantined_at: datetime
    epoch: int
    timeline: int
    former: tuple[Former, ...] = ()


@dataclass(frozen=True, slots=True)
class QuarantineEntry:
    """One record in quarantine, without its content."""

    source: SourceAt
    rule: str
    error: str
