"""What the options of a command ask for of an archive: by time or by offset, by key."""

from __future__ import annotations

import base64
import binascii
import re
from datetime import UTC, datetime, timedelta

from millrace.domain.archive.manifest import MOST
from millrace.domain.archive.selection import Selection
from millrace.domain.formats.printable import printable
from millrace.domain.rewind.time_travel import WrongTimeError, parse_time
from millrace.errors import Code, UsageError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_MOMENT = datetime.max.replace(tzinfo=UTC)  # producers write any timestamp, so a bound may lie in the future
_MILLISECOND = timedelta(milliseconds=1)


def selection_of(
    from_: str | None,
    to: str | None,
    *,
    partition: int | None = None,
    key: str | None = None,
    key_base64: str | None = None,
) -> Selection:
    """What the options of the command ask for.

    Raises:
        UsageError: a bound is neither a time with its zone nor an offset, one is a time and the other an offset, an
            offset comes without a partition, the bounds leave nothing, or the key is given twice or is no bytes.
    """
    low, high = _bound(from_, "--from"), _bound(to, "--to")
    kinds = {type(bound) for bound in (low, high) if bound is not None}
    if len(kinds) > 1:
        raise UsageError("--from and --to are a time and an offset", next_step="give two times or two offsets")
    if low is not None and high is not None and _number(low) >= _number(high):
        raise UsageError(
            "the range from --from to --to is empty", next_step="give a --from before --to; --to is excluded"
        )
    wanted = _key(key, key_base64)
    first, next_ = (None if bound is None else _number(bound) for bound in (low, high))
    if int not in kinds:
        return Selection(partition, from_ms=first, to_ms=next_, key=wanted)
    if partition is None:
        raise UsageError("an offset needs its partition", next_step="give --partition, or give times")
    return Selection(partition, first or 0, MOST if next_ is None else next_, key=wanted)


def _bound(text: str | None, option: str) -> int | datetime | None:
    """An offset, or a moment."""
    if text is None:
        return None
    if re.fullmatch("[0-9]{1,19}", text):
        return int(text)
    try:
        return parse_time(text, _LAST_MOMENT)
    except WrongTimeError as error:
        raise UsageError(
            printable(str(error)),
            where=option,
            next_step="give a time with its zone, or an offset (a whole number) and --partition",
            code=Code.WRONG_TIME,
        ) from error


def _number(bound: int | datetime) -> int:
    """An offset as it is; of a moment the first millisecond that is not before it."""
    return bound if isinstance(bound, int) else -((_EPOCH - bound) // _MILLISECOND)


def _key(text: str | None, in_base64: str | None) -> bytes | None:
    if text is not None and in_base64 is not None:
        raise UsageError("the key is given twice", next_step="give only one of --key and --key-base64")
    try:
        if in_base64 is not None:
            return base64.b64decode(in_base64, validate=True)
        return None if text is None else text.encode()
    except (binascii.Error, ValueError) as error:
        option = "--key" if in_base64 is None else "--key-base64"
        raise UsageError(
            "the key is not UTF-8" if in_base64 is None else "the key is not base64",
            where=option,
            next_step="give binary keys as --key-base64, with padding",
        ) from error
