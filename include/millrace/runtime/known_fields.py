"""The undeclared fields of a topic, learned from samples: a parser that knows them can count them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from millrace.domain.printable import shown
from millrace.runtime.field_tally import LONGEST_NAME

MOST_KNOWN = 1_000
"""Undeclared names that are known of one topic, at all depths."""
_DEEPEST = 20  # objects and arrays inside one another
_FREQUENT = 0.25  # of the samples: a parser spends time on each name that it knows and a record lacks
_NEVER_KNOWN = frozenset('"\\') | frozenset(map(chr, range(32)))  # msgspec does not look for names with these


@dataclass(slots=True)
class Place:
    """What samples hold at one place of their documents.

    Attributes:
        names: the names of the objects there, each with what stands there in turn.
        elements: what the arrays there hold; None: no array was seen.
        has_scalar: whether a text, a number or a boolean was seen.
    """

    names: dict[str, Place] = field(default_factory=dict)
    elements: Place | None = None
    has_scalar: bool = False

    def has_names(self) -> bool:
        """Return whether a name is known at this place or inside it."""
        return bool(self.names) or (self.elements is not None and self.elements.has_names())


class KnownFields:
    """The undeclared fields of one topic that are known so far.

    Args:
        declared: the names that the schema has.
    """

    def __init__(self, declared: Sequence[str]) -> None:
        self._declared = declared
        self._number = 0
        self._top = Place()

    @property
    def undeclared(self) -> Mapping[str, Place]:
        """The known names at the top level; each is shown as it is."""
        return self._top.names

    def learn(self, values: Sequence[bytes]) -> bool:
        """Learn the frequent names of these values; return whether something is new.

        Args:
            values: samples; one that is no JSON object teaches nothing.
        """
        documents = list(filter(None, map(_object, values)))
        for document in documents:
            for name in self._declared:
                document.pop(name, None)
        return self._learn(self._top, documents, len(documents), depth=0)

    def _learn(self, place: Place, found: Sequence[Any], samples: int, *, depth: int) -> bool:
        objects = [each for each in found if isinstance(each, dict)]
        arrays = [each for each in found if isinstance(each, list)]
        has_scalar = len(objects) + len(arrays) + found.count(None) < len(found)
        is_new = has_scalar and not place.has_scalar
        place.has_scalar |= has_scalar
        if depth == _DEEPEST:
            return is_new
        if arrays:
            is_new |= place.elements is None
            place.elements = place.elements or Place()
            inside = [each for array in arrays for each in array]
            is_new |= self._learn(place.elements, inside, samples, depth=depth + 1)
        for name, times in Counter(name for each in objects for name in each).items():
            if name not in place.names and times >= _FREQUENT * samples and self._can_know(name, is_top=depth == 0):
                place.names[name] = Place()
                self._number += 1
                is_new = True
            if name in place.names:
                inside = [each[name] for each in objects if name in each]
                is_new |= self._learn(place.names[name], inside, samples, depth=depth + 1)
        return is_new

    def _can_know(self, name: str, *, is_top: bool) -> bool:
        if self._number == MOST_KNOWN or not _NEVER_KNOWN.isdisjoint(name):
            return False
        return not is_top or shown(name, LONGEST_NAME) == name  # names that are shown alike are counted as one


def _object(value: bytes) -> dict[str, Any] | None:
    try:
        document = msgspec.json.decode(value)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None
