"""The identity of this host: made once, in the state folder, and read from there ever after."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import uuid
from pathlib import Path

from millrace.adapters.apps.processes import process_namespace
from millrace.adapters.apps.runners.guard import write_json
from millrace.domain.streams.hosts import Host
from millrace.errors import Code, RefusedError

FILE = ".millrace/host.json"
_SCHEMA = "millrace.host/1"


def read_host(root: Path) -> Host:
    """Return the host that this root is, with an empty identity where it has none, or none that can be read."""
    return _host(_identity(root / FILE) or "")


def make_host(root: Path) -> Host:
    """Return the host that this root is, with a new identity where it has none. Two that ask at once get the same.

    Raises:
        RefusedError: the file of its identity cannot be read or written, or is damaged.
    """
    file = root / FILE
    if file.exists():
        return _known(root)
    draft = file.with_name(f".host.{uuid.uuid4().hex}")
    try:
        file.parent.mkdir(mode=0o700, exist_ok=True)
        write_json(draft, {"schema": _SCHEMA, "id": uuid.uuid4().hex})
        draft.chmod(0o600)
        with contextlib.suppress(FileExistsError):  # another process was first, and its identity counts
            _put_in_place(draft, file)
    except OSError as error:
        raise _refused(file, f"cannot be written: {error.strerror}") from error
    finally:
        draft.unlink(missing_ok=True)
    return _known(root)


def _known(root: Path) -> Host:
    identity = _identity(root / FILE)
    if not identity:
        raise _refused(root / FILE, "cannot be read, or is damaged")
    return _host(identity)


def _identity(file: Path) -> str | None:
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        found = document["id"] if document["schema"] == _SCHEMA else None
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return found if isinstance(found, str) else None


def _put_in_place(draft: Path, file: Path) -> None:
    """Give a whole file its name, unless another one has it; some file systems have no links.

    Raises:
        FileExistsError: another file has the name.
    """
    try:
        os.link(draft, file)
    except PermissionError:
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as made:
            made.write(draft.read_bytes())


def _host(identity: str) -> Host:
    return Host(identity, socket.gethostname(), process_namespace().strip())


def _refused(file: Path, what: str) -> RefusedError:
    return RefusedError(
        f"the identity of this host {what}",
        where=str(file),
        next_step="restore the file; or delete it, then run `millrace streams adopt` for the streams of this host",
        code=Code.OTHER_HOST,
    )
