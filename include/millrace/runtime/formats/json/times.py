"""Texts of DATE and TIMESTAMP, in every spelling that is accepted (docs/reference/records.md)."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta, timezone

from millrace.domain.declaration.pipeline import Column
from millrace.domain.quarantine.rules import Rule
from millrace.runtime.formats.decoded import BadRecordError

_DATE = re.compile(r"(\d{4})-(\d\d)-(\d\d)", re.ASCII)
_TIME = re.compile(
    r"(?P<day>\d{4}-\d\d-\d\d)"
    r"(?:[Tt ](?P<hour>\d\d):(?P<minute>\d\d)(?::(?P<second>\d\d)(?:\.(?P<fraction>\d+))?)?"
    r"(?:[Zz]|(?P<sign>[+-])(?P<hours>\d\d)(?::?(?P<minutes>\d\d))?)?)?",
    re.ASCII,
)
_SHOWN = 60
_MICROSECOND_DIGITS = 6


def read_date(column: Column, text: str) -> date:
    """Return the day that the text names.

    Raises:
        BadRecordError: it has not the form YYYY-MM-DD, or there is no such day.
    """
    found = _DATE.fullmatch(text)
    if not found:
        raise _wrong_form(column, "YYYY-MM-DD", text)
    try:
        return date(*map(int, found.groups()))
    except ValueError as error:
        raise _no_time(column, text, error) from None


def read_time(column: Column, text: str) -> tuple[datetime, bool]:
    """Return the time, cut to microseconds, and whether that took something away; without a zone it has none.

    Raises:
        BadRecordError: it has not the form of a time, or there is no such time.
    """
    found = _TIME.fullmatch(text)
    if not found:
        raise _wrong_form(column, "YYYY-MM-DDThh:mm:ssZ", text)
    day = read_date(column, found["day"])
    fraction = found["fraction"] or ""
    kept, cut = fraction[:_MICROSECOND_DIGITS], fraction[_MICROSECOND_DIGITS:]
    hour, minute, second = (int(found[part] or 0) for part in ("hour", "minute", "second"))
    microsecond = int(kept.ljust(_MICROSECOND_DIGITS, "0"))
    try:
        time = datetime(day.year, day.month, day.day, hour, minute, second, microsecond, _zone(found))
        return time, bool(cut.strip("0"))
    except ValueError as error:
        raise _no_time(column, text, error) from None


def _zone(found: re.Match[str]) -> timezone | None:
    if not found["sign"]:
        return UTC if found[0][-1] in "Zz" else None
    minutes = int(found["minutes"] or 0)
    if minutes >= 60:
        raise ValueError("minutes of a zone must be in 0..59")
    offset = timedelta(hours=int(found["hours"]), minutes=minutes)
    return timezone(-offset if found["sign"] == "-" else offset)


def _wrong_form(column: Column, form: str, text: str) -> BadRecordError:
    return BadRecordError(Rule.WRONG_TYPE, f"the field `{column.name}` has not the form {form}: {text[:_SHOWN]!r}")


def _no_time(column: Column, text: str, error: ValueError) -> BadRecordError:
    kind = column.type.value
    return BadRecordError(Rule.OUT_OF_RANGE, f"the field `{column.name}` names no {kind}: {text[:_SHOWN]!r} ({error})")
