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


class Outcome(StrEnum):
    """What a search came to."""

    FOUND = "found"  # each record named fails by itself, twice in a row where it was tried before
    PASSES = "passes"  # all records together pass now: the failure was not theirs
    NOT_ALONE = "not alone"  # records fail together, and some of them do not fail by themselves
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
    count: int, failure_of: Callable[[range], str | None], *, most: int = MOST_FAILING, rounds: int = MOST_ROUNDS
) -> Search:
    """Find the records that fail by themselves.

    A piece that fails is halved. Where its left half passes, the right half is taken to fail without a try: a single
    record is always tried by itself, so a wrong guess ends as NOT_ALONE.

    Args:
        count: the records, numbered from 0.
        failure_of: tries some records together: why they fail, or None where they pass.
        most: the search ends where more than so many fail.
        rounds: how often a piece may be halved, so that at most 2 to this power records are searched.
    """
    if count > 2**rounds:
        return Search(Outcome.TOO_LARGE)
    if count == 0 or failure_of(range(count)) is None:
        return Search(Outcome.PASSES)
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
                return Search(Outcome.TOO_MANY, failing)
        pieces = halves
    return Search(Outcome.FOUND, failing)


def _failing_halves(piece: range, failure_of: Callable[[range], str | None]) -> list[range]:
    middle = len(piece) // 2
    left, right = piece[:middle], piece[middle:]
    if failure_of(left) is None:
        return [right]
    return [left, right] if failure_of(right) is not None else [left]


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
