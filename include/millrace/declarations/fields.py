"""The value types of declarations: durations, sizes, names and choices, each with a message that names the fix.

Every validator takes what the YAML reader made of a value and raises `Wrong` where it is not usable.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Annotated, Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from millrace.domain.formats.printable import shown

PIPELINE_NAME = re.compile(r"[a-z][a-z0-9_]{0,23}")
RESERVED_PIPELINES = frozenset({"millrace", "platform"})
RESERVED_SCHEMAS = frozenset({"millrace", "information_schema"})
RESERVED_PREFIXES = {
    "archive": "it holds the backups of topics",
    "audit": "it holds the evidence of backup audits",
    "quality": "it holds the evidence of quality checks",
    "millrace-probe": "Millrace tests the bucket there",
}
"""What Millrace keeps in buckets itself: the first segments of its keys, and why no stream may write there."""
KAFKAS_OWN = "__"
"""How the names of topics begin that Kafka keeps for itself."""
UNLIMITED = "unlimited"
MAXIMUM_LONG = 2**63 - 1

_MILLISECONDS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_MILLISECONDS["y"] = 365 * _MILLISECONDS["d"]
_BYTES = {"B": 1, "KB": 1000, "MB": 1000**2, "GB": 1000**3, "TB": 1000**4}
_BYTES |= {"KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "TiB": 1024**4}
_UNIT = f"({'|'.join(_MILLISECONDS)})"
_DURATION = rf"[1-9][0-9]{{0,18}}{_UNIT}"
_SIZE = r"[1-9][0-9]{0,18}(B|KB|MB|GB|TB|KiB|MiB|GiB|TiB)"


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """What a field may hold: stands in `Annotated`, and does all the validation of its field.

    `check` makes the value or raises `Wrong`; `schema` says the same to an editor.
    """

    check: Callable[[Any], Any]
    schema: Mapping[str, Any]

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return dict(self.schema)


class Wrong(ValueError):
    """A value is not usable. `line_offset` counts lines from the value's first one, in a literal block."""

    def __init__(self, what: str, next_step: str, *, line_offset: int = 0) -> None:
        self.what = what
        self.next_step = next_step
        self.line_offset = line_offset
        super().__init__(what)


class SeveralWrong(ValueError):
    """Several things are wrong with one value."""

    def __init__(self, problems: Iterable[Wrong]) -> None:
        self.problems = tuple(problems)
        super().__init__("several problems")


def described(value: object) -> str:
    """A value as messages call it."""
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return f"the number {shown(value)}"
        case str():
            return f"`{shown(value)}`"
        case list():
            return "a list"
        case dict():
            return "a group of fields"
    return "no usable value"


