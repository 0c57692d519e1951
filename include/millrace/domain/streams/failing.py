"""Which records of a batch a transform fails on: found by halving, and bounded."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum

MOST_FAILING = 100
MOST_ROUNDS = 20
WITHIN = timedelta(hours=1)
SUSPICIOUS = 10

FailureOf = Callable[[range], str | None]
"""Tries some records together, by their numbers: why they fail, or None where they pass."""


class Outcome(StrEnum):
    """What a search came to."""

    FOUND = "found"  # each record named fails by itself
    PASSES = "passes"  # all records together pass now: the failure was not theirs
    NOT_ALONE = "not alone"  # records fail together, and some of them do not fail by themselves
    WITHOUT = "without"  # it fails without a record, or with each of them: the transform or its surroundings are wrong
    TOO_MANY = "too many"
    TOO_LARGE = "too large"


@dataclass(frozen=True, slots=True)
class Search:
    """The result of a search.

    Attributes:
        outcome: what it came to.
        failing: for each failing record, by its number, why; complete only where the outcome is FOUND.
    """

    outcome: Outcome
    failing: Mapping[int, str] = field(default_factory=dict)


def find_failing(
    count: int,
    failure_of: FailureOf,
    *,
    most: int = MOST_FAILING,
    rounds: int = MOST_ROUNDS,
    suspicious: int | None = SUSPICIOUS,
) -> Search:
    """Find the records that fail by themselves.

    A piece that fails is halved. Where its left half passes, the right half is taken to fail without a try: a single
    record is always tried by itself, so a wrong guess ends as NOT_ALONE.

    Args:
        count: the records, numbered from 0.
        failure_of: tries some of them.
        most: the search ends where more than so many fail.
        rounds: how often a piece may be halved, so that at most 2 to this power records are searched.
        suspicious: where each of so many records or more fails, no record is blamed; None: all may fail.
    """
    if needless := _without_search(count, failure_of, rounds):
        return needless
    failing: dict[int, str] = {}
    pieces = [range(count)]
    while pieces:
        halves: list[range] = []
        for piece in pieces:
            if len(piece) > 1:
                halves += _failing_halves(piece, failure_of)
            elif (why := failure_of(piece)) is not None:
                failing[piece[0]] = why
            else:
                return Search(Outcome.NOT_ALONE, failing)
            if len(failing) + len(halves) > most:
                return _too_many(count, failing, halves, failure_of, suspicious)
        pieces = halves
    if suspicious is not None and len(failing) == count >= suspicious:
        return Search(Outcome.WITHOUT, failing)
    return Search(Outcome.FOUND, failing)


def find_one(count: int, failure_of: FailureOf, *, rounds: int = MOST_ROUNDS, suspicious: int = SUSPICIOUS) -> Search:
    """Find one record that fails by itself; the arguments are those of `find_failing`."""
    if needless := _without_search(count, failure_of, rounds):
        return needless
    found = _one_of(range(count), failure_of)
    if found.outcome is Outcome.FOUND and count >= suspicious and not _passes_somewhere(count, failure_of):
        return Search(Outcome.WITHOUT)
    return found


def _without_search(count: int, failure_of: FailureOf, rounds: int) -> Search | None:
    """Return the outcome where no record can be blamed; None: a search may find one."""
    if count > 2**rounds:
        return Search(Outcome.TOO_LARGE)
    if count == 0 or failure_of(range(count)) is None:
        return Search(Outcome.PASSES)
    if failure_of(range(0)) is not None:
        return Search(Outcome.WITHOUT)
    return None


def _failing_halves(piece: range, failure_of: FailureOf) -> list[range]:
    left, right = _halves(piece)
    if failure_of(left) is None:
        return [right]
    return [left, right] if failure_of(right) is not None else [left]


def _halves(piece: range) -> tuple[range, range]:
    middle = len(piece) // 2
    return piece[:middle], piece[middle:]


def _one_of(piece: range, failure_of: FailureOf) -> Search:
    """One failing record of a piece that fails."""
    while len(piece) > 1:
        left, right = _halves(piece)
        piece = left if failure_of(left) is not None else right
    why = failure_of(piece)
    return Search(Outcome.NOT_ALONE) if why is None else Search(Outcome.FOUND, {piece[0]: why})


def _too_many(
    count: int, failing: dict[int, str], halves: list[range], failure_of: FailureOf, suspicious: int | None
) -> Search:
    """Tell many failing records from pieces that fail for their size, and from a failure that meets every record."""
    for piece in halves[:1]:
        one = _one_of(piece, failure_of)
        if one.outcome is not Outcome.FOUND:
            return one
        failing |= one.failing
    if suspicious is not None and count >= suspicious and not _passes_somewhere(count, failure_of):
        return Search(Outcome.WITHOUT, failing)
    return Search(Outcome.TOO_MANY, failing)


def _passes_somewhere(count: int, failure_of: FailureOf) -> bool:
    """Try some records, spread over all; true where one of them passes by itself."""
    places = [count * part // SUSPICIOUS for part in range(SUSPICIOUS)]
    return any(failure_of(range(place, place + 1)) is None for place in places)


class FailingBound:
    """How many records a transform may still fail on before the stream stops.

    Args:
        most: so many within the time.
        within: the time.
        clock: seconds, from any beginning.
    """

    def __init__(
        self, most: int = MOST_FAILING, within: timedelta = WITHIN, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = most
        self._within_seconds = within.total_seconds()
        self._clock = clock
        self._spent: list[tuple[float, int]] = []

    @property
    def left(self) -> int:
        """How many more are allowed now."""
        since = self._clock() - self._within_seconds
        self._spent = [(at, records) for at, records in self._spent if at > since]
        return self._most - sum(records for _, records in self._spent)

    def spend(self, records: int) -> None:
        """Count records that were found to fail."""
        self._spent.append((self._clock(), records))
