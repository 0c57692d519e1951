"""The watchdog as a part of the stack: it has no port, and answers by the file that it writes at each look."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from millrace.adapters.alarms.outage import OutageFiles
from millrace.domain.formats.durations import roughly
from millrace.embedded.processes import PartRecord
from millrace.embedded.servers.part import NotReadyError, Site
from millrace.embedded.servers.program import Program
from millrace.errors import MillraceError
from millrace.settings import read_environment_file, variable_name
from millrace.usecases.alarms.watchdog import usable
from millrace.usecases.declaration.environment import environment_of

LATE_AFTER = timedelta(minutes=3)
"""The longest time between two looks: some notifiers that hang for half a minute each."""


class WatchdogPart:
    """The watchdog of this host. It starts when the control database is ready, and is stopped before it."""

    name = "watchdog"
    port_names: tuple[str, ...] = ()
    program_names: tuple[str, ...] = ("watchdog",)
    patience = timedelta(seconds=90)

    def prepare(self, site: Site, tell: Callable[[str], None]) -> None:
        """Do nothing: it needs no file but the Connections."""

    def programs(self, site: Site) -> list[Program]:
        """Return its one program. It reads Connections from `.millrace/env`, and has in variables what is not there."""
        command = [site.python, "-m", "millrace.embedded.watchdog"]
        in_file = read_environment_file(site.layout.environment_file)
        pagers = pager_connections(site.layout.root, os.environ)
        return [Program("watchdog", command, environment={k: v for k, v in pagers.items() if k not in in_file})]

    def probe(self, site: Site) -> str:
        """Read when it last looked."""
        files, record = OutageFiles(site.layout.state), PartRecord.read(site.layout, "watchdog")
        state = files.outage()
        if record is None or files.process() != record.leader.pid or state.looked_at is None:
            raise NotReadyError("it has made no check yet")
        age = datetime.now(UTC) - state.looked_at
        if age > LATE_AFTER:
            raise NotReadyError(f"it has made no check for {roughly(age)}")
        if state.since is not None:
            return f"the control database has not answered since {state.since:%H:%M:%S} UTC"
        return "the control database answers"

    def complete(self, site: Site, tell: Callable[[str], None]) -> None:
        """Do nothing."""


def pager_connections(root: Path, *sources: Mapping[str, str]) -> dict[str, str]:
    """Return the Connections of the notifiers that work without Airflow, by variable name.

    Args:
        root: the project's folder; an environment file with errors names none.
        sources: variables, the strongest first.
    """
    found = {}
    with suppress(MillraceError):
        for notifier in usable(environment_of(root)):
            for name in (variable_name(value) for key, value in notifier.arguments if key == "connection"):
                values = [source[name] for source in sources if source.get(name)]
                if values:
                    found[name] = values[0]
    return found
