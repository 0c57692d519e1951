"""What decodes the records of a topic, by its declared format."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from millrace.domain.declaration import ValueFormat, ValueSchema
from millrace.domain.quarantine import Rule
from millrace.runtime.decode import Decoded, Decoder


class Untouched:
    """Hands keys and values on as they are; only a key that is declared and absent makes a record bad."""

    def __init__(self, *, key_required: bool) -> None:
        self._key_required = key_required

    def decode(
        self, values: Sequence[bytes | None], keys: Sequence[bytes | None], timestamps_ms: Sequence[int | None]
    ) -> Decoded:
        """As `Decoder.decode`; the columns are the keys and the values."""
        bad = [self._key_required and key is None for key in keys]
        given = [None if wrong else value for value, wrong in zip(values, bad, strict=True)]
        return Decoded(
            (pa.array(keys, type=pa.binary()), pa.array(given, type=pa.binary())),
            [Rule.NULL_KEY if wrong else None for wrong in bad],
            ["the topic declares a key and the record has none" if wrong else None for wrong in bad],
            [False] * len(values),
        )


def decoder_of(schema: ValueSchema, *, key_required: bool) -> Decoder | Untouched:
    """What decodes the records of a topic, by its format; the arguments are those of `Decoder`."""
    if schema.format is ValueFormat.BYTES:
        return Untouched(key_required=key_required)
    return Decoder(schema, key_required=key_required)
