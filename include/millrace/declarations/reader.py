"""YAML text as a tree in which every value knows its file, line and field.

Declarations use a small, unambiguous part of YAML: mappings with text keys, lists, and scalars that every
YAML reader understands alike. What readers disagree on (`yes`, `1e3`, `010`, dates) is a finding that says
how to write it, and so are anchors, aliases and tags: a value has one place, and nothing can blow up.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentEndEvent,
    DocumentStartEvent,
    MappingEndEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
)

from millrace.declarations.findings import WHOLE_FILE, Finding, Place, finding, join
from millrace.domain.formats.printable import shown

MAXIMUM_BYTES = 1024 * 1024
MAXIMUM_DEPTH = 16
MAXIMUM_VALUES = 20_000

_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_DECIMAL = re.compile(r"[-+]?(0|[1-9][0-9]*)\.[0-9]+")
_AMBIGUOUS = (
    (re.compile(r"(?i:y|yes|n|no|on|off)"), "some YAML readers take it for true or false"),
    (re.compile(r"TRUE|FALSE|True|False"), "only lower-case true and false are read alike everywhere"),
    (re.compile(r"[-+]?0[0-9_]+|0o[0-7]+|0x[0-9a-fA-F]+|0b[01]+"), "it may be read as an octal or hexadecimal number"),
    (re.compile(r"[-+]?([0-9][0-9_]*\.?[0-9_]*|\.[0-9]+)[eE][-+]?[0-9]+"), "some YAML readers take it for text"),
    (re.compile(r"[-+]?[0-9]+(_[0-9]+)+|[-+]?\.[0-9]+|[-+]?[0-9]+\.|\+[0-9.]+"), "YAML readers disagree about it"),
    (re.compile(r"[-+]?[0-9]+(:[0-5]?[0-9])+(\.[0-9]*)?"), "some YAML readers take it for a number in base 60"),
    (re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt ].*)?"), "some YAML readers take it for a date"),
    (re.compile(r"[-+]?\.(?i:inf|nan)"), "it is not a number Millrace can use"),
)
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff]")


@dataclass(frozen=True, slots=True)
class Scalar:
    """Text, a number or a truth value. `block` marks a literal block (`|`), whose text starts a line later."""

    place: Place
    value: str | int | float | bool | None
    block: bool = False
    broken: bool = False


@dataclass(frozen=True, slots=True)
class Sequence:
    """A list of nodes."""

    place: Place
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """One key of a mapping, where it stands, and its value."""

    place: Place
    node: Node


NO_ENTRIES: MappingProxyType[str, Entry] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Mapping:
    """Keys in written order."""

    place: Place
    entries: MappingProxyType[str, Entry]

    def get(self, *names: str) -> Node | None:
        """The node under these names, one inside the other; None where there is none."""
        node: Node = self
        for name in names:
            if not isinstance(node, Mapping) or name not in node.entries:
                return None
            node = node.entries[name].node
        return node

    def mapping(self, *names: str) -> Mapping:
        """The mapping under these names; an empty one where there is none."""
        node = self.get(*names)
        return node if isinstance(node, Mapping) else Mapping(self.place, NO_ENTRIES)


Node = Scalar | Sequence | Mapping
BROKEN = object()
"""Stands for a value that already has a finding, so that nothing else is said about it."""


def plain(node: Node) -> Any:
    """The node as Python values, `BROKEN` where the reader has found something already."""
    match node:
        case Mapping():
            return {name: plain(entry.node) for name, entry in node.entries.items()}
        case Sequence():
            return [plain(item) for item in node.items]
        case Scalar():
            return BROKEN if node.broken else node.value


class _Stop(Exception):
    """Reading cannot go on; the finding says why."""

    def __init__(self, found: Finding) -> None:
        self.found = found
        super().__init__(found)


@dataclass
class _Composer:
    file: str
    events: Iterator[Any]
    findings: list[Finding] = field(default_factory=list)
    values: int = 0

    def place(self, event: Any, path: str) -> Place:
        return Place(self.file, event.start_mark.line + 1, path)

    def report(self, place: Place, what: str, next_step: str) -> None:
        self.findings.append(finding(place, what, next_step))

    def compose(self, event: Any, path: str, depth: int, line: int | None = None) -> Node:
        place = self.place(event, path)
        if line is not None and (not isinstance(event, ScalarEvent | AliasEvent) or _is_absent(event)):
            place = replace(place, line=line)
        self.values += 1
        if self.values > MAXIMUM_VALUES:
            raise _Stop(finding(place, f"the file holds more than {MAXIMUM_VALUES} values", "split the pipeline"))
        if depth > MAXIMUM_DEPTH:
            step = "close the brackets, or correct the indentation: no field is that deep"
            raise _Stop(finding(place, f"values are nested more than {MAXIMUM_DEPTH} deep", step))
        if isinstance(event, AliasEvent):
            self.report(
                place, f"`*{shown(event.anchor)}` is an alias, which declarations do not use", "write the value out"
            )
            return Scalar(place, None, broken=True)
        broken = self.refuse_decoration(event, place)
        if isinstance(event, ScalarEvent):
            return self.scalar(event, place, broken)
        if isinstance(event, SequenceStartEvent):
            return self.sequence(place, depth)
        return self.mapping(place, depth)

    def refuse_decoration(self, event: Any, place: Place) -> bool:
        if event.anchor is not None:
            self.report(place, f"`&{shown(event.anchor)}` is an anchor, which declarations do not use", "remove it")
        tag = getattr(event, "tag", None)
        if tag is not None and str(tag) not in ("", "None"):
            self.report(place, f"`{shown(tag)}` is a tag, which declarations do not use", "remove it")
            return True
        return False

    def scalar(self, event: Any, place: Place, broken: bool) -> Scalar:
        text: str = event.value
        block = event.style == "|"
        if _FORBIDDEN.search(text):
            self.report(place, "the text holds a control character", "remove the character or its escape")
            return Scalar(place, None, broken=True)
        if event.style not in (None, "") or broken:
            return Scalar(place, text, block, broken)
        if text in ("", "~", "null", "Null", "NULL"):
            self.report(place, "there is no value", "write a value after the colon, or remove the field")
            return Scalar(place, None, broken=True)
        if _INTEGER.fullmatch(text) and not text.startswith("+"):
            return self.number(text, place)
        for pattern, reason in _AMBIGUOUS:
            if pattern.fullmatch(text):
                self.report(place, f"`{shown(text)}` is ambiguous: {reason}", _clearer(text))
                return Scalar(place, None, broken=True)
        if _DECIMAL.fullmatch(text):
            return Scalar(place, float(text))
        return Scalar(place, {"true": True, "false": False}.get(text, text))

    def number(self, text: str, place: Place) -> Scalar:
        if len(text) > 19:
            self.report(place, f"a number of {len(text)} digits is too long", "write a number below 10^18")
            return Scalar(place, None, broken=True)
        return Scalar(place, int(text))

    def sequence(self, place: Place, depth: int) -> Sequence:
        items: list[Node] = []
        while not isinstance(event := next(self.events), SequenceEndEvent):
            items.append(self.compose(event, f"{place.field}[{len(items)}]", depth + 1))
        return Sequence(place, tuple(items))

    def mapping(self, place: Place, depth: int) -> Mapping:
        entries: dict[str, Entry] = {}
        while not isinstance(event := next(self.events), MappingEndEvent):
            name, key_place = self.key(event, place, depth)
            node = self.compose(next(self.events), key_place.field, depth + 1, key_place.line)
            if name is None:
                continue
            if name in entries:
                first = entries[name].place.line
                self.report(key_place, f"`{shown(name)}` is written twice, first in line {first}", "remove one of them")
                continue
            entries[name] = Entry(key_place, node)
        return Mapping(place, MappingProxyType(entries))

    def key(self, event: Any, parent: Place, depth: int) -> tuple[str | None, Place]:
        if not isinstance(event, ScalarEvent):
            key_place = self.place(event, parent.field)
            self.compose(event, parent.field, depth + 1)
            self.report(key_place, "a key must be text, not a list, mapping or alias", "write a plain name")
            return None, key_place
        key_place = self.place(event, join(parent.field, event.value or "(empty key)"))
        if event.value == "<<":
            self.report(key_place, "`<<` is a merge key, which declarations do not use", "write the fields out")
            return None, key_place
        before = len(self.findings)
        node = self.scalar(event, key_place, self.refuse_decoration(event, key_place))
        if len(self.findings) == before and not isinstance(node.value, str):
            self.report(key_place, f"the key {shown(event.value)} is not text", f'quote it: "{event.value}"')
        return (event.value or None, key_place) if len(self.findings) == before else (None, key_place)


def _is_absent(event: Any) -> bool:
    """Whether nothing was written: the event then stands where the next thing begins."""
    return isinstance(event, ScalarEvent) and event.value == "" and event.style in (None, "")


def _clearer(text: str) -> str:
    text = shown(text)
    if re.fullmatch(r"(?i:y|yes|on|true)", text):
        return f'write true, or quote it: "{text}"'
    if re.fullmatch(r"(?i:n|no|off|false)", text):
        return f'write false, or quote it: "{text}"'
    if re.fullmatch(r"[-+]?[0-9.]+[eE]\+?[0-9]{1,2}", text):
        return f'write {float(text):.0f}, or quote it: "{text}"'
    return f'write a plain decimal number, or quote it: "{text}"'


def decode(data: bytes, file: str) -> tuple[str | None, list[Finding]]:
    """The text of a file, or the finding that says why it is none. Empty text counts as none."""
    whole = Place(file, 1, WHOLE_FILE)
    if len(data) > MAXIMUM_BYTES:
        return None, [finding(whole, f"the file is larger than {MAXIMUM_BYTES} bytes", "split the pipeline")]
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place = Place(file, data.count(b"\n", 0, error.start) + 1, WHOLE_FILE)
        return None, [finding(place, f"byte {error.start + 1} is not UTF-8", "save the file as UTF-8")]
    if found := _FORBIDDEN.search(text):
        place = Place(file, text.count("\n", 0, found.start()) + 1, WHOLE_FILE)
        what = f"the line holds the control character U+{ord(found.group()):04X}"
        return None, [finding(place, what, "remove the character")]
    if not any(line.strip() and not line.lstrip().startswith("#") for line in text.splitlines()):
        return None, [finding(whole, "the file is empty", "write a declaration into it, or delete the file")]
    return text, []


def read(data: bytes, file: str) -> tuple[Mapping | None, list[Finding]]:
    """The tree of a file, and what is wrong with it as YAML.

    Args:
        data: the file's bytes.
        file: the file's name for findings.

    Guarantees:
        Returns for any bytes, in time and memory bounded by `MAXIMUM_BYTES` and `MAXIMUM_VALUES`.
    """
    text, findings = decode(data, file)
    if text is None:
        return None, findings
    composer = _Composer(file, iter(YAML(typ="safe", pure=True).parse(text)))
    try:
        root = _document(composer)
    except _Stop as stop:
        return None, [*composer.findings, stop.found]
    except MarkedYAMLError as error:
        return None, [*composer.findings, _syntax(error, text, file)]
    except Exception as error:  # ruamel.yaml meets some broken escapes with a bare ValueError or IndexError
        place = Place(file, 1, WHOLE_FILE)
        return None, [*composer.findings, finding(place, f"the file is not YAML: {shown(error)}", "correct its syntax")]
    if not isinstance(root, Mapping):
        if not composer.findings:
            what = "the file holds a " + ("list" if isinstance(root, Sequence) else "single value") + ", not fields"
            composer.report(Place(file, root.place.line, WHOLE_FILE), what, "start with `pipeline: NAME`")
        return None, composer.findings
    return root, composer.findings


def _document(composer: _Composer) -> Node:
    event = next(composer.events)
    while not isinstance(event, DocumentStartEvent):
        event = next(composer.events)
    root = composer.compose(next(composer.events), WHOLE_FILE, 0)
    following = next(composer.events)
    if isinstance(following, DocumentEndEvent):
        following = next(composer.events)
    if not isinstance(following, StreamEndEvent):
        place = composer.place(following, WHOLE_FILE)
        raise _Stop(finding(place, "a second document starts here", "one file holds one declaration: remove `---`"))
    return root


def _syntax(error: MarkedYAMLError, text: str, file: str) -> Finding:
    mark = error.problem_mark or error.context_mark
    line = mark.line if mark else 0
    lines = text.split("\n")
    line = min(line, max(len(lines) - 1, 0))
    place = Place(file, line + 1, WHOLE_FILE)
    indent = lines[line][: len(lines[line]) - len(lines[line].lstrip())]
    if "\t" in indent:
        return finding(place, "the line is indented with a tab, which YAML forbids", "indent with spaces")
    column = f" at column {mark.column + 1}" if mark else ""
    what = shown(" ".join(str(error.problem or error.context or "syntax error").split()), 200)
    return finding(place, f"the file is not YAML: {what}{column}", "correct the syntax in this line or just above it")
