"""One JSON document looked at strictly: all that the fast parser skips or does not tell truly."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

import msgspec

from millrace.domain.quarantine import Rule
from millrace.runtime.decoded import BadRecordError

MAXIMUM_DEPTH = 500
"""Objects and arrays inside one another: so many that no parser's own bound, which varies, is ever met."""

_SHOWN = 100
# A pair of escapes that is one character; half of such a pair (the group); any other escape.
_ESCAPES = re.compile(rb"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|(\\u[dD][89a-fA-F])|\\.", re.DOTALL)
_STRINGS_AND_BRACKETS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[{\]}]', re.DOTALL)


def check_document(value: bytes, refusal: Exception | None = None) -> None:
    """Return where the value is one JSON document in UTF-8 in which no object has a name twice, at any depth.

    All positions in messages are bytes from the beginning of the value.

    Args:
        value: the record's value.
        refusal: of the fast parser, where it refused the value.

    Raises:
        BadRecordError: it is not.
    """
    try:
        text = value.decode()
    except UnicodeDecodeError as error:
        raise BadRecordError(
            Rule.INVALID_UTF8, f"the value is not UTF-8: {error.reason} at byte {error.start}"
        ) from None
    if _is_too_deep(value):
        what = f"objects and arrays of the value are nested more than {MAXIMUM_DEPTH} deep"
        raise BadRecordError(Rule.NOT_JSON, what)
    doubled = False

    def note_doubled(pairs: list[tuple[str, Any]]) -> None:
        nonlocal doubled
        doubled = doubled or len({name for name, _ in pairs}) != len(pairs)

    try:
        _parse(text, note_doubled)
    except json.JSONDecodeError as error:
        where = len(text[: error.pos].encode())
        what = f"JSON is malformed: {error.msg.removesuffix(' at')} (byte {where})"
        raise BadRecordError(Rule.NOT_JSON, str(refusal) if _is_about_json(refusal) else what) from None
    if refusal is not None:
        _check_surrogates(value)
    if doubled:
        raise BadRecordError(Rule.DUPLICATE_FIELD, _doubled(text))
    if _is_about_json(refusal):
        raise BadRecordError(Rule.NOT_JSON, str(refusal))


def _check_surrogates(value: bytes) -> None:
    if half := next((found for found in _ESCAPES.finditer(value) if found[1]), None):
        what = f"a text holds one half of a surrogate pair, which is no character (byte {half.start()})"
        raise BadRecordError(Rule.NOT_JSON, what)


def _is_about_json(refusal: Exception | None) -> bool:
    """Whether it is not about the fields."""
    return isinstance(refusal, msgspec.DecodeError) and not isinstance(refusal, msgspec.ValidationError)


def _parse(text: str, pairs_hook: Any) -> Any:
    """Numbers stay text: Python refuses to make an int of many digits."""
    return json.loads(text, object_pairs_hook=pairs_hook, parse_int=str, parse_float=str, parse_constant=_refuse)


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


def _doubled(text: str) -> str:
    """Name the first doubled name and the object that has it."""
    todo: list[tuple[str, Any]] = [("$", _parse(text, tuple))]
    while todo:
        path, node = todo.pop()
        if isinstance(node, list):
            todo += reversed([(f"{path}[{index}]", each) for index, each in enumerate(node)])
        elif isinstance(node, tuple):
            seen: set[str] = set()
            for name, _ in node:
                if name in seen:
                    inside = "" if path == "$" else f", in `{path[:_SHOWN]}`"
                    return f"the field `{name[:_SHOWN]}` appears more than once{inside}"
                seen.add(name)
            todo += reversed([(f"{path}.{name}", each) for name, each in node])
    return "a field appears more than once"
