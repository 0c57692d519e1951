"""Why a record is bad: the rules under which records go to quarantine instead of the sink."""

from __future__ import annotations

from enum import StrEnum


class Rule(StrEnum):
    """One reason a record cannot become rows. The name is what people see in the quarantine table."""

    NULL_VALUE = "null_value"
    EMPTY_VALUE = "empty_value"
    NULL_KEY = "null_key"  # the topic declares a key, the record has none
    NO_TIMESTAMP = "no_timestamp"  # the record's timestamp is absent or negative
    FAR_TIMESTAMP = "far_timestamp"  # the record's timestamp is after the year 9999: not in milliseconds, as a rule
    INVALID_UTF8 = "invalid_utf8"
    NOT_JSON = "not_json"  # also truncated documents and trailing garbage
    DUPLICATE_FIELD = "duplicate_field"
    MISSING_FIELD = "missing_field"  # a NOT NULL column is absent
    WRONG_TYPE = "wrong_type"  # also null in a NOT NULL column
    OUT_OF_RANGE = "out_of_range"  # a number or a date that its declared type cannot hold exactly
    NUL_CHARACTER = "nul_character"  # valid JSON, but no PostgreSQL text can hold it
    SINK_REFUSED = "sink_refused"  # the row is well-formed and the sink's own constraints refuse it
