"""What every part of the stack has in common, and what the stack hands to each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Protocol

from millrace.embedded.credentials import Credentials
from millrace.embedded.jars.java import Java
from millrace.embedded.layout import Layout
from millrace.embedded.ports import Ports
from millrace.embedded.servers.program import Program

LOOPBACK = "127.0.0.1"


@dataclass(slots=True)
class Site:
    """One project's stack: its folders, ports, credentials, and, once found, its Java and jars.

    Attributes:
        listen: the address that servers listen on.
        hosts: by part, the name that others reach it by, where it does not run beside them.
        python: the interpreter of the project's environment.
    """

    layout: Layout
    ports: Ports
    credentials: Credentials = field(repr=False)
    java: Java | None = None
    jars: dict[str, list[Path]] = field(default_factory=dict)
    listen: str = LOOPBACK
    hosts: Mapping[str, str] = field(default_factory=dict)
    python: str = sys.executable

    def host(self, part: str) -> str:
        """The host that others reach a part at."""
        return self.hosts.get(part, LOOPBACK)

    def address(self, part: str) -> str:
        """`host:port` of a part's main port, for others."""
        return f"{self.host(part)}:{self.ports[part]}"


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
