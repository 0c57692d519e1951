"""What every part of the stack has in common, and what the stack hands to each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Protocol

from millrace.embedded.credentials import Credentials
from millrace.embedded.java import Java
from millrace.embedded.layout import Layout
from millrace.embedded.ports import Ports
from millrace.embedded.program import Program


@dataclass(slots=True)
class Site:
    """One project's stack: its folders, ports, credentials, and, once found, its Java and jars."""

    layout: Layout
    ports: Ports
    credentials: Credentials = field(repr=False)
    java: Java | None = None
    jars: dict[str, list[Path]] = field(default_factory=dict)


class NotReadyError(Exception):
    """A part does not answer, or not rightly; the text says what the real call met."""


class Part(Protocol):
    """A server of the stack: one or several programs that become ready together."""

    name: str
    port_names: tuple[str, ...]
    program_names: tuple[str, ...]
    patience: timedelta

    def prepare(self, site: Site, tell: Callable[[str], None]) -> None:
        """Make folders and files so that it can start; repeatable, and right after an interrupted try."""

    def programs(self, site: Site) -> list[Program]:
        """What to start."""

    def probe(self, site: Site) -> str:
        """Make a real call; returns a short text about the answer.

        Raises:
            NotReadyError: it does not answer as it should.
        """

    def complete(self, site: Site, tell: Callable[[str], None]) -> None:
        """Make what others expect to find inside it, once it is ready; repeatable."""
