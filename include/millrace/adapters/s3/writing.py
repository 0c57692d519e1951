"""Objects are written where none is, at once or in parts; both ask the store itself to refuse another one's place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millrace.adapters.s3.client import AnswerError, Bucket, content_md5
from millrace.errors import MillraceError, UnreachableError

NOTHING_THERE = "*"  # of If-None-Match: write only where there is no object
_CONFLICT = 409  # S3: ConditionalRequestConflict, OperationAborted
_UNSURE = ("412", str(_CONFLICT))  # statuses, since stores have words of their own for them
_ENDED = "NoSuchUpload"  # completed by a try whose answer was lost, or aborted by somebody
_PARTS_GONE = (_ENDED, "InvalidPart", "NoSuchKey")  # as some stores say that of a completed upload


class LookError(Exception):
    """The write was refused or its outcome is not known: what is there tells."""


class ContestedError(UnreachableError):
    """Others wrote or deleted the same object meanwhile: the same once more may do."""


def contested(bucket: Bucket, key: str, why: str) -> ContestedError:
    """The error for a write that may be tried again."""
    return ContestedError(
        f"each write of {key} failed: {why}",
        where=bucket.where,
        next_step="retry, and check which other programs write or delete there",
    )


def put(bucket: Bucket, key: str, data: bytes) -> None:
    """Write an object where none is, in one request.

    Raises:
        LookError: there is one, perhaps by an earlier try of this very request; or the answer is not a store's.
        ContestedError: another write to the key is under way.
    """
    try:
        answer = bucket.call(
            "put_object",
            unless=_UNSURE,
            Key=key,
            Body=data,
            ContentMD5=content_md5(data),
            IfNoneMatch=NOTHING_THERE,
        )
    except AnswerError as error:
        raise _meaning(bucket, key, error) from error
    _see_written(answer)


def upload(
    bucket: Bucket,
    key: str,
    data: bytes,
    *,
    part_size: int,
    hasty: Bucket,
    before_last: Callable[[], object] = lambda: None,
) -> None:
    """Write an object where none is, in parts of `part_size` bytes. A failure leaves no parts behind, if it can.

    `hasty` is the same bucket with little patience, to abort by: the first error has often taken all that there was.
    `before_last` is called once all parts are there, right before the request that makes an object of them.

    A process that is killed, and a lost answer to the very first request, do leave parts that cost money: a lifecycle
    rule of the bucket is for them.

    Raises:
        LookError: there is one, perhaps by an earlier try of this very upload; or the answer is not a store's.
        ContestedError: another write to the key is under way, or somebody aborted the upload.
    """
    started = bucket.call("create_multipart_upload", needs=("UploadId",), Key=key)["UploadId"]
    try:
        parts = _send(bucket, key, started, data, part_size)
        before_last()
        _complete(bucket, key, started, parts)
    except BaseException as error:
        _abort(hasty, key, started, error)
        if isinstance(error, AnswerError):
            raise _meaning(bucket, key, error) from error
        raise


def _send(bucket: Bucket, key: str, started: str, data: bytes, part_size: int) -> list[dict[str, Any]]:
    parts = []
    for number, first in enumerate(range(0, max(len(data), 1), part_size), start=1):
        part = data[first : first + part_size]
        answer = bucket.call(
            "upload_part",
            unless=(_ENDED,),
            needs=("ETag",),
            Key=key,
            UploadId=started,
            PartNumber=number,
            Body=part,
            ContentMD5=content_md5(part),
        )
        parts.append({"PartNumber": number, "ETag": answer["ETag"]})
    return parts


def _complete(bucket: Bucket, key: str, started: str, parts: list[dict[str, Any]]) -> None:
    answer = bucket.call(
        "complete_multipart_upload",
        unless=(*_UNSURE, *_PARTS_GONE),
        Key=key,
        UploadId=started,
        MultipartUpload={"Parts": parts},
        IfNoneMatch=NOTHING_THERE,
    )
    _see_written(answer)


def _see_written(answer: dict[str, Any]) -> None:
    """A login page, an empty 200 and an answer that broke off have no ETag; a store's answer to a write has."""
    if not answer.get("ETag"):
        raise LookError("an answer without ETag")


def _meaning(bucket: Bucket, key: str, error: AnswerError) -> Exception:
    return contested(bucket, key, error.code) if error.status == _CONFLICT else LookError(error.code)


def _abort(hasty: Bucket, key: str, started: str, first: BaseException) -> None:
    """Have the store forget the parts. What goes wrong here is noted with the first error and does not hide it."""
    try:
        hasty.call("abort_multipart_upload", unless=(_ENDED,), Key=key, UploadId=started)
    except AnswerError:
        return  # nothing is left
    except MillraceError as error:
        first.add_note(f"the parts of the upload {started} of {key} may remain in {hasty.where}: {error.what}")
