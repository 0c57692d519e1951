"""Decoders of the records of a topic, one for each declared format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from millrace.domain.declaration.pipeline import Key, ValueFormat, ValueSchema
from millrace.domain.quarantine.rules import Rule
from millrace.runtime.formats.decoded import BadRecordError, Decoded, RecordDecoder
from millrace.runtime.formats.json.decoder import Decoder, bad_timestamp, null_key


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
        fault = null_key().broken
        return Decoded(
            (pa.array(keys, type=pa.binary()), pa.array(given, type=pa.binary())),
            [fault.rule if wrong else None for wrong in bad],
            [fault.error if wrong else None for wrong in bad],
            [False] * len(values),
        )


class WithTombstones:
    """Decodes the records of a topic where one without a value is no bad record: it deletes its key.

    Such a record has its key, as text, in the column that the key is made from, null in every other, and true in
    `_deleted`. Any other record is what `Decoder` makes of it, with false there, but bad where its key is not the text
    of that column: one without a value and with the same key would delete another row, or none.

    Args:
        schema: the topic's declared value schema.
        key: the topic's declared key, whose field is a STRING of the schema.
    """

    def __init__(self, schema: ValueSchema, key: Key) -> None:
        self._with_value = Decoder(schema, key_required=True)
        self._field = key.field
        self._field_index = [column.name for column in schema.columns].index(key.field)
        self._mismatch = (
            f"the record's key is not what the field `{key.field}` says: a record without a value that has this key "
            "would delete another row, or none"
        )

    def decode(
        self, values: Sequence[bytes | None], keys: Sequence[bytes | None], timestamps_ms: Sequence[int | None]
    ) -> Decoded:
        """As `Decoder.decode`."""
        records = len(values)
        if None not in values:  # as in most blocks
            found = self._of_values(values, keys, timestamps_ms)
            return replace(found, columns=(*found.columns, pa.array([False] * records, type=pa.bool_())))
        given = [row for row, value in enumerate(values) if value is not None]
        found = self._of_values(
            [values[row] for row in given], [keys[row] for row in given], [timestamps_ms[row] for row in given]
        )
        places: list[int | None] = [None] * records
        rules: list[Rule | None] = [None] * records
        errors: list[str | None] = [None] * records
        deleted_keys: list[str | None] = [None] * records
        truncated = [False] * records
        for place, row in enumerate(given):
            places[row], truncated[row] = place, found.truncated[place]
            rules[row], errors[row] = found.rules[place], found.errors[place]
        for row, value in enumerate(values):
            if value is None:
                try:
                    deleted_keys[row] = self._deleted_key(keys[row], timestamps_ms[row])
                except BadRecordError as bad:
                    rules[row], errors[row] = bad.rule, str(bad)
        taken = pa.array(places, type=pa.int64())
        columns = [column.take(taken) for column in found.columns]
        columns[self._field_index] = pc.coalesce(columns[self._field_index], pa.array(deleted_keys, type=pa.string()))
        deleted = pa.array([key is not None for key in deleted_keys], type=pa.bool_())
        return Decoded((*columns, deleted), rules, errors, truncated, found.undeclared)

    def _of_values(
        self, values: Sequence[bytes | None], keys: Sequence[bytes | None], timestamps_ms: Sequence[int | None]
    ) -> Decoded:
        """Records that have values: their keys are held against the column that they are made from."""
        found = self._with_value.decode(values, keys, timestamps_ms)
        said = found.columns[self._field_index].cast(pa.binary())
        same = pc.fill_null(pc.equal(said, pa.array(keys, type=pa.binary())), False)
        if same.true_count == len(same):
            return found
        for row in pc.indices_nonzero(pc.invert(same)).to_pylist():
            if found.rules[row] is None:
                found.rules[row], found.errors[row], found.truncated[row] = Rule.KEY_MISMATCH, self._mismatch, False
        return replace(
            found, columns=tuple(pc.if_else(same, column, pa.scalar(None, column.type)) for column in found.columns)
        )

    def _deleted_key(self, key: bytes | None, timestamp_ms: int | None) -> str:
        """Return the key that a record without a value deletes, as text."""
        if key is None:
            raise null_key()
        if (fault := bad_timestamp(timestamp_ms)) is not None:
            raise fault
        try:
            text = key.decode()
        except UnicodeDecodeError as error:
            what = f"the key is not UTF-8: {error.reason} at byte {error.start}"
            raise BadRecordError(Rule.INVALID_UTF8, what) from None
        if "\0" in text:
            what = f"the key, which a record without a value has for `{self._field}`, holds the character U+0000"
            raise BadRecordError(Rule.NUL_CHARACTER, what)
        return text


def decoder_of(schema: ValueSchema, key: Key | None) -> RecordDecoder:
    """Return the decoder of a topic's records.

    Args:
        schema: the topic's declared value schema.
        key: its declared key; None: its records need none.
    """
    if schema.format is ValueFormat.BYTES:
        return Untouched(key_required=key is not None)
    if schema.tombstones:
        assert key is not None  # the loader refuses it
        return WithTombstones(schema, key)
    return Decoder(schema, key_required=key is not None)
