"""The programs of `docker-compose.yaml`: `python -m millrace.embedded.compose.container setup|streams|healthy NAME...`.

`streams` keeps Airflow's scheduler and triggerer and the watchdog running, as the embedded stack does, and lets the
stream apps end with it. They are processes of one container because a stream's runner finds its apps among the
processes it can see, and because an app must outlive the component that started it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from queue import Empty, SimpleQueue

from millrace.adapters.apps.processes import mark_namespace
from millrace.adapters.apps.runners.process import ProcessRunner
from millrace.embedded.compose import images
from millrace.embedded.compose import site as compose_site
from millrace.embedded.credentials import Credentials
from millrace.embedded.layout import Layout, write_private
from millrace.embedded.locking import only_one
from millrace.embedded.processes import end_left_of_part
from millrace.embedded.progress import Progress
from millrace.embedded.servers.airflow import Airflow
from millrace.embedded.servers.part import NotReadyError, Site
from millrace.embedded.servers.postgres import Postgres
from millrace.embedded.servers.program import Program
from millrace.embedded.servers.s3 import S3
from millrace.embedded.servers.watchdog import WatchdogPart
from millrace.embedded.supervisor import Supervisor
from millrace.errors import MillraceError, PartFailedError, UsageError
from millrace.settings import open_settings
from millrace.wiring.control import upgrade_control

COMPONENTS = ("airflow-scheduler", "airflow-triggerer")
LOCK = "container.lock"
LOOK_SECONDS = 5.0
COMPONENT_GRACE = timedelta(seconds=20)
LEFT_GRACE = timedelta(seconds=3)
STREAM_GRACE = timedelta(seconds=30)
PROBE_SECONDS = 5.0


def main(arguments: Sequence[str]) -> int:
    """Do what the first word says; the exit code."""
    os.umask(0o077)
    try:
        match arguments:
            case ["setup"]:
                setup(compose_site.site(Credentials.of(Layout(images.ROOT))), Progress())
            case ["streams"]:
                site = compose_site.site(Credentials.make())
                Streams(site.layout, stream_programs(site), Progress()).run()
            case ["healthy", *names] if names:
                print(healthy(compose_site.site(Credentials.make()), names))
            case _:
                raise UsageError("the command needs setup, streams, or healthy with names", where=" ".join(arguments))
    except NotReadyError as error:
        print(f"millrace: {error}", file=sys.stderr)
        return 1
    except MillraceError as error:
        print(f"millrace: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def stream_programs(site: Site) -> list[Program]:
    """Return what the container `streams` keeps running: what starts streams, and the watchdog of their host."""
    components = [program for program in Airflow().programs(site) if program.part in COMPONENTS]
    return [*components, *WatchdogPart().programs(site)]


def setup(site: Site, progress: Progress) -> None:
    """Make roles, databases and bucket, and bring Airflow's and the control database to this version; repeatable.

    Raises:
        NotReadyError: a server does not answer, or not to the passwords it is asked with.
        PartFailedError: Airflow's database could not be brought to its version.
        UnreachableError: the control database does not answer any more.
    """
    site.layout.make()
    for part, made in ((Postgres(), "roles and databases exist"), (S3(), "the bucket exists")):
        part.probe(site)
        part.complete(site, progress.say)
        progress.say(f"{part.name}: {made}")
    upgrade_control(open_settings(site.layout.root))
    progress.say("control database: its tables have this version")
    airflow = Airflow()
    airflow.write_configuration(site)
    # Each time: what was done is known to the database alone, for this container and the volume have lives of their own
    airflow.migrate(site, lambda line: progress.tell("airflow", line))
    progress.say("airflow: its database has this version")
    progress.say(f"airflow: old runs {_trim(airflow, site, progress)}")
    for secret in (site.layout.airflow_configuration_file, site.layout.airflow_passwords):
        secret.unlink()  # nobody needs them here any more


def _trim(airflow: Airflow, site: Site, progress: Progress) -> str:
    """Delete old runs where no scheduler could be at work on one; what came of it."""
    with suppress(NotReadyError):
        airflow.components_healthy(site, ["metadatabase"])
        return "are deleted when Airflow does not run"
    failed = airflow.trim(site, lambda line: progress.tell("airflow", line))
    return f"were not deleted: {failed.splitlines()[-1]}" if failed else "were deleted"


def healthy(site: Site, names: Sequence[str]) -> str:
    """Ask a server by a real call; what it said.

    Args:
        site: whose.
        names: `s3`, or words of Airflow's health page.

    Raises:
        NotReadyError: it does not answer as it should.
    """
    if list(names) == ["s3"]:
        return _answers(f"http://{site.address('s3')}/")
    return Airflow().components_healthy(site, names)


def _answers(address: str) -> str:
    """The status of any answer: a store that refuses who has no key is one that works."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(address, timeout=PROBE_SECONDS) as answer:
            return f"{address} answers {answer.status}"
    except urllib.error.HTTPError as error:
        if error.code >= 500:
            raise NotReadyError(f"{address} answers {error.code}") from error
        return f"{address} answers {error.code}"
    except OSError as error:
        raise NotReadyError(f"{address} does not answer: {error}") from error


