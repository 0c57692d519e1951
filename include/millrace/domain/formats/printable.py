"""Foreign text as it may stand in a message, a table or a log."""

from __future__ import annotations

from collections.abc import Sequence

_FURTHER = "\n    "


def printable(text: str) -> str:
    """Return text as one line, with an escape for each character that cannot be printed."""
    return text if text.isprintable() else "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def printable_lines(text: str) -> str:
    """Return a message that may have several lines, with an escape for each other character that cannot be printed."""
    return "\n".join(printable(line) for line in text.split("\n"))


def printable_error(lines: Sequence[str], *, quotes_log: bool = False) -> str:
    """Return the lines of an error. Nothing else begins a line: not a name of others in one of them.

    Args:
        lines: of the error: what is wrong, then the next step.
        quotes_log: whether a line may have further ones, as a program printed them.

    The further lines of a next step stand indented.
    """
    return "\n".join(
        printable_lines(line.replace("\n", _FURTHER)) if quotes_log or line.startswith(" ") else printable(line)
        for line in lines
    )


def printable_value(value: object) -> object:
    """Return a value of a template as one printable line; text that is markup already stays as it is."""
    return value if hasattr(value, "__html__") else printable(str(value))


def shown(text: object, limit: int = 80) -> str:
    """Return one printable line of bounded length."""
    line = printable(str(text)[: limit + 1])
    return line if len(line) <= limit else line[: limit - 1] + "…"
