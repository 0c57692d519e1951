"""Bytes of objects. A body arrives after botocore's own tries ended, so one that breaks off is asked for again here."""

from __future__ import annotations

from dataclasses import dataclass
from http.client import HTTPException
from typing import Any

from botocore.exceptions import BotoCoreError
from tenacity import (
    Retrying,
    retry_if_exception_type,
    stop_after_attempt,
    stop_after_delay,
    wait_random_exponential,
)
from urllib3.exceptions import HTTPError

from millrace.adapters.s3.client import AnswerError, Bucket
from millrace.adapters.s3.failures import BrokenBodyError, broken

_BROKEN = (BotoCoreError, HTTPError, HTTPException, OSError)
_TRIES = 4
_NOT_LATER_THAN_SECONDS = 60  # a try that is under way then is the last


@dataclass(frozen=True, slots=True)
class Range:
    """The bytes `first <= position < next`, at least one."""

    first: int
    next: int


def read(bucket: Bucket, key: str, part: Range | None = None) -> bytes | None:
    """An object's bytes or a range of them, whole; None where there is no object.

    Raises:
        BrokenBodyError: they broke off each time.
        UnreachableError: as `Bucket.call`.
    """
    tries = Retrying(
        retry=retry_if_exception_type(BrokenBodyError),
        stop=stop_after_attempt(_TRIES) | stop_after_delay(_NOT_LATER_THAN_SECONDS),
        wait=wait_random_exponential(multiplier=0.05, max=2),
        reraise=True,
    )
    return tries(_read_once, bucket, key, part)


def _read_once(bucket: Bucket, key: str, part: Range | None) -> bytes | None:
    wanted = {} if part is None else {"Range": f"bytes={part.first}-{part.next - 1}"}
    try:
        answer = bucket.call("get_object", unless=("NoSuchKey", "InvalidRange"), Key=key, **wanted)
    except AnswerError as error:
        return None if error.code == "NoSuchKey" else b""  # a range beyond the object's end
    data = _whole(bucket, key, answer)
    status, told = answer["ResponseMetadata"]["HTTPStatusCode"], answer.get("ContentRange")
    if status == 200 and told is None:  # everything, also where the server does not know ranges
        return data if part is None else data[part.first : part.next]
    if part is None or told is None:
        raise _broken(bucket, key, f"an answer with status {status} and {told or 'no range'} came")
    return _as_asked(bucket, key, part, told, data)


def _whole(bucket: Bucket, key: str, answer: dict[str, Any]) -> bytes:
    """The body of an answer, if all of it came."""
    body = answer["Body"]
    try:
        data: bytes = body.read()  # holds itself against Content-Length, and a checksum if there is one
    except _BROKEN as error:
        raise _broken(bucket, key, type(error).__name__) from error
    finally:
        body.close()
    headers = answer["ResponseMetadata"]["HTTPHeaders"]
    if "content-length" not in headers and "chunked" not in headers.get("transfer-encoding", ""):
        raise _broken(bucket, key, "the answer says neither how long it is nor where it ends")
    return data


def _as_asked(bucket: Bucket, key: str, part: Range, told: str, data: bytes) -> bytes:
    """The bytes of a range, held against what the answer says they are: `bytes FIRST-LAST/TOTAL`."""
    total = told.rpartition("/")[2]
    next_one = min(part.next, int(total)) if total.isdecimal() else part.next  # nothing says that it ends earlier
    if told.rpartition("/")[0] != f"bytes {part.first}-{next_one - 1}" or len(data) != next_one - part.first:
        raise _broken(bucket, key, f"bytes {part.first} to {part.next} were asked for, {told!r} came")
    return data


def _broken(bucket: Bucket, key: str, why: str) -> BrokenBodyError:
    return broken(bucket.settings, f"{key}: {why}")
