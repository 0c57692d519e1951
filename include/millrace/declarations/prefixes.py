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


def _key(word: str) -> str:
    """Return a key of this name; with an escape, a key in double quotes may spell any word."""
    return rf"""(?:\b{re.escape(word)}["']?|"[^"\\]*\\[^"]*")\s*"""


# A value that is neither plain text nor quoted whole on the key's line: on a later line, behind a comment, anchor or
# tag, in a block, with an escape.
_UNCLEAR_VALUE = r"""[^\w"' \t]|["']\s|"[^"\\\r\n]*[\\\r\n]|'[^'\r\n]*[\r\n]"""


def overlapping(prefix: str, word: str = "prefix") -> str:
    """A regular expression of the text of files that declare a prefix which overlaps this one.

    Args:
        prefix: the one that is known.
        word: the field that has the others.

    Guarantees:
        Each such file has a match.

    Does not guarantee:
        That a file with a match is one: what YAML lets be written so that text alone does not tell has a match too.
    """
    above = ""
    for segment in reversed(prefix.split("/")):
        above = re.escape(segment) + (f"(?:/{above})?" if above else "")
    value = rf"""["']?(?:{above}(?![\w./-])|{re.escape(prefix)}/)"""
    key = _key(word)
    unclear = rf"(?<![^\s{{\[,-])\?\s|{key}#"  # a key behind `?`, or a comment between the key and its colon
    return rf"{key}:[ \t]*(?:{value}|{_UNCLEAR_VALUE})|{unclear}"
