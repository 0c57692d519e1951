"""Who works at this terminal, for the action log."""

from __future__ import annotations

import getpass


def actor() -> str:
    """`cli:USER`."""
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):  # no name for this user id, as in many containers; Python 3.13 changed the error
        return "cli:unknown"
