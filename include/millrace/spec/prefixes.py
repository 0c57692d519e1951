"""Prefixes of a bucket that overlap: one is the other, or lies inside it, segment by segment."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

Claim = TypeVar("Claim")


def overlaps(claims: Sequence[Claim], where: Callable[[Claim], tuple[str, str]]) -> Iterator[tuple[Claim, Claim]]:
    """The claims whose prefix overlaps that of an earlier one, each with the first of those.

    Args:
        claims: by precedence.
        where: of a claim, the Connection of its bucket and its prefix; prefixes of several Connections do not overlap.
    """
    exact: dict[tuple[str, ...], int] = {}
    inside: dict[tuple[str, ...], int] = {}
    for index, claim in enumerate(claims):
        connection, prefix = where(claim)
        whole = (connection, *prefix.split("/"))
        above = [whole[:length] for length in range(2, len(whole))]
        earlier = [exact[each] for each in (*above, whole) if each in exact]
        if whole in inside:
            earlier.append(inside[whole])
        if earlier:
            yield claim, claims[min(earlier)]
        exact.setdefault(whole, index)
        for each in above:
            inside.setdefault(each, index)


def overlapping(prefix: str) -> str:
    """A regular expression of the prefixes that overlap one, as they stand in a file as plain text."""
    above = ""
    for segment in reversed(prefix.split("/")):
        above = re.escape(segment) + (f"(/{above})?" if above else "")
    return rf"(?<![\w./-]){above}(?![\w./-])|{re.escape(prefix)}/"
