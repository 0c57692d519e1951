"""Manifests and summaries as bytes: JSON in one form only, so that what is read back is all that was said."""

from __future__ import annotations

import hashlib
from typing import TypeVar

import msgspec

from millrace.domain.archive.manifest import Manifest
from millrace.domain.archive.summary import Summary
from millrace.errors import CorruptArchiveError

Document = TypeVar("Document", Manifest, Summary)


def encode(document: Manifest | Summary) -> bytes:
    """The bytes of a manifest or summary: compact JSON, its fields in their order, a line's end."""
    return msgspec.json.encode(document) + b"\n"


def sha256_of(data: bytes) -> str:
    """SHA-256 of bytes, as 64 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def decode(data: bytes, kind: type[Document], key: str) -> Document:
    """What bytes say.

    Args:
        data: all bytes of the object.
        kind: what it should be.
        key: where it lies, for the error.

    Raises:
        CorruptArchiveError: they are no such document, of a version that is not known, or in another form than `encode`
            gives: an unknown field, a number written otherwise.
    """
    try:
        document = msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
        raise _not_one(key, kind, str(error)) from error
    if encode(document) != data:
        raise _not_one(key, kind, "it says more than is understood, or says it in another form")
    return document


def _not_one(key: str, kind: type, why: str) -> CorruptArchiveError:
    return CorruptArchiveError(
        f"it is no {kind.__name__.lower()}: {why}",
        where=key,
        next_step="if a newer Millrace wrote it, use that one; otherwise keep it and look for who changed it",
    )
