from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from millrace.adapters.alarms.outage import OUTAGE, OutageFiles
from millrace.domain.alarms.outage import Outage
from millrace.embedded.compose import container
from millrace.embedded.credentials import Credentials
from millrace.embedded.layout import Layout
from millrace.embedded.processes import Identity, PartRecord
from millrace.embedded.servers.part import NotReadyError, Site
from millrace.embedded.servers.watchdog import WatchdogPart

PORTS = {"kafka": 1, "s3": 2, "postgres": 3, "airflow": 4}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    layout = Layout(tmp_path)
    layout.make()
    here = Identity.of(os.getpid())
    assert here
    PartRecord("watchdog", here, int(signal.SIGTERM)).write(layout)
    return Site(layout, PORTS, Credentials.make())


def test_it_is_healthy_once_the_process_that_runs_has_looked(site: Site) -> None:
    part, files, now = WatchdogPart(), OutageFiles(site.layout.state), datetime.now(UTC)
    with pytest.raises(NotReadyError, match="no check yet"):
        part.probe(site)
    files.save_outage(Outage(looked_at=now))
    assert part.probe(site) == "the control database answers"
    files.save_outage(Outage(since=now, watched_from=now, looked_at=now))
    assert "has not answered since" in part.probe(site)
    files.save_outage(replace(Outage(), looked_at=now - timedelta(minutes=4)))
    with pytest.raises(NotReadyError, match="no check for 4 min"):
        part.probe(site)


def test_a_look_of_a_former_life_does_not_count(site: Site) -> None:
    OutageFiles(site.layout.state).save_outage(Outage(looked_at=datetime.now(UTC)))
    file = site.layout.state / OUTAGE
    file.write_text(json.dumps(json.loads(file.read_text()) | {"process": 1}))
    with pytest.raises(NotReadyError, match="no check yet"):
        WatchdogPart().probe(site)


def test_the_container_of_streams_runs_a_watchdog(site: Site) -> None:
    programs = [program.part for program in container.stream_programs(site)]
    assert programs == ["airflow-scheduler", "airflow-triggerer", "watchdog"]
