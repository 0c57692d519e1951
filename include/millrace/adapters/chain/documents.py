"""Documents of archives and datasets as bytes: JSON in one form only, so that what is read back is what was said."""

from __future__ import annotations

import hashlib
from typing import Any, TypeVar

import msgspec

from millrace.domain.archive.audits.findings import Audit
from millrace.domain.archive.manifest import Manifest, ObjectEntry
from millrace.domain.archive.proof.summary import Summary
from millrace.domain.sinks.dataset import history as dataset_history
from millrace.domain.sinks.dataset import manifest as dataset_manifest
from millrace.errors import CorruptArchiveError

Document = TypeVar(
    "Document", Manifest, ObjectEntry, Summary, Audit, dataset_manifest.Manifest, dataset_history.Summary
)
ChainManifest = TypeVar("ChainManifest", Manifest, dataset_manifest.Manifest)
_SUMMED = (Summary, dataset_history.Summary)

# What msgspec knows of a class it makes when that is first asked for, and other threads see it half made: two that
# decode their first manifest at the same time end the process. So it is made here, before anybody can decode.
_DECODERS: dict[type, msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind)
    for kind in (Manifest, ObjectEntry, Summary, Audit, dataset_manifest.Manifest, dataset_history.Summary)
}


def encode(document: Document) -> bytes:
    """The bytes of a document: compact JSON, its fields in their order, a line's end.

    A summary, of which nothing else tells whether it is what was written, has its SHA-256 in a second line.
    """
    line = msgspec.json.encode(document) + b"\n"
    return line + sha256_of(line).encode() + b"\n" if isinstance(document, _SUMMED) else line


def sha256_of(data: bytes) -> str:
    """SHA-256 of bytes, as 64 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def decode(data: bytes, kind: type[Document], key: str) -> Document:
    """Return the document that these bytes are, and nothing else.

    Args:
        data: all bytes of the object.
        kind: what it should be.
        key: where it lies, for the error.

    Raises:
        CorruptArchiveError: they are no such document, of a version that is not known, or in another form than `encode`
            gives: an unknown field, a number written otherwise, another sum.
    """
    document = parse(data.partition(b"\n")[0], kind, key)
    if encode(document) != data:
        raise _not_one(key, kind, "it has unknown fields or another format, or it was changed")
    return document


def parse(line: bytes, kind: type[Document], key: str) -> Document:
    """Return the document in a line that another version may have written; unknown fields are left out.

    Raises:
        CorruptArchiveError: it is no such document, or of a version that is not known.
    """
    try:
        document: Document = _DECODERS[kind].decode(line)
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
        raise _not_one(key, kind, str(error)[:1000]) from error
    return document


def _not_one(key: str, kind: type, why: str) -> CorruptArchiveError:
    return CorruptArchiveError(
        f"the object is not a valid {kind.__name__.lower()}: {why}",
        where=key,
        next_step="use the newer Millrace if one wrote it; otherwise keep the object, and find out who changed it",
    )