def nearest(name: str, known: Iterable[str]) -> str:
    """`did you mean X?`, or the known names, or nothing where none is known."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"did you mean `{close[0]}`?"
    return f"choose one of: {', '.join(names[:12])}" + (" ..." if len(names) > 12 else "") if names else ""


def _text(value: object, example: str) -> str:
    if isinstance(value, str):
        return value
    quoted = (
        f'quote it: "{shown(value).lower()}"'
        if isinstance(value, bool | int | float)
        else f"write text, like `{example}`"
    )
    raise Wrong(f"{described(value)} is not text", quoted)


def pattern(expression: str, rule: str, example: str, *, reserved: Mapping[str, str] | None = None) -> Rule:
    """A rule: text that matches a regular expression as a whole and is not reserved.

    Args:
        expression: what the whole text must match.
        rule: the same in words.
        example: a right value.
        reserved: words that are refused, each with the reason.
    """
    compiled = re.compile(expression)

    def check(value: object) -> str:
        text = _text(value, example)
        if not compiled.fullmatch(text):
            raise Wrong(f"{described(text)} is not {rule}", f"write a name like `{example}`")
        if reserved and text in reserved:
            raise Wrong(f"`{text}` is reserved: {reserved[text]}", f"choose another name, for instance `{example}`")
        return text

    schema = {"type": "string", "pattern": f"^({expression})$", "examples": [example]}
    return Rule(check, schema)


def sentence(maximum: int, example: str) -> Rule:
    """A rule: text for people, not empty, of at most so many characters."""

    def check(value: object) -> str:
        text = _text(value, example).strip()
        if not text:
            raise Wrong("the text is empty", "write some words, or remove the field")
        if len(text) > maximum:
            raise Wrong(f"the text has {len(text)} characters", f"shorten it to {maximum}")
        return text

    return Rule(check, {"type": "string", "minLength": 1, "maxLength": maximum})


def whole_number(least: int, most: int) -> Rule:
    """A rule: a whole number within bounds, both included."""

    def check(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise Wrong(f"{described(value)} is not a whole number", f"write a number from {least} to {most}")
        if not least <= value <= most:
            raise Wrong(f"{value} is out of bounds", f"write a number from {least} to {most}")
        return value

    schema = {"type": "integer", "minimum": least, "maximum": most}
    return Rule(check, schema)


def choice(kind: type[Enum], not_yet: Mapping[str, str] | None = None) -> Rule:
    """A rule: one value of an enum. `not_yet` names words whose capability does not exist yet."""
    words = [str(each.value) for each in kind]
    allowed = " or ".join(f"`{word}`" for word in words)

    def check(value: object) -> Enum:
        word = next(iter(value)) if isinstance(value, dict) and len(value) == 1 else value
        if not_yet and isinstance(word, str) and word in not_yet:
            raise Wrong(not_yet[word], f"write {allowed}")
        if not isinstance(value, str) or value not in words:
            hint = nearest(value, words) if isinstance(value, str) else ""
            hint = hint if hint.startswith("did") else f"write {allowed}"
            raise Wrong(f"{described(value)} is not {allowed}", hint)
        return kind(value)

    return Rule(check, {"enum": words})


def parse_duration(value: object) -> timedelta:
    """A duration such as `7d`, `12h`, `5m`, `30s` or `250ms`; a year, `1y`, is 365 days.

    Raises:
        Wrong: it is not one, is zero or negative, or is longer than can be counted.
    """
    step = "write a whole number and a unit: 7d, 12h, 5m, 30s or 250ms"
    if isinstance(value, bool) or not isinstance(value, str):
        what = (
            " has no unit" if isinstance(value, int | float) and not isinstance(value, bool) else " is not a duration"
        )
        raise Wrong(described(value) + what, step)
    text = value.strip()
    found = re.fullmatch(rf"([0-9]{{1,18}}){_UNIT}", text)
    if not found:
        if re.fullmatch(rf"-[0-9]+{_UNIT}", text):
            raise Wrong(f"`{shown(text)}` is negative", step)
        raise Wrong(f"`{shown(text)}` is not a duration", step)
    milliseconds = int(found[1]) * _MILLISECONDS[found[2]]
    if milliseconds == 0:
        raise Wrong(f"`{text}` is zero", step)
    try:
        return timedelta(milliseconds=milliseconds)
    except OverflowError:
        raise Wrong(f"`{text}` is longer than Millrace and Kafka can count", "write at most 999999999d") from None


def parse_size(value: object) -> int:
    """Bytes from a size such as `2GiB`, `500MB`, `900KB` or `100B`.

    Raises:
        Wrong: it is not one, is zero or negative, or does not fit Kafka's 64 bits.
    """
    step = "write a whole number and a unit: 2GiB, 512MiB, 500MB, 900KB or 100B"
    if isinstance(value, bool) or not isinstance(value, str):
        what = " has no unit" if isinstance(value, int | float) and not isinstance(value, bool) else " is not a size"
        raise Wrong(described(value) + what, step)
    text = value.strip()
    found = re.fullmatch(r"(-?[0-9]{1,19})([A-Za-z]*)", text)
    if not found or found[2] not in _BYTES:
        like = {unit.casefold(): unit for unit in _BYTES}.get(found[2].casefold()) if found else None
        hint = f"did you mean `{found[1]}{like}`?" if found and like else step
        raise Wrong(f"`{shown(text)}` is not a size", hint)
    size = int(found[1]) * _BYTES[found[2]]
    if size <= 0:
        raise Wrong(f"`{text}` is {'zero' if size == 0 else 'negative'}", step)
    if size > MAXIMUM_LONG:
        raise Wrong(f"`{text}` is more than 64 bits can count", "write a smaller size, or `unlimited`")
    return size


def limited(parse: Callable[[object], Any], expression: str) -> Rule:
    """A rule: a duration or size, or the word `unlimited`, which becomes None."""

    def check(value: object) -> Any:
        if value == UNLIMITED:
            return None
        try:
            return parse(value)
        except Wrong as wrong:
            step = wrong.next_step if "unlimited" in wrong.next_step else f"{wrong.next_step}; or `unlimited`"
            raise Wrong(wrong.what, step) from None

    schema = {"type": "string", "pattern": f"^({expression}|{UNLIMITED})$", "examples": [UNLIMITED]}
    return Rule(check, schema)


def bounded_duration(least: timedelta, most: timedelta, words: str, not_yet: Mapping[str, str]) -> Rule:
    """A rule: a duration within bounds; `words` names the bounds."""

    def check(value: object) -> timedelta:
        if isinstance(value, str) and value in not_yet:
            raise Wrong(not_yet[value], f"write a duration from {words}, for instance 2s")
        duration = parse_duration(value)
        if not least <= duration <= most:
            raise Wrong(f"`{shown(value)}` is out of bounds", f"write a duration from {words}")
        return duration

    return Rule(check, {"type": "string", "pattern": f"^{_DURATION}$"})


def bounded_size(least: int, most: int, words: str) -> Rule:
    """A rule: bytes within bounds; `words` names the bounds."""

    def check(value: object) -> int:
        size = parse_size(value)
        if not least <= size <= most:
            raise Wrong(f"`{shown(value)}` is out of bounds", f"write a size from {words}")
        return size

    return Rule(check, {"type": "string", "pattern": f"^{_SIZE}$"})


RetentionTime = Annotated[timedelta | None, limited(parse_duration, _DURATION)]
RetentionSize = Annotated[int | None, limited(parse_size, _SIZE)]
ArchiveTime = Annotated[
    timedelta | None,
    limited(bounded_duration(timedelta(days=1), timedelta(days=365_000), "1d to 1000y", {}).check, _DURATION),
]


def setting(value: object) -> str:
    """A scalar as a Kafka setting's text.

    Raises:
        Wrong: it is a list or a group of fields.
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise Wrong(f"{described(value)} is not a single value", "write text, a number, true or false")


