"""What a part is started with, as data: written to a private file, read by the wrapper that starts it."""

from __future__ import annotations

import json
import signal
from dataclasses import asdict, dataclass, field
from pathlib import Path

from millrace.embedded.layout import Layout, write_private


@dataclass(frozen=True, slots=True)
class Program:
    """One process of the stack.

    Args:
        part: its name, also that of its log.
        command: program and arguments; no secret may stand here, for every user can read command lines.
        environment: variables besides the few every part gets.
        airflow: whether it also gets the Connections and Airflow's own configuration.
        stop_signal: what asks it to end in order.
        working_in: the folder it works in, when no other program does.
        remove_first: files that a killed predecessor may have left and that would keep it from starting.
    """

    part: str
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict, repr=False)
    airflow: bool = False
    stop_signal: int = int(signal.SIGTERM)
    working_in: str = ""
    remove_first: list[str] = field(default_factory=list)

    def write(self, layout: Layout) -> None:
        """Store it for the wrapper; readable by the owner alone."""
        write_private(_file(layout, self.part), json.dumps(asdict(self), indent=1))

    @classmethod
    def read(cls, layout: Layout, part: str) -> Program:
        """The stored program of a part."""
        return cls(**json.loads(_file(layout, part).read_text(encoding="utf-8")))


def _file(layout: Layout, part: str) -> Path:
    return layout.programs / f"{part}.json"
