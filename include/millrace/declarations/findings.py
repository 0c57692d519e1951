"""Findings: what is wrong with a declaration, as values with file, line and field."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from millrace.domain.formats.printable import printable, shown
from millrace.errors import DeclarationError

WHOLE_FILE = "(file)"


class Severity(StrEnum):
    """An error stops the pipeline from being used; a warning is advice."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value stands: a file relative to the project's root, a line from 1, and the field's path."""

    file: str
    line: int
    field: str

    def below(self, name: str) -> Place:
        """The place of a field inside this one that is not written there, so the line is this one's."""
        return Place(self.file, self.line, join(self.field, name))


def join(field: str, name: str) -> str:
    """The path of a field inside another; the whole file has no name of its own."""
    name = shown(name)
    return name if field in ("", WHOLE_FILE) else f"{field}.{name}"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, where, and what would be right."""

    file: str
    line: int
    field: str
    what: str
    next_step: str
    severity: Severity = Severity.ERROR

    def __str__(self) -> str:
        return "\n".join(self.lines)

    @property
    def lines(self) -> tuple[str, str]:
        """What is wrong and where, then the next step."""
        return f"{self.file}:{self.line}: {self.field}: {self.what}", f"  next: {self.next_step}"

    @property
    def order(self) -> tuple[str, int, str, str]:
        """What findings are sorted by: file, then line."""
        return (self.file, self.line, self.field, self.what)


def finding(place: Place, what: str, next_step: str, severity: Severity = Severity.ERROR) -> Finding:
    """A finding at a place."""
    return Finding(
        place.file, max(place.line, 1), place.field or WHOLE_FILE, printable(what), printable(next_step), severity
    )


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings without repetitions, sorted by file and line."""
    return tuple(sorted(set(findings), key=lambda each: each.order))


def errors(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Those findings that stop a pipeline from being used, in order."""
    return in_order(each for each in findings if each.severity is Severity.ERROR)


class InvalidDeclarationError(DeclarationError):
    """Declarations that cannot be used, with every finding at once, sorted by file and line."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        self.findings = in_order(findings)
        first = self.findings[0]
        more = len(self.findings) - 1
        super().__init__(
            f"{first.field}: {first.what}" + (f" (and {more} more)" if more else ""),
            where=f"{first.file}:{first.line}",
            next_step=first.next_step,
        )

    @property
    def lines(self) -> tuple[str, ...]:
        """Each finding with the code, then its next step."""
        return tuple(line for each in self.findings for line in (f"{each.lines[0]} [{self.code}]", each.lines[1]))

    def __reduce__(self) -> tuple[type[InvalidDeclarationError], tuple[tuple[Finding, ...]]]:
        return (type(self), (self.findings,))