Setting = Annotated[str, Rule(setting, {"type": ["string", "number", "boolean"]})]


def _topic_name(value: object) -> str:
    text = _text(value, "shop.purchases")
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", text) or text in (".", ".."):
        rule = "a Kafka topic name: 1 to 249 of letters, digits, `.`, `_` and `-`"
        raise Wrong(f"{described(text)} is not {rule}", "write a name like `shop.purchases`")
    return text


def is_topic_name(text: str) -> bool:
    """Whether Kafka and Millrace take the text for a topic's name."""
    try:
        _topic_name(text)
    except Wrong:
        return False
    return True


TopicName = Annotated[str, Rule(_topic_name, {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,249}$"})]


def _table(value: object) -> str:
    text = _text(value, "shop.purchases")
    parts = text.split(".")
    if len(parts) != 2 or not all(re.fullmatch(r"[a-z_][a-z0-9_]*", part) for part in parts):
        rule = "`schema.table` of lower-case letters, digits and `_`"
        raise Wrong(f"{described(text)} is not {rule}", "write a name like `shop.purchases`")
    if any(len(part) > 63 for part in parts):
        raise Wrong(f"`{shown(text)}` has a name of more than 63 bytes, which PostgreSQL cuts", "shorten it")
    if parts[0] in RESERVED_SCHEMAS or parts[0].startswith("pg_"):
        raise Wrong(f"the schema `{parts[0]}` is reserved", "write into a schema of your own, like `shop.purchases`")
    return text


MOST_SEGMENTS = 8
LONGEST_PREFIX = 200
_SEGMENT = r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}"


def _prefix(value: object) -> str:
    example = "lake/purchases"
    text = _text(value, example)
    if text != text.strip("/"):
        trimmed = text.strip("/")
        hint = f"write `{shown(trimmed)}`" if trimmed else f"write a prefix like `{example}`"
        raise Wrong(f"{described(text)} begins or ends with a slash", hint)
    segments = text.split("/")
    if not all(re.fullmatch(_SEGMENT, segment) for segment in segments):
        rule = "segments, with `/` between them, of a letter or digit and up to 62 letters, digits, `.`, `_` and `-`"
        raise Wrong(f"{described(text)} is not {rule}", f"write a prefix like `{example}`")
    if len(segments) > MOST_SEGMENTS:
        raise Wrong(f"the prefix has {len(segments)} segments, more than {MOST_SEGMENTS}", "write fewer")
    if len(text) > LONGEST_PREFIX:
        raise Wrong(f"the prefix has {len(text)} characters, more than {LONGEST_PREFIX}", "shorten it")
    if segments[0] in RESERVED_PREFIXES:
        what = f"`{segments[0]}/` is reserved: {RESERVED_PREFIXES[segments[0]]}"
        raise Wrong(what, f"write below a prefix of your own, like `{example}`")
    return text


Prefix = Annotated[
    str,
    Rule(
        _prefix,
        {
            "type": "string",
            "pattern": f"^{_SEGMENT}(/{_SEGMENT}){{0,{MOST_SEGMENTS - 1}}}$",
            "maxLength": LONGEST_PREFIX,
            "examples": ["lake/purchases"],
        },
    ),
]

Table = Annotated[str, Rule(_table, {"type": "string", "pattern": "^[a-z_][a-z0-9_]{0,62}[.][a-z_][a-z0-9_]{0,62}$"})]
