"""Foreign text as it may stand in a message, a table or a log."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return text as one line, with an escape for each character that cannot be printed."""
    return text if text.isprintable() else "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def shown(text: object, limit: int = 80) -> str:
    """Return one printable line of bounded length."""
    line = printable(str(text)[: limit + 1])
    return line if len(line) <= limit else line[: limit - 1] + "…"
