"""Results of decoding: what every decoder gives and raises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from millrace.domain.declaration.pipeline import Key, ValueSchema
from millrace.domain.formats.undeclared import Undeclared
from millrace.domain.quarantine.rules import Broken, Rule


class BadRecordError(ValueError):
    r"""One record does not fit; `rule` says why, the message says where.

    Guarantees: UTF-8 holds the message, so quarantine does. A name in it may hold half of a surrogate pair: such a
    half becomes its escape, `\ud800`.
    """

    def __init__(self, rule: Rule, message: str) -> None:
        self.rule = rule
        super().__init__(message.encode("utf-8", "backslashreplace").decode())

    @property
    def broken(self) -> Broken:
        """Return the same without the frames that an error refers to."""
        return Broken(self.rule, str(self))


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
        undeclared: the fields that the schema does not name. A bad record counts too, unless its key is missing, its
            timestamp is at fault, or its value is no sound JSON object.
    """

    columns: tuple[pa.Array, ...]
    rules: list[Rule | None]
    errors: list[str | None]
    truncated: list[bool]
    undeclared: Undeclared = field(default_factory=Undeclared)


class RecordDecoder(Protocol):
    """Decodes the records of one topic."""

    def decode(
        self, values: Sequence[bytes | None], keys: Sequence[bytes | None], timestamps_ms: Sequence[int | None]
    ) -> Decoded:
        """Decode one block; all three sequences have one entry a record."""


DecoderFactory = Callable[[ValueSchema, Key | None], RecordDecoder]
"""Makes the decoder of a topic from its declared value schema and its declared key."""