class Streams:
    """Airflow's scheduler and triggerer, and the watchdog, under a supervisor, until the container is told to stop.

    Nothing that happens to either of them ends the container, for streams would end with it.
    """

    def __init__(self, layout: Layout, programs: Sequence[Program], progress: Progress) -> None:
        self._layout = layout
        self._programs = programs
        self._names = [program.part for program in programs]
        self._progress = progress
        self._supervisor = Supervisor(layout)
        self._told: SimpleQueue[int] = SimpleQueue()  # an event must not be set where its waiter is interrupted

    def run(self) -> None:
        """Run until SIGTERM or SIGINT, then stop the components, let streams finish their batch, and return.

        A second container on the same state waits until the first one is gone: it would not see that one's apps.
        """
        self._layout.make()
        with self._progress, only_one(self._layout.state / LOCK, "streams", self._progress):
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self._tell)
            self._write_down()
            logs = [self._layout.log_file(name) for name in self._names]
            for log in logs:
                log.touch()
            with subprocess.Popen(["tail", "-q", "-n", "0", "-F", *map(str, logs)], stdin=subprocess.DEVNULL) as tail:
                try:
                    self._keep_running()
                    self._stop()
                finally:
                    tail.terminate()  # it is waited for here, and would never end by itself

    def _tell(self, number: int, _frame: object) -> None:
        self._told.put(number)
        signal.signal(number, lambda _number, _frame: sys.exit(128 + _number))  # who asks twice does not wait

    def _write_down(self) -> None:
        """What the components are started with: their programs, Airflow's variables, and Spark's jars."""
        handed_on = {name: value for name, value in os.environ.items() if name.startswith(("AIRFLOW", "JAVA_HOME"))}
        lines = [f"{name}={value}\n" for name, value in handed_on.items()]
        mark_namespace(self._layout.root)
        write_private(self._layout.airflow_environment_file, "".join(lines))
        images.write_spark_jars(self._layout)
        for program in self._programs:
            program.write(self._layout)

    def _keep_running(self) -> None:
        """Look every few seconds; what does not run, the supervisor itself included, is started again."""
        met = ""
        while True:
            try:
                self._start_what_is_down()
                met = ""
            except (PartFailedError, OSError) as error:  # also a disk that is full
                if str(error) != met:
                    met = str(error)
                    self._progress.say(f"streams: {met}")
            with suppress(Empty):
                self._told.get(timeout=LOOK_SECONDS)
                return

    def _start_what_is_down(self) -> None:
        if not self._supervisor.is_running():
            self._supervisor.start({name: place for place, name in enumerate(self._names)})
        for name, state in self._supervisor.states().items():
            if not state.pid and state.state != "BACKOFF":
                self._progress.say(f"streams: starting {name} ({state.state.lower()})")
                self._supervisor.start_program(name)

    def _stop(self) -> None:
        """Airflow first, so that nothing starts an app again; then the apps."""
        self._progress.say("streams: stopping")
        with suppress(PartFailedError):  # what does not stop goes with the container
            self._supervisor.stop_programs(self._names, within=COMPONENT_GRACE)
        for name in self._names:  # a task that outlived its scheduler may start an app
            end_left_of_part(self._layout, name, grace=LEFT_GRACE)
        apps = ProcessRunner(open_settings(self._layout.root)).stop_all(STREAM_GRACE)
        self._supervisor.shut_down()
        self._progress.say(f"streams: {len(apps)} apps ended")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
