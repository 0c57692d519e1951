"""Results of decoding: what every decoder gives and raises."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from millrace.domain.quarantine import Rule


class BadRecordError(ValueError):
    """One record does not fit; `rule` says why, the message says where."""

    def __init__(self, rule: Rule, message: str) -> None:
        self.rule = rule
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Decoded:
    """A block of records after decoding.

    Attributes:
        columns: one Arrow array for each column of `ValueSchema.decoded`; null where the record is bad, but for
            `_deleted`, which is false there.
        rules: for each record the rule it broke, or None.
        errors: for each record what is wrong with it, or None.
        truncated: for each record whether a timestamp of it was finer than a microsecond, and so lost something (zeros
            are no loss); a bad one has none.
    """

    columns: tuple[pa.Array, ...]
    rules: list[Rule | None]
    errors: list[str | None]
    truncated: list[bool]
