"""One JSON document looked at strictly: all that the fast parser skips or does not tell truly."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

import msgspec

from millrace.domain.quarantine.rules import Rule
from millrace.runtime.formats.decoded import BadRecordError

MAXIMUM_DEPTH = 500
"""Objects and arrays inside one another: so many that no parser's own bound, which varies, is ever met."""

_SHOWN = 100  # characters of names and paths
# A pair of escapes that is one character; half of such a pair (the group); any other escape.
_ESCAPES = re.compile(rb"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|(\\u[dD][89a-fA-F])|\\.", re.DOTALL)
_STRINGS_AND_BRACKETS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[{\]}]', re.DOTALL)


class DocumentCheck:
    """Checks values one by one: each has to be a JSON document in UTF-8 in which no object has a name twice."""

    def __init__(self) -> None:
        self._outermost: set[str] = set()  # names of the object that ended last
        self._decoder = json.JSONDecoder(object_pairs_hook=self._unique, parse_constant=_refuse)

    def names(self, value: bytes) -> set[str]:
        """Return the names of the document's fields; none where it is no object.

        All positions in messages are bytes from the beginning of the value.

        Args:
            value: the record's value.

        Raises:
            BadRecordError: the value is no such document.
        """
        _check_depth(value)
        text = value.decode(errors="surrogateescape")  # outside a text bad bytes are no JSON
        try:
            names, doubled = self._names(text)
        except json.JSONDecodeError as error:
            raise BadRecordError(Rule.NOT_JSON, _malformed(text, error)) from None
        _check_encoding(value)
        _check_surrogates(value)
        if doubled:
            raise BadRecordError(Rule.DUPLICATE_FIELD, doubled)
        _check_as_the_fast_parser(value)
        return names

    def _names(self, text: str) -> tuple[set[str], str | None]:
        """Return the names of the outermost object, and the first doubled name with the object that has it."""
        try:
            return (self._outermost if self._decoder.decode(text) is _OBJECT else set()), None
        except (json.JSONDecodeError, BadRecordError):
            raise
        except (_DoubledError, ValueError):  # the latter of an integer with many digits
            tree = _TREE.decode(text)
        return ({name for name, _ in tree} if isinstance(tree, tuple) else set()), _doubled(tree)

    def _unique(self, pairs: list[tuple[str, Any]]) -> object:
        self._outermost = {name for name, _ in pairs}  # objects end from the inside out
        if len(self._outermost) != len(pairs):
            raise _DoubledError
        return _OBJECT


def _check_depth(value: bytes) -> None:
    if _is_too_deep(value):
        what = f"objects and arrays of the value are nested more than {MAXIMUM_DEPTH} deep"
        raise BadRecordError(Rule.NOT_JSON, what)


def _check_encoding(value: bytes) -> None:
    try:
        value.decode()
    except UnicodeDecodeError as error:
        what = f"the value is not UTF-8: {error.reason} at byte {error.start}"
        raise BadRecordError(Rule.INVALID_UTF8, what) from None


def _malformed(text: str, error: json.JSONDecodeError) -> str:
    is_cut = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string")
    what = error.msg.removesuffix(" at").removesuffix(" starting")
    where = len(text[: error.pos].encode(errors="surrogateescape"))
    return f"{'the value is truncated' if is_cut else 'JSON is malformed'}: {what} (byte {where})"


def _check_surrogates(value: bytes) -> None:
    if b"\\ud" not in value and b"\\uD" not in value:
        return
    if half := next((found for found in _ESCAPES.finditer(value) if found[1]), None):
        what = f"a text holds one half of a surrogate pair, which is no character (byte {half.start()})"
        raise BadRecordError(Rule.NOT_JSON, what)


def _check_as_the_fast_parser(value: bytes) -> None:
    try:
        msgspec.json.decode(value, type=msgspec.Raw)
    except msgspec.DecodeError as error:
        raise BadRecordError(Rule.NOT_JSON, str(error)) from None


def _refuse(constant: str) -> NoReturn:
    raise BadRecordError(Rule.NOT_JSON, f"JSON is malformed: it has no {constant}")


def _is_too_deep(value: bytes) -> bool:
    if value.count(b"[") + value.count(b"{") <= MAXIMUM_DEPTH:
        return False
    depth = 0
    for found in _STRINGS_AND_BRACKETS.finditer(value):
        sign = found[0]
        depth += (sign in b"[{") - (sign in b"]}")
        if depth > MAXIMUM_DEPTH:
            return True
    return False


class _DoubledError(Exception):
    """An object has a name twice."""


_OBJECT = object()  # stands for every object of a document: nothing of it is kept
# Objects as tuples of pairs; integers as text, for Python makes no int of many digits.
_TREE = json.JSONDecoder(object_pairs_hook=tuple, parse_constant=_refuse, parse_int=str)


def _doubled(tree: Any) -> str | None:
    """Name the first doubled name and the object that has it; None: there is none."""
    todo: list[tuple[str, Any]] = [("$", tree)]
    while todo:
        path, node = todo.pop()
        if isinstance(node, list):
            todo += reversed(
                [(f"{path}[{index}]"[:_SHOWN], each) for index, each in enumerate(node) if _has_parts(each)]
            )
        elif isinstance(node, tuple):
            seen: set[str] = set()
            for name, _ in node:
                if name in seen:
                    inside = "" if path == "$" else f", in `{path}`"
                    return f"the field `{name[:_SHOWN]}` appears more than once{inside}"
                seen.add(name)
            todo += reversed([(f"{path}.{name}"[:_SHOWN], each) for name, each in node if _has_parts(each)])
    return None


def _has_parts(node: Any) -> bool:
    return isinstance(node, list | tuple) and len(node) > 0
