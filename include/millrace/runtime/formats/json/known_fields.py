"""The undeclared fields of a topic, learned from samples: a parser that knows them can count them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from millrace.domain.formats.printable import shown
from millrace.runtime.formats.field_tally import LONGEST_NAME

MOST_KNOWN = 1_000
"""Undeclared names that are known of one topic, at all depths."""
_DEEPEST = 20  # objects and arrays inside one another
_FREQUENT = 0.1  # of the samples: a parser spends time on each name that it knows and a record lacks
_NEVER_KNOWN = frozenset('"\\') | frozenset(map(chr, range(32)))  # msgspec does not look for names with these


@dataclass(slots=True)
class Place:
    """The values of samples at one place of their documents.

    Attributes:
        names: the names of the objects there, each with what stands there in turn.
        entries: what stands at any name of the objects there, if these are maps: each has names of its own.
        elements: what the arrays there hold; None: no array was seen.
        has_object: whether an object was seen, perhaps without a known name.
        has_scalar: whether a text, a number or a boolean was seen.
    """

    names: dict[str, Place] = field(default_factory=dict)
    entries: Place | None = None
    elements: Place | None = None
    has_object: bool = False
    has_scalar: bool = False

    def has_names(self) -> bool:
        """Return whether an object with names may stand at this place or inside it."""
        in_objects = bool(self.names) or self.entries is not None
        return in_objects or (self.elements is not None and self.elements.has_names())


class KnownFields:
    """The undeclared fields of one topic that are known so far.

    Args:
        declared: the names that the schema has.

    Attributes:
        number: the names that are known, at all depths.
    """

    def __init__(self, declared: Sequence[str]) -> None:
        self._declared = declared
        self.number = 0
        self._top = Place(has_object=True)

    @property
    def undeclared(self) -> Mapping[str, Place]:
        """The known names at the top level; each is shown as it is."""
        return self._top.names

    def copy(self) -> KnownFields:
        """Return the same knowledge, which learns apart from this."""
        copied = KnownFields(self._declared)
        copied.number, copied._top = self.number, deepcopy(self._top)
        return copied

    def learn(self, values: Sequence[bytes]) -> bool:
        """Learn the frequent fields of these values; return whether something is new.

        Args:
            values: samples; one that is no JSON object teaches nothing.
        """
        documents = list(filter(None, map(_object, values)))
        for document in documents:
            for name in self._declared:
                document.pop(name, None)
        return self._learn(self._top, documents, _Reach(len(documents)))

    def _learn(self, place: Place, found: Sequence[Any], reach: _Reach) -> bool:
        """Learn what stands at one place; return whether something is new."""
        objects = [each for each in found if isinstance(each, dict)]
        arrays = [each for each in found if isinstance(each, list)]
        has_scalar = len(objects) + len(arrays) + found.count(None) < len(found)
        is_new = (has_scalar and not place.has_scalar) or (bool(objects) and not place.has_object)
        place.has_scalar |= has_scalar
        place.has_object |= bool(objects)
        if reach.depth == _DEEPEST:
            return is_new
        if arrays:
            is_new |= place.elements is None
            place.elements = place.elements or Place()
            inside = [each for array in arrays for each in array]
            is_new |= self._learn(place.elements, inside, reach.inside(is_direct=False))
        frequency = Counter(name for each in objects for name in each)
        if place.entries is None and reach.may_be_map and self._is_map(place, frequency, len(objects), reach):
            place.entries, is_new = Place(), True
        if place.entries is not None:
            inside = [value for each in objects for value in each.values()]
            return self._learn(place.entries, inside, reach.inside(is_direct=False)) or is_new
        for name, times in frequency.items():
            if name not in place.names and times >= _FREQUENT * reach.samples and self._can_know(name, reach):
                place.names[name] = Place()
                self.number += 1
                is_new = True
            if name in place.names:
                inside = [each[name] for each in objects if name in each]
                is_new |= self._learn(place.names[name], inside, reach.inside(is_direct=True))
        return is_new

    def _is_map(self, place: Place, frequency: Counter[str], objects: int, reach: _Reach) -> bool:
        """Return whether the objects have on average one rare name, or more."""
        rare = (times for name, times in frequency.items() if name not in place.names)
        return 0 < objects <= sum(times for times in rare if times < _FREQUENT * reach.samples)

    def _can_know(self, name: str, reach: _Reach) -> bool:
        if self.number == MOST_KNOWN or not _NEVER_KNOWN.isdisjoint(name):
            return False
        return reach.depth > 0 or shown(name, LONGEST_NAME) == name  # names that are shown alike are counted as one


@dataclass(frozen=True, slots=True)
class _Reach:
    """How a place is reached from the top of its documents.

    Attributes:
        samples: the number of documents.
        depth: the objects and arrays around it.
        is_direct: whether there is at most one value a document: no array and no map is around it.
    """

    samples: int
    depth: int = 0
    is_direct: bool = True

    @property
    def may_be_map(self) -> bool:
        return self.is_direct and self.depth > 0

    def inside(self, *, is_direct: bool) -> _Reach:
        return replace(self, depth=self.depth + 1, is_direct=self.is_direct and is_direct)


def _object(value: bytes) -> dict[str, Any] | None:
    try:
        document = msgspec.json.decode(value)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None
