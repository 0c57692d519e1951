"""The embedded Airflow: its four components as programs of their own, one metadata database, simple users."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from typing import Any
from urllib.parse import quote

from millrace import ROOT_VARIABLE
from millrace.airflow.shared import trim
from millrace.embedded import environment
from millrace.embedded.credentials import AIRFLOW_USERS
from millrace.embedded.layout import write_private
from millrace.embedded.processes import PartRecord
from millrace.embedded.servers.part import NotReadyError, Site
from millrace.embedded.servers.program import Program
from millrace.errors import Code, DeclarationError, PartFailedError, UnreachableError

COMPONENTS = {
    "scheduler": "airflow-scheduler",
    "dag_processor": "airflow-dag-processor",
    "triggerer": "airflow-triggerer",
}
"""The heartbeats of the health page, with the program each comes from."""

MIGRATION_MARK = "migrated"
TRIM_MARK = "trimmed"
KEEP_RUNS_DAYS = 14


class Airflow:
    """Scheduler, DAG processor, API server and triggerer, each in a process group of its own."""

    name = "airflow"
    port_names: tuple[str, ...] = ("airflow",)
    program_names: tuple[str, ...] = (
        "airflow-scheduler",
        "airflow-dag-processor",
        "airflow-triggerer",
        "airflow-api-server",
    )
    patience = timedelta(seconds=240)

    def prepare(self, site: Site, tell: Callable[[str], None]) -> None:
        """Write its configuration and users; bring its database to the installed version. Needs PostgreSQL ready."""
        self.write_configuration(site)
        mark = site.layout.state / "postgres" / MIGRATION_MARK
        installed = version("apache-airflow-core")
        if not mark.exists() or mark.read_text(encoding="utf-8") != installed:
            self.migrate(site, tell)
            write_private(mark, installed)
            write_private(mark.with_name(TRIM_MARK), datetime.now(UTC).date().isoformat())
        self._trim_daily(site, tell)

    def write_configuration(self, site: Site) -> None:
        """Write its configuration and users."""
        write_private(site.layout.airflow_passwords, json.dumps(site.credentials.airflow_passwords))
        lines = "".join(f"{name}={value}\n" for name, value in self.configuration(site).items())
        write_private(site.layout.airflow_environment_file, lines)
        write_private(site.layout.airflow_configuration_file, self.secret_configuration(site))

    def configuration(self, site: Site) -> dict[str, str]:
        """Airflow's configuration as the variables it reads, without what is secret.

        The last two scheduler settings bring work of a killed scheduler back within a minute instead of five.
        Listeners: only the API server listens, on the site's address; the log servers of scheduler and triggerer, which
        would listen on all addresses, are off.
        """
        api = f"http://{site.address('airflow')}"
        root = site.layout.root
        sections = {
            "core": {
                "dags_folder": str(root / "dags"),
                "plugins_folder": str(root / "plugins"),
                "load_examples": "False",
                "executor": "LocalExecutor",
                "parallelism": "4",
                "dags_are_paused_at_creation": "False",
                "auth_manager": "airflow.api_fastapi.auth.managers.simple.simple_auth_manager.SimpleAuthManager",
                "simple_auth_manager_users": ",".join(f"{user}:{role}" for user, role in AIRFLOW_USERS.items()),
                "simple_auth_manager_passwords_file": str(site.layout.airflow_passwords),
                "execution_api_server_url": f"{api}/execution/",
            },
            "database": {"sql_alchemy_pool_size": "5", "sql_alchemy_max_overflow": "5"},
            "api": {"host": site.listen, "port": str(site.ports["airflow"]), "base_url": api, "workers": "1"},
            "dag_processor": {
                "refresh_interval": "10",
                "min_file_process_interval": "15",
                "parsing_processes": "1",
            },
            "scheduler": {"orphaned_tasks_check_interval": "30", "task_instance_heartbeat_timeout": "60"},
            "secrets": {
                "backend": "millrace.airflow.shared.connections_file.ConnectionsFile",
                "backend_kwargs": json.dumps(
                    {"path": str(site.layout.environment_file), "hidden": "millrace_control_owner"}
                ),
            },
            "usage_data_collection": {"enabled": "False"},
        }
        named = {
            f"AIRFLOW__{section.upper()}__{key.upper()}": value
            for section, keys in sections.items()
            for key, value in keys.items()
        }
        return {"AIRFLOW_HOME": str(site.layout.airflow_home), **named}

    def secret_configuration(self, site: Site) -> str:
        """The rest of the configuration as the text of `airflow.cfg`.

        Not as variables: a task's environment is its scheduler's, also for whatever the task starts, and who has the
        signing key can speak as any user.
        """
        password = quote(site.credentials.database_passwords["airflow"], safe="")
        address = site.address("postgres")
        sections = {
            "core": {"fernet_key": site.credentials.airflow_fernet_key},
            "database": {"sql_alchemy_conn": f"postgresql+psycopg2://airflow:{password}@{address}/airflow"},
            "api": {"secret_key": site.credentials.airflow_api_key},
            "api_auth": {"jwt_secret": site.credentials.airflow_jwt_secret},
        }
        lines = ["# Made by `./millrace up`; the rest of the configuration stands in ../airflow.env."]
        for section, keys in sections.items():
            lines += [f"[{section}]", *(f"{key} = {value.replace('%', '%%')}" for key, value in keys.items())]
        return "\n".join(lines) + "\n"

    def programs(self, site: Site) -> list[Program]:
        """The four components."""
        arguments = {
            "airflow-scheduler": ["scheduler", "--skip-serve-logs"],
            "airflow-dag-processor": ["dag-processor"],
            "airflow-triggerer": ["triggerer", "--skip-serve-logs"],
            "airflow-api-server": ["api-server", "--host", site.listen, "--port", str(site.ports["airflow"])],
        }
        arguments["airflow-api-server"] += ["--workers", "1"]
        return [
            Program(name, [site.python, "-m", "airflow", *words], airflow=True) for name, words in arguments.items()
        ]

    def probe(self, site: Site) -> str:
        """Read the health page: all four components healthy, by heartbeats of their present life."""
        self.components_healthy(site, ("metadatabase", *COMPONENTS))
        return "all four components healthy"

    def components_healthy(self, site: Site, names: Sequence[str]) -> str:
        """Read the health page about some components, by its own words for them; what is healthy.

        Raises:
            NotReadyError: the page does not answer, or one of them is not healthy.
        """
        address = f"http://{site.address('airflow')}/api/v2/monitor/health"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(address, timeout=5) as answer:
                health: dict[str, Any] = json.load(answer)
        except (OSError, ValueError) as error:
            raise NotReadyError(f"no answer from {address}: {error}") from error
        ill = [name for name in names if (health.get(name) or {}).get("status") != "healthy"]
        started_here = [name for name in names if name in COMPONENTS and name not in ill]
        ill += [name for name in started_here if self._is_old(site, COMPONENTS[name], health[name])]
        if ill:
            raise NotReadyError("not healthy yet: " + ", ".join(ill))
        return "healthy: " + ", ".join(names)

    def complete(self, site: Site, tell: Callable[[str], None]) -> None:
        """Nothing: pools and variables come with what needs them."""

    def _is_old(self, site: Site, program: str, component: dict[str, Any]) -> bool:
        """Whether a heartbeat is of a former life: a killed component looks healthy for half a minute."""
        told = next((value for key, value in component.items() if key.startswith("latest_") and value), None)
        started = _started_at(site, program)
        if told is None or started is None:
            return told is None
        return datetime.fromisoformat(str(told)) < started

    def migrate(self, site: Site, tell: Callable[[str], None]) -> None:
        """Bring its database to the installed version; repeatable.

        Raises:
            PartFailedError: Airflow could not do it; the end of its log is in the message.
        """
        failed = self._run(
            site, "airflow-migrate", ["db", "migrate"], "migrating its database to the installed version", tell
        )
        if failed:
            raise PartFailedError(
                f"Airflow's database could not be migrated to the installed version:\n{failed}",
                where=str(site.layout.log_file("airflow-migrate")),
                next_step="read the log; an older Airflow cannot use the database of a newer one",
                code=Code.AIRFLOW_FAILED,
            )

    def _trim_daily(self, site: Site, tell: Callable[[str], None]) -> None:
        """Delete old runs of Millrace's DAGs, once a day. `up` does not depend on it."""
        mark = site.layout.state / "postgres" / TRIM_MARK
        today = datetime.now(UTC).date().isoformat()
        if mark.exists() and mark.read_text(encoding="utf-8") == today:
            return
        if failed := self.trim(site, tell):
            tell(f"airflow: old runs were not deleted: {failed.splitlines()[-1]}")
        else:
            write_private(mark, today)

    def trim(self, site: Site, tell: Callable[[str], None]) -> str | None:
        """Delete old runs of Millrace's DAGs, which Airflow lets no task do; why some were not deleted."""
        failed: str | None = None
        try:
            for arguments in trim.commands(KEEP_RUNS_DAYS, _unfinished(site), site.layout.root):
                doing = "deleting old runs of the platform's DAGs"
                failed = self._run(site, "airflow-trim", arguments, doing, tell) or failed
        except (DeclarationError, UnreachableError) as error:
            failed = str(error)
        return failed

    def _run(
        self, site: Site, name: str, arguments: Sequence[str], doing: str, tell: Callable[[str], None]
    ) -> str | None:
        """Run one command of Airflow's; the end of its log where it failed."""
        variables = environment.of_part(site.layout, Program(name, [], airflow=True))
        log = site.layout.log_file(name)
        with log.open("w", encoding="utf-8") as stream:
            process = subprocess.Popen(
                [sys.executable, "-m", "airflow", *arguments],
                env=variables | {ROOT_VARIABLE: str(site.layout.root)},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                cwd=site.layout.root,
            )
            while process.poll() is None:
                tell(f"airflow: {doing}")
                time.sleep(0.2)
        if process.returncode == 0:
            return None
        return (
            "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:])
            or f"exit {process.returncode}"
        )


def _unfinished(site: Site) -> dict[str, datetime]:
    """When the oldest run that is not over began, by DAG.

    Raises:
        UnreachableError: Airflow's database does not answer.
    """
    import psycopg

    query = "SELECT dag_id, min(start_date) FROM dag_run WHERE state IN ('queued', 'running') GROUP BY dag_id"
    host, port, password = site.host("postgres"), site.ports["postgres"], site.credentials.database_passwords["airflow"]
    try:
        with psycopg.connect(
            host=host, port=port, dbname="airflow", user="airflow", password=password, connect_timeout=10
        ) as connection:
            return {dag: began for dag, began in connection.execute(query).fetchall() if began is not None}
    except psycopg.Error as error:
        raise UnreachableError(
            f"Airflow's database does not answer which runs are unfinished: {error}", code=Code.AIRFLOW_UNREACHABLE
        ) from error


def _started_at(site: Site, program: str) -> datetime | None:
    """When a component's present process started, from its record; None when it has none."""
    record = PartRecord.read(site.layout, program)
    if record is None or not record.leader.is_alive():
        return None
    written = (site.layout.run / f"{program}.json").stat().st_mtime
    return datetime.fromtimestamp(written, UTC)
