"""The fast way to read records: many at once, but for those that need a closer look."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from millrace.adapters.sinks.value_ranges import is_utf8
from millrace.domain.declaration.pipeline import ColumnType, ValueSchema
from millrace.runtime.formats.field_tally import FieldTally
from millrace.runtime.formats.json.counting_parser import CountingParser, NameCounter, Parsed
from millrace.runtime.formats.json.document import MAXIMUM_DEPTH
from millrace.runtime.formats.json.field_types import NULL, columns_by_field
from millrace.runtime.formats.json.known_fields import KnownFields
from millrace.runtime.formats.json.name_scan import NameScan

PARSED_AT_ONCE = 1024 * 1024
"""Bytes: the trees that a parser makes of them take many times as much memory. A larger value is not read fast."""
_NOT_GIVEN = (None, NULL)
_names_of: Callable[[bytes], dict[str, Any]] = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_SAMPLES = 32  # records that fields are learned from at a time
_FIRST_LESSON = 25  # odd records: to check them alone takes as long as making another parser
_ALONE = 300  # absent fields that a parser fills in while one record is checked alone
_MOSTLY = 0.8  # of records: where so many are odd, reading them fast only costs
_PAUSE = 4  # reads


class FastReader:
    """Reads the values of one topic; learns the undeclared fields that they have.

    Guarantees: a value that is read is UTF-8 and JSON, has no doubled name at any depth, every required field, and
    each declared field as its type of JSON. No text has U+0000. Not checked are the texts of times and DECIMAL numbers.

    Args:
        schema: the topic's declared value schema.
    """

    def __init__(self, schema: ValueSchema) -> None:
        self._schema = schema
        self._fields = {column.name: field for field, column in columns_by_field(schema).items()}
        self._has_texts = any(column.type is ColumnType.STRING for column in schema.columns)
        self._known = KnownFields(tuple(self._fields))
        self._parser = CountingParser(schema, {})
        self._name_counter: NameCounter | None = None  # made when it is needed
        self._seen = self._odd_ones = 0  # since the last lesson
        self._samples: list[bytes] = []  # of the odd ones
        self._next_lesson = _FIRST_LESSON
        self._pause = 0

    def read(self, values: Sequence[bytes], tally: FieldTally) -> tuple[list[Any], list[int]]:
        """Read values.

        Args:
            values: any bytes.
            tally: counts the undeclared fields of the records that are returned.

        Returns:
            a record for each value, with a field `f0`, `f1`, ... for each column (`field_types`), or None; and the
            indexes where it is None: these values have to be checked alone.
        """
        if not values:
            return [], []
        if self._pause:
            self._pause -= 1
            return [None] * len(values), list(range(len(values)))
        self._seen += len(values)
        records: list[Any] = [None] * len(values)
        left, scan = self._worth_parsing(values)
        odd = [] if len(left) == len(values) else sorted(set(range(len(values))).difference(left))
        while left:
            found, still_odd = self._read(scan, tally)
            for row, record in zip(left, found, strict=True):
                records[row] = record
            left, scan = [left[index] for index in still_odd], scan.of(still_odd)
            if not self._learn(scan.values):
                break
        if len(left) > max(_MOSTLY * len(values), _SAMPLES):
            self._pause = _PAUSE
        return records, sorted(left + odd)

    def _worth_parsing(self, values: Sequence[bytes]) -> tuple[list[int], NameScan]:
        """Return the rows of the values whose parsed trees are neither large nor too deep, with a scan of these.

        Args:
            values: at least one.
        """
        rows, scan = list(range(len(values))), NameScan(values)
        if max(map(len, values)) > PARSED_AT_ONCE:
            rows = [row for row in rows if len(values[row]) <= PARSED_AT_ONCE]
            scan = scan.of(rows)
        deep = set(scan.deeper_than(MAXIMUM_DEPTH))
        if deep:
            shallow = [index for index in range(len(rows)) if index not in deep]
            rows, scan = [rows[index] for index in shallow], scan.of(shallow)
        return rows, scan

    def _learn(self, odd: Sequence[bytes]) -> bool:
        """Learn fields from odd values; return whether to read these again. Lessons become rare if they teach nothing.

        A lesson has to pay, since each record spends time on the fields that it lacks. It waits until to check odd
        values alone has taken as long as a lesson does.
        """
        self._odd_ones += len(odd)
        size = 0
        samples: list[bytes] = []
        for sample in (*odd[:: -(-len(odd) // _SAMPLES) or 1], *self._samples):
            if len(samples) < _SAMPLES and size + len(sample) <= PARSED_AT_ONCE:
                samples.append(sample)
                size += len(sample)
        self._samples = samples
        if not odd or not samples or self._odd_ones < self._next_lesson:
            return False
        share = min(1.0, self._odd_ones / self._seen)
        self._seen = self._odd_ones = 0
        known = self._known.copy()
        if known.learn(samples):
            parser = CountingParser(self._schema, known.undeclared)
            parsed = parser.parse(samples)
            gain = share * (1 - len(parsed.refused) / len(samples)) * _ALONE
            price = share * parsed.fields_absent / len(samples) + (1 - share) * (known.number - self._known.number)
            if gain > price:
                self._known, self._parser, self._name_counter = known, parser, None
                self._seen, self._samples = len(odd), []
                return True
        self._next_lesson *= 2
        return False

    def _read(self, scan: NameScan, tally: FieldTally) -> tuple[list[Any], list[int]]:
        values = scan.values
        parsed = self._parser.parse(values)
        records, absent = parsed.records, parsed.absent
        rows: Sequence[int] = range(len(values))
        if parsed.refused:
            rows = [row for row in rows if records[row] is not None]
        if not rows:
            return records, parsed.refused
        odd = [rows[index] for index in self._odd(scan.of(rows), parsed)]
        if odd:
            less = self._parser.parse([values[row] for row in odd]).absent
            absent = {name: count - less[name] for name, count in absent.items()}
            for row in odd:
                records[row] = None
        self._count(values, records, len(rows) - len(odd), absent, tally)
        return records, sorted(parsed.refused + odd)

    def _odd(self, kept: NameScan, parsed: Parsed) -> list[int]:
        """Return the indexes of values that break a rule which the parser does not know, or may break one.

        Args:
            kept: the values that the parser did not refuse, at least one.
            parsed: what it made of all values.
        """
        odd: set[int] = set()
        if not kept.text.isascii() and not is_utf8(kept.text):
            odd.update(index for index, value in enumerate(kept.values) if not is_utf8(value))
        if self._has_texts and b"\\" in kept.text and b"\\u0000" in kept.text:
            odd.update(index for index, value in enumerate(kept.values) if b"\\u0000" in value)
        if kept.names() != parsed.names:
            pairs = zip(kept.names_by_value(), self._names_by_value(kept.values, parsed), strict=True)
            odd.update(index for index, (shown, found) in enumerate(pairs) if shown != found)
        return sorted(odd)

    def _names_by_value(self, kept: Sequence[bytes], parsed: Parsed) -> Sequence[int]:
        """Return how many names the parser finds in each value that it does not refuse."""
        if parsed.names == len(kept) * self._parser.fields and not any(parsed.absent.values()):
            return [self._parser.fields] * len(kept)
        if self._name_counter is None:
            self._name_counter = NameCounter(self._schema, self._known.undeclared)
        return self._name_counter.names_by_value(kept)

    def _count(
        self, values: Sequence[bytes], records: list[Any], number: int, absent: Mapping[str, int], tally: FieldTally
    ) -> None:
        """Count the undeclared fields of the records that are read.

        Args:
            values: all values.
            records: their records, or None.
            number: the records among these.
            absent: how many of them lack a field, by its name.
            tally: what counts.
        """
        fields = {name: f"u{index}" for index, name in enumerate(self._known.undeclared)}
        present = {name: number - absent[name] for name in fields if absent[name] < number}
        if not present:
            return
        without: list[Any] = [] if number in present.values() else [each for each in records if each is not None]
        for name in sorted(present, key=present.__getitem__, reverse=True):
            without = [record for record in without if getattr(record, fields[name]) is msgspec.UNSET]
        tally.add_counts(number - len(without), present)
        for name, columns in tally.undecided(present).items():
            lacked = [self._fields[column] for column in columns if absent.get(column)]
            if lacked:
                self._decide(name, fields[name], lacked, values, records, tally)

    def _decide(
        self,
        name: str,
        field: str,
        lacked: Sequence[str],
        values: Sequence[bytes],
        records: Sequence[Any],
        tally: FieldTally,
    ) -> None:
        """Look for a record that has an undeclared name, and lacks a column with the same letters.

        Args:
            name: the name.
            field: the records' field for it.
            lacked: the fields of such columns.
            values: all values.
            records: their records, or None.
            tally: what wants to know.
        """
        for value, record in zip(values, records, strict=True):
            if record is None or getattr(record, field) is msgspec.UNSET:
                continue
            if any(getattr(record, each) in _NOT_GIVEN for each in lacked) and tally.decide(name, _names_of(value)):
                return
