"""Names and depths of JSON documents by Python's own parser: what the decoder's counts are held against."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

Pairs = Sequence[tuple[str, Any]]
BLANKS = ("", " ", "\n", "\t", "\r\n", "   ")
"""Blanks of JSON."""


def names_in(value: bytes) -> int:
    """Return the number of names at any depth; a doubled name counts twice."""
    return sum(len(pairs) for pairs in _objects(value))


def different_names_in(value: bytes) -> int:
    """Return the same number; a doubled name of an object counts once."""
    return sum(len({name for name, _ in pairs}) for pairs in _objects(value))


def depth_of(value: bytes) -> int:
    """Return how many objects and arrays stand inside one another."""
    depth, level = 0, [json.loads(value)]
    while any(isinstance(each, dict | list) for each in level):
        below: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                below += each.values()
            elif isinstance(each, list):
                below += each
        depth, level = depth + 1, below
    return depth


def written(document: Any, draw: random.Random, blanks: Sequence[str] = BLANKS, *, escaped: bool = False) -> str:
    """Write a document with blanks drawn from these at each place that allows blanks.

    Args:
        document: as Python's `json` makes it.
        draw: chooses the blanks.
        blanks: blanks of JSON.
        escaped: whether a name may begin with an escape.
    """

    def blank() -> str:
        return draw.choice(blanks)

    def part(node: Any) -> str:
        if isinstance(node, dict):
            members = [
                f"{blank()}{name(each)}{blank()}:{blank()}{part(value)}{blank()}" for each, value in node.items()
            ]
            return "{" + (",".join(members) or blank()) + "}"
        if isinstance(node, list):
            return "[" + (",".join(f"{blank()}{part(each)}{blank()}" for each in node) or blank()) + "]"
        return json.dumps(node, ensure_ascii=draw.random() < 0.5)

    def name(text: str) -> str:
        if escaped and text and ord(text[0]) < 0x10000 and draw.random() < 0.5:
            return f'"\\u{ord(text[0]):04x}' + json.dumps(text[1:])[1:]
        return json.dumps(text, ensure_ascii=draw.random() < 0.5)

    return f"{blank()}{part(document)}{blank()}"


def _objects(value: bytes) -> list[Pairs]:
    found: list[Pairs] = []

    def keep(pairs: Pairs) -> dict[str, Any]:
        found.append(pairs)
        return dict(pairs)

    json.loads(value, object_pairs_hook=keep, parse_int=str)
    return found
