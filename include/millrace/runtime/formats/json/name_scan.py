"""Counts of names and brackets in many JSON documents at once, by their bytes alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import count

import numpy as np
from numpy.typing import NDArray

_Bytes = NDArray[np.uint8]
_Places = NDArray[np.intp]
_LOOK_BACK = 3  # bytes before a colon
_WINDOW = 128 * 1024  # bytes; the masks of a window stay in the processor's cache
_COLON, _QUOTE, _BACKSLASH, _LAST_BLANK = b":"[0], b'"'[0], b"\\"[0], b" "[0]
_OPEN_BRACE, _BRACKET_TO_BRACE = b"{"[0], b"{"[0] - b"["[0]


class NameScan:
    """Counts in the bytes of values, all joined to one text.

    Args:
        values: JSON documents; the counts of names mean nothing for one with an error of syntax.

    Attributes:
        values: the same.
    """

    def __init__(self, values: Sequence[bytes]) -> None:
        self.values = values

    @cached_property
    def text(self) -> bytes:
        """The values, with commas between and before them."""
        return b",".join((b",,", *self.values))  # so the first value has bytes before it, as the others have

    @cached_property
    def _has_backslash(self) -> bool:
        return b"\\" in self.text

    def of(self, rows: Sequence[int]) -> NameScan:
        """Return a scan of the values in these rows: this one if they are all."""
        return self if len(rows) == len(self.values) else NameScan([self.values[row] for row in rows])

    def names(self) -> int:
        """Return the number of names in all values, at any depth; never too low.

        It is too high where a text holds what looks like the end of a name: a quote, blanks or none, and a colon.
        An escaped quote right before the colon does not, unless two backslashes stand before the quote.
        """
        has_lines = any(sign in self.text for sign in (b"\t", b"\n", b"\r"))
        if not self._has_backslash and not has_lines and not (b" " in self.text and self._pairs(b" :")):
            return self._pairs(b'":')
        marked = map(self._ends_of_names, self._windows(), count(0, _WINDOW))
        return sum(int(np.count_nonzero(ends)) + len(more) for ends, more in marked)

    def names_by_value(self) -> list[int]:
        """Return the same number for each value."""
        return self._by_value(self._places_of_names())

    def deeper_than(self, limit: int) -> list[int]:
        """Return the indexes of all values that are nested deeper than the limit, and perhaps of some others.

        Args:
            limit: objects and arrays inside one another.
        """
        longest = max(map(len, self.values), default=0)
        if longest <= 2 * limit or not self._has_more_within(longest, limit):
            return []
        return [index for index, count in enumerate(self._by_value(self._openings())) if count > limit]

    def _has_more_within(self, length: int, limit: int) -> bool:
        """Return whether more opening brackets and braces than the limit stand within this length anywhere."""
        places: _Places = np.zeros(0, np.intp)
        for found in self._openings():
            places = np.concatenate([places[-limit:], found])
            if len(places) > limit and (places[limit:] - places[:-limit]).min() < length:
                return True
        return False

    def _pairs(self, pair: bytes) -> int:
        """Return how often two different bytes stand side by side."""
        number, count = int.from_bytes(pair, "little"), 0
        for first in range(0, len(self.text), _WINDOW):
            for offset in (first, first + 1):
                pairs = min(len(self.text) - offset, _WINDOW) // 2
                count += int(np.count_nonzero(np.frombuffer(self.text, "<u2", pairs, offset) == number)) if pairs else 0
        return count

    def _windows(self) -> Iterator[_Bytes]:
        """Parts of the text; each begins with the last bytes before it."""
        everything = np.frombuffer(self.text, np.uint8)
        for first in range(0, len(everything) - _LOOK_BACK, _WINDOW):
            yield everything[first : first + _LOOK_BACK + _WINDOW]

    def _openings(self) -> Iterator[_Places]:
        """For each window, the places of brackets and braces that open, in bytes from the first value on."""
        for window, at in zip(self._windows(), count(0, _WINDOW), strict=False):
            yield np.flatnonzero((window[_LOOK_BACK:] | _BRACKET_TO_BRACE) == _OPEN_BRACE) + at

    def _places_of_names(self) -> Iterator[_Places]:
        """For each window, the places of the colons behind names, in bytes from the first value on."""
        for window, at in zip(self._windows(), count(0, _WINDOW), strict=False):
            ends, more = self._ends_of_names(window, at)
            yield np.concatenate([np.flatnonzero(ends) + at, np.array(more, np.intp)])

    def _ends_of_names(self, window: _Bytes, at: int) -> tuple[NDArray[np.bool_], list[int]]:
        """Mark the colons behind names: by a mask those with a quote before them, or a quote and one blank.

        Args:
            window: a part of the text.
            at: where it begins.

        Returns:
            the mask, and the places of those with more blanks before them.
        """
        third, second, first, here = window[:-3], window[1:-2], window[2:-1], window[3:]
        colon = here == _COLON
        ends = colon & (first == _QUOTE)
        if self._has_backslash:
            ends &= ~((second == _BACKSLASH) & (third != _BACKSLASH))
        behind_blank = colon & (first <= _LAST_BLANK)
        if not behind_blank.any():
            return ends, []
        ends |= behind_blank & (second == _QUOTE)
        more = np.flatnonzero(behind_blank & (second <= _LAST_BLANK)) + at
        return ends, [place for place in more.tolist() if self._is_behind_quote(place)]

    def _is_behind_quote(self, place: int) -> bool:
        """Return whether only blanks stand between a quote and this place."""
        end = place + _LOOK_BACK
        while self.text[end - 1] <= _LAST_BLANK:
            end -= 1
        return self.text[end - 1] == _QUOTE

    def _by_value(self, parts: Iterable[_Places]) -> list[int]:
        ends = np.cumsum(np.fromiter(map(len, self.values), np.intp, len(self.values)) + 1)
        counts = np.zeros(len(ends), np.intp)
        for places in parts:
            counts += np.bincount(np.searchsorted(ends, places, side="right"), minlength=len(ends))
        found: list[int] = counts.tolist()
        return found
