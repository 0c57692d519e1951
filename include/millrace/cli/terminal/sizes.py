"""Options that are a time or a size, in the words of declarations."""

from __future__ import annotations

from datetime import timedelta

from millrace.declarations.fields import Wrong, parse_duration, parse_size
from millrace.errors import UsageError


def duration_option(option: str, text: str) -> timedelta:
    """Return the time that an option says, as `2d`.

    Raises:
        UsageError: it is none; the message names the option.
    """
    try:
        return parse_duration(text)
    except Wrong as wrong:
        raise UsageError(f"{option}: {wrong.what}", next_step=wrong.next_step) from None


def size_option(option: str, text: str) -> int:
    """Return the bytes that an option says, as `2GiB`.

    Raises:
        UsageError: it is no size; the message names the option.
    """
    try:
        return parse_size(text)
    except Wrong as wrong:
        raise UsageError(f"{option}: {wrong.what}", next_step=wrong.next_step) from None
