"""What decides what becomes of a record, as a digest: the apps' files, the stream and its topics, and Millrace."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from millrace import __version__
from millrace.domain.declaration.pipeline import Pipeline, Stream
from millrace.errors import Code, DeclarationError


def digest_of(root: Path, pipeline: Pipeline, stream: Stream) -> str:
    """A digest, the same in every process; another one once anything of it changed.

    All apps' files count, for apps may share modules; what begins with a point or ends with `~`, and what Python
    compiles, does not. Installed packages do not count.

    Args:
        root: the project's folder.
        pipeline: whose stream it is.
        stream: whose app it is.

    Raises:
        DeclarationError: a file cannot be read.
    """
    declared = [__version__, stream, [pipeline.topic(name) for name in stream.reads]]
    digest = hashlib.sha256(msgspec.json.encode(declared, order="deterministic"))
    folder = root / "spark_apps"
    try:
        for path in _files(folder):
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").digest()
            digest.update(hashlib.sha256(os.fsencode(path.relative_to(folder))).digest() + content)
    except OSError as error:
        raise DeclarationError(
            f"a file of the apps cannot be read: {error.strerror}",
            where=os.fsencode(error.filename or folder).decode("utf-8", "backslashreplace"),
            next_step="let this user read the file, or remove it from the folder",
            code=Code.MISSING_RIGHT,
        ) from error
    return digest.hexdigest()[:16]


def _files(folder: Path) -> Iterator[Path]:
    """All of its files, in one order; a folder that several links lead to is looked at once."""
    seen = set[str]()
    for place, folders, names in os.walk(folder, followlinks=True, onerror=_raise):
        real = os.path.realpath(place)
        folders[:] = sorted(name for name in folders if real not in seen and _counts(name))
        if real not in seen:
            yield from (Path(place) / name for name in sorted(names) if _counts(name))
        seen.add(real)


def _raise(error: OSError) -> None:
    raise error


def _counts(name: str) -> bool:
    return not (name.startswith(".") or name.endswith(("~", ".pyc")) or name == "__pycache__")
