"""A parser of records that counts the names it finds, without a step in Python for each field.

msgspec keeps the last of two fields with one name and says nothing. A doubled name shows in numbers only: the document
has more names than its objects have fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import compress, repeat
from operator import length_hint, mul, or_, sub
from typing import Any

import msgspec
import numpy as np

from millrace.domain.declaration.pipeline import ValueSchema
from millrace.runtime.formats.json.field_types import columns_by_field, default_of, python_type
from millrace.runtime.formats.json.known_fields import Place

_PLENTY = 2**62


@dataclass(frozen=True, slots=True)
class Parsed:
    """Values after a parser has read them.

    Attributes:
        records: an object with a field `f0`, `f1`, ... for each column, and `u0`, `u1`, ... for each known undeclared
            field, UNSET where it is absent; None where the value was refused.
        refused: the indexes of the refused values.
        names: the names of the other values, a doubled one of an object counted once.
        absent: how many of the other values lack a field, by the name of each field that may be absent.
        fields_absent: the fields that objects of the other values lack, at all depths.
    """

    records: list[Any]
    refused: list[int]
    names: int
    absent: Mapping[str, int]
    fields_absent: int


class _Parser:
    """Parses records whose undeclared fields are all known; it refuses every other one.

    Args:
        schema: the topic's declared value schema.
        undeclared: the known undeclared fields.

    Attributes:
        fields: the number of fields that it knows at the top level.
    """

    def __init__(self, schema: ValueSchema, undeclared: Mapping[str, Place]) -> None:
        self._counters: list[repeat[Any]] = []
        self._worth: list[int] = []  # the names that one default of each counter adds
        self._maps: list[Sequence[str]] = []  # the fields that lead to each
        required: list[Any] = []
        optional: list[Any] = []
        names: dict[str, str] = {}
        self._optional: list[str] = []  # the names of fields; their counters come first
        for field, column in columns_by_field(schema).items():
            names[field] = column.name
            if column.required:
                required.append((field, python_type(column)))
            else:
                self._optional.append(column.name)
                optional.append((field, python_type(column), self._counter(default_of(column))))
        absences = [self._counter(msgspec.UNSET) for _ in undeclared]
        for index, (name, place) in enumerate(undeclared.items()):
            names[f"u{index}"] = name
            self._optional.append(name)
            optional.append((f"u{index}", self._type_of(place, (f"u{index}",)), absences[index]))
        self.fields = len(names)
        self._parse: Callable[[bytes], Any] = msgspec.json.Decoder(_strict_type(required + optional, names)).decode

    def _names_in_maps(self, records: Sequence[Any]) -> int:
        names = 0
        for path in self._maps:
            found = records
            for field in path:
                found = [getattr(each, field, None) for each in found]
            names += sum(len(each) for each in found if type(each) is dict)
        return names

    def _counter(self, default: object, worth: int = -1) -> Any:
        """Return a field whose default is counted: an iterator knows how many of its values are left.

        Args:
            default: the default.
            worth: the names that an object has more where it is set; an absent field is one name less.
        """
        self._counters.append(repeat(default, _PLENTY))
        self._worth.append(worth)
        return msgspec.field(default_factory=self._counters[-1].__next__)

    def _left(self) -> list[int]:
        return list(map(length_hint, self._counters))

    def _type_of(self, place: Place, path: Sequence[str] = ()) -> Any:
        """Return what an undeclared value is parsed as; where it has no known name inside, it is only skipped.

        Args:
            place: where it stands.
            path: the fields that lead there; none: it stands in an array or a map.
        """
        if not place.has_names():
            return msgspec.Raw
        types: list[Any] = [bool, int, float, str] if place.has_scalar else []
        if place.entries is not None:
            self._maps.append(path)
            types.append(dict[str, self._type_of(place.entries)])  # type: ignore[misc]
        elif place.names or place.has_object:
            types.append(self._object_type(place, path))
        if place.elements is not None:
            # Not a list: the garbage collector visits each list that lives, but soon forgets a tuple of such values.
            types.append(tuple[self._type_of(place.elements), ...])  # type: ignore[misc]
        return reduce(or_, types, None)

    def _object_type(self, place: Place, path: Sequence[str]) -> Any:
        names: dict[str, str] = {}
        fields: list[Any] = []
        for index, (name, inside) in enumerate(place.names.items()):
            names[f"n{index}"] = name
            within = (*path, f"n{index}") if path else ()
            fields.append((f"n{index}", self._type_of(inside, within), self._counter(msgspec.UNSET)))
        # Each object lacks this field, so all objects are counted.
        names["every"] = "_" * (1 + max(map(len, place.names), default=0))
        return _strict_type([*fields, ("every", None, self._counter(None, worth=len(fields)))], names)


class CountingParser(_Parser):
    """Parses records and counts their names, all at once; it refuses a record with an unknown undeclared field.

    Args:
        schema: the topic's declared value schema.
        undeclared: the known undeclared fields.
    """

    def __init__(self, schema: ValueSchema, undeclared: Mapping[str, Place]) -> None:
        super().__init__(schema, undeclared)
        self._is_absence = [worth < 0 for worth in self._worth]

    def parse(self, values: Sequence[bytes]) -> Parsed:
        """Parse values."""
        before = self._left()
        records, refused = self._parse_all(values)
        counts = list(map(sub, before, self._left()))
        if len(refused) == len(values):
            counts = [0] * len(counts)
        elif refused:  # they may have been counted in part: so parse them once more, and subtract what that counts
            before = self._left()
            self._parse_all([values[row] for row in refused])
            counts = list(map(sub, counts, map(sub, before, self._left())))
        names = (len(values) - len(refused)) * self.fields + sum(map(mul, counts, self._worth))
        return Parsed(
            records,
            refused,
            names + self._names_in_maps(records),
            dict(zip(self._optional, counts, strict=False)),
            sum(compress(counts, self._is_absence)),
        )

    def _parse_all(self, values: Sequence[bytes]) -> tuple[list[Any], list[int]]:
        records: list[Any] = []
        refused: list[int] = []
        parsed = map(self._parse, values)
        while len(records) < len(values):
            try:
                records.extend(parsed)  # keeps what came before an error
            except (ValueError, RecursionError):
                refused.append(len(records))
                records.append(None)
        return records, refused


class NameCounter(_Parser):
    """Counts the names of each record.

    Counters that are worth the same are one here, so few of them are read after each record.
    """

    def names_by_value(self, values: Sequence[bytes]) -> list[int]:
        """Return for each value its names, a doubled one of an object counted once.

        Args:
            values: those that the counting parser does not refuse.
        """
        left, in_maps = [self._left()], []
        for value in values:
            in_maps.append(self._names_in_maps([self._parse(value)]))
            left.append(self._left())
        counts = -np.diff(np.array(left, np.int64), axis=0)
        found: list[int] = (
            self.fields + np.array(in_maps, np.int64) + counts @ np.array(self._worth, np.int64)
        ).tolist()
        return found

    def _counter(self, default: object, worth: int = -1) -> Any:
        if worth in self._worth:
            return msgspec.field(default_factory=self._counters[self._worth.index(worth)].__next__)
        return super()._counter(default, worth)


def _strict_type(fields: Sequence[Any], names: Mapping[str, str]) -> type:
    return msgspec.defstruct("Record", fields, rename=names, gc=False, forbid_unknown_fields=True)
