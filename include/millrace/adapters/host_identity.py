"""The identity of this host: made once, in the state folder, and read from there ever after."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import uuid
from pathlib import Path

from millrace.adapters.app_processes import process_namespace
from millrace.adapters.process_guard import write_json
from millrace.domain.hosts import Host
from millrace.errors import RefusedError

FILE = ".millrace/host.json"
_SCHEMA = "millrace.host/1"


def read_host(root: Path) -> Host:
    """Return the host that this root is, with an empty identity where no stream was started from it yet.

    Raises:
        RefusedError: the file of its identity is damaged, or belongs to another user.
    """
    file = root / FILE
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        identity = document["id"] if document["schema"] == _SCHEMA else None
    except (FileNotFoundError, NotADirectoryError):
        return _host("")
    except OSError as error:
        raise _refused(file, f"cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError):
        identity = None
    if not isinstance(identity, str) or not identity:
        raise _refused(file, "holds no identity")
    return _host(identity)


def make_host(root: Path) -> Host:
    """Return the host that this root is, with a new identity where it has none. Two that ask at once get the same.

    Raises:
        RefusedError: the file of its identity is damaged, or cannot be written.
    """
    known = read_host(root)
    if known.identity:
        return known
    file = root / FILE
    draft = file.with_name(f".host.{uuid.uuid4().hex}")
    try:
        file.parent.mkdir(mode=0o700, exist_ok=True)
        write_json(draft, {"schema": _SCHEMA, "id": uuid.uuid4().hex})
        with contextlib.suppress(FileExistsError):  # another process was first, and its identity counts
            os.link(draft, file)
    except OSError as error:
        raise _refused(file, f"cannot be written: {error.strerror}") from error
    finally:
        draft.unlink(missing_ok=True)
    made = read_host(root)
    if not made.identity:
        raise _refused(file, "was deleted while it was made")
    return made


def _host(identity: str) -> Host:
    return Host(identity, socket.gethostname(), process_namespace().strip())


def _refused(file: Path, what: str) -> RefusedError:
    return RefusedError(
        f"the identity of this host {what}",
        where=str(file),
        next_step="restore the file; or delete it, then take this host's streams over with `millrace streams adopt`",
    )
