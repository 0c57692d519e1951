"""How every command answers: one JSON document on standard output, or text for people; errors on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.text import Text as RichText

from millrace.domain.formats.printable import printable, printable_error, printable_lines
from millrace.errors import MillraceError

WIDTH_ELSEWHERE = 160
"""Columns of a table that goes to a file or a pipe."""


class Text(RichText):
    """One line for people. Control characters in it are shown escaped, and markup is shown as it is.

    Names come from Kafka, S3 and PostgreSQL: none of them starts a line, moves a cursor or turns the writing round.
    """

    def __init__(self, text: str = "", style: str = "", **more: Any) -> None:
        super().__init__(printable(text), style, **more)

    def append(self, text: RichText | str, style: Any = None) -> Self:
        """Add to the line."""
        super().append(printable(text) if isinstance(text, str) else text, style)
        return self


def lines(parts: Iterable[str], style: str = "") -> RichText:
    """Return a line for each part, one below the other."""
    return RichText("\n").join(Text(part, style) for part in parts)


def paragraph(text: str, style: str = "") -> RichText:
    """Return a message of Millrace's own that may have several lines, such as an error with its next step."""
    return RichText(printable_lines(text), style)


def emit(document: Mapping[str, object], *, as_json: bool, text: Callable[[Console], None]) -> None:
    """Print a command's result, once.

    Args:
        document: the result; carries its kind and version as `{"schema": "millrace.NOUN.VERB/1", ...}`.
        as_json: print the document alone, as one JSON value.
        text: prints it for people, on the console it is given.
    """
    if as_json:
        sys.stdout.write(json.dumps(document, indent=2, default=_plain) + "\n")
    else:
        console = Console()
        if not console.is_terminal:  # a file or a pipe has no width to keep to
            console.width = max(console.width, WIDTH_ELSEWHERE)
        text(console)


def moment(at: datetime) -> str:
    """A time for people, in UTC, to the second."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def error_document(error: MillraceError) -> dict[str, str]:
    """An error as JSON."""
    return {"what": error.what, "where": error.where, "next_step": error.next_step}


def show_error(error: MillraceError) -> None:
    """Print what was wrong, where, and what to do next, on standard error."""
    first, *others = error.lines
    text = printable_error((f"millrace: {first}", *others), quotes_log=error.quotes_log)
    Console(stderr=True).print(RichText(text), soft_wrap=True)


def _plain(value: object) -> object:
    """What JSON has no word for: times in ISO form, durations in seconds, enums by value, dataclasses by field."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, frozenset | set):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")
