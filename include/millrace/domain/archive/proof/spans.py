"""Sets of offsets of one partition, as ranges: what is lost, expired, acknowledged."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

Span = tuple[int, int]
"""Offsets `first <= offset < next` of one partition."""


class Spans:
    """Offsets as ranges that are in order and do not touch. Memory grows with the ranges, not with the offsets."""

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._firsts: list[int] = []
        self._nexts: list[int] = []
        self.update(spans)

    def add(self, first: int, next_: int) -> None:
        """Put offsets in; those that are in stay."""
        if first >= next_:
            return
        low = bisect_left(self._nexts, first)
        high = bisect_right(self._firsts, next_)
        if low < high:  # they touch these
            first, next_ = min(first, self._firsts[low]), max(next_, self._nexts[high - 1])
        self._firsts[low:high] = [first]
        self._nexts[low:high] = [next_]

    def update(self, spans: Iterable[Span]) -> None:
        """Put the offsets of all these ranges in."""
        for first, next_ in spans:
            self.add(first, next_)

    def within(self, first: int, next_: int) -> Iterator[Span]:
        """The ranges in there, cut to it."""
        at = bisect_right(self._nexts, first)
        while at < len(self._firsts) and self._firsts[at] < next_:
            yield max(first, self._firsts[at]), min(next_, self._nexts[at])
            at += 1

    def outside(self, first: int, next_: int) -> Iterator[Span]:
        """What of a range is not in."""
        for inside_first, inside_next in self.within(first, next_):
            if first < inside_first:
                yield first, inside_first
            first = inside_next
        if first < next_:
            yield first, next_

    def minus(self, other: Spans) -> Spans:
        """The offsets that are in this one only."""
        return Spans(rest for span in self for rest in other.outside(*span))

    def both(self, other: Spans) -> Spans:
        """The offsets that are in this one and in another."""
        return Spans(shared for span in self for shared in other.within(*span))

    @property
    def offsets(self) -> int:
        """How many offsets they are."""
        return sum(next_ - first for first, next_ in self)

    def below(self, bound: int) -> Spans:
        """The offsets below a bound; itself where that is all of them."""
        return self if not self._nexts or self._nexts[-1] <= bound else Spans(self.within(0, bound))

    def __iter__(self) -> Iterator[Span]:
        return iter(zip(self._firsts, self._nexts, strict=True))

    def __len__(self) -> int:
        return len(self._firsts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spans) and (self._firsts, self._nexts) == (other._firsts, other._nexts)

    def __repr__(self) -> str:
        return f"Spans({list(self)})"
