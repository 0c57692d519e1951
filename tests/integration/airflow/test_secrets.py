"""Where the stack's generated secrets are, and everywhere else they are not.

Nothing of the package says what is secret here: whatever the stack generated is looked for as bytes.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Iterator
from configparser import RawConfigParser
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import psutil
import psycopg
import pytest

from millrace.embedded import ports
from millrace.embedded.processes import PartRecord
from millrace.embedded.stack import PARTS
from support.ui.airflow_ui import AirflowUser, put
from support.waiting import Deadline, eventually

if TYPE_CHECKING:
    from millrace.embedded.stack import Stack

PRIVATE_FILES = {
    "env",
    "credentials.json",
    "airflow/airflow.cfg",
    "airflow/passwords.json",
    "s3/s3proxy.properties",
}
DATABASE_FILES = "postgres/data"
CONNECTIONS_OF_SHOP = {"millrace_kafka", "millrace_sink", "millrace_control"}
ALLOWED = {"PATH", "HOME", "LANG", "TZ", "JAVA_HOME", "PYSPARK_PYTHON", "SPARK_LOCAL_IP"}
ALLOWED |= {"MILLRACE_ROOT", "MILLRACE_LAYOUT", "MILLRACE_ENVIRONMENT", "MILLRACE_APP", "PYTHONPATH"}
ALLOWED |= {f"AIRFLOW_CONN_{name.upper()}" for name in CONNECTIONS_OF_SHOP}
ADDED_BY_SPARK = re.compile(r"_?(PY)?SPARK_|PYTHON_|PYTHONUNBUFFERED$|PYTHONHASHSEED$|OMP_|(PWD|OLDPWD|SHLVL|_)$")
PROBE = """\
import json, os, subprocess
from datetime import datetime

from airflow.sdk import DAG, task

with DAG("probe", start_date=datetime(2026, 1, 1), schedule=None):

    @task
    def look():
        printed = subprocess.run(["env", "-0"], capture_output=True, text=True, check=True, timeout={seconds})
        with open({answer!r}, "w") as file:
            json.dump({{"task": dict(os.environ), "program": printed.stdout}}, file)

    look()
"""


@pytest.fixture(scope="module")
def secrets(stack: Stack) -> dict[str, bytes]:
    """Every generated secret by a name that a failing test may print; the S3 key is a user's name and none."""
    document = json.loads(stack.layout.credentials_file.read_text())
    found = {name: value for name, value in document.items() if isinstance(value, str) and name != "s3_key"}
    for kind in ("database_passwords", "airflow_passwords"):
        found |= {f"{kind}.{name}": value for name, value in document[kind].items()}
    found |= _passwords_of_connections(stack) | _passwords_of_airflow(stack)
    assert len(found) > 15
    assert min(map(len, found.values())) >= 12
    return {name: value.rstrip("=").encode() for name, value in found.items()}


def _passwords_of_connections(stack: Stack) -> dict[str, str]:
    lines = [line.split("=", 1) for line in stack.layout.environment_file.read_text().splitlines() if "CONN_" in line]
    return {name: json.loads(value)["password"] for name, value in lines if "password" in json.loads(value)}


def _passwords_of_airflow(stack: Stack) -> dict[str, str]:
    configuration = RawConfigParser()
    configuration.read(stack.layout.airflow_configuration_file)
    found = {
        f"airflow.cfg {section}": value
        for section in configuration.sections()
        for _, value in configuration.items(section)
    }
    address = found.pop("airflow.cfg database")
    return {**found, "airflow.cfg database": address.split("://airflow:")[1].split("@")[0]}


class Finder:
    """Looks for any of the secrets in bytes or text, as they are or quoted for an address."""

    def __init__(self, secrets: dict[str, bytes]) -> None:
        self._names = {
            form: name for name, value in secrets.items() for form in (value, quote(value, safe="").encode())
        }

    def names_in(self, content: bytes | str) -> set[str]:
        """The names of the secrets in it."""
        data = content if isinstance(content, bytes) else content.encode("utf-8", "surrogateescape")
        return {name for form, name in self._names.items() if form in data}


@pytest.fixture(scope="module")
def finder(secrets: dict[str, bytes]) -> Finder:
    return Finder(secrets)


@pytest.fixture(scope="module")
def admin(stack: Stack) -> AirflowUser:
    return AirflowUser(stack)


@pytest.fixture(scope="module")
def worked(stopping_the_example: None, stack: Stack, admin: AirflowUser) -> AirflowUser:
    """Every kind of task has run in Airflow, and the shop's stream runs."""
    operate = {"stream": "purchases", "action": "start", "reason": "to look at its processes"}
    runs = {"shop.topics": {}, "shop.source.cdnow": {}, "shop.operate": operate, "millrace.supervise": {}}
    for dag_id, conf in runs.items():
        admin.wait_for_dag(dag_id)
        assert admin.run(dag_id, conf)["state"] == "success"
    eventually(lambda: app_processes(stack, "JVM"), within=Deadline.SPARK, what="the app's JVM")
    eventually(lambda: admin.watching("shop.stream.purchases"), within=Deadline.AIRFLOW, what="a watch of the app")
    return admin


def app_processes(stack: Stack, only: str = "") -> list[tuple[str, psutil.Process]]:
    """What runs of the shop's app, each with what it is: `guard`, `driver`, `JVM` or `worker`."""
    found = []
    for process in psutil.process_iter():
        try:
            environment, words = process.environ(), " ".join(process.cmdline())
        except psutil.Error:
            continue
        mark = environment.get("MILLRACE_APP", "")
        if environment.get("MILLRACE_ROOT") != str(stack.root) or not mark.startswith("shop.purchases#"):
            continue
        kind = "worker"
        if "runners.guard" in words:
            kind = "guard"
        elif "spark_apps/stream.py" in words:
            kind = "driver"
        elif "org.apache.spark" in words:
            kind = "JVM"
        found.append((kind, process))
    return [each for each in found if only in ("", each[0])]


def test_an_app_has_the_variables_of_the_allow_list_and_its_own_connections_only(
    worked: AirflowUser, stack: Stack, finder: Finder
) -> None:
    kinds = set()
    for kind, process in app_processes(stack):
        try:
            environment, command_line = process.environ(), process.cmdline()
        except psutil.NoSuchProcess:  # a child that the JVM had for a moment
            continue
        kinds.add(kind)
        extra = {name for name in environment if name not in ALLOWED}
        if kind in ("JVM", "worker"):  # Spark's launcher, a shell script, adds to what the driver has
            extra = {name for name in extra if not ADDED_BY_SPARK.match(name)}
        assert extra == set(), kind
        assert {name for name in environment if name.startswith("AIRFLOW_CONN_")} <= ALLOWED
        assert finder.names_in("\n".join(command_line)) == set(), kind
        rest = "\n".join(value for name, value in environment.items() if not name.startswith("AIRFLOW_CONN_"))
        assert finder.names_in(rest) == set(), kind
        named = {json.loads(value).get("login") for name, value in environment.items() if "AIRFLOW_CONN_" in name}
        assert named <= {None, "millrace_control", "millrace_sink"}, kind
    assert {"guard", "driver", "JVM"} <= kinds


def part_processes(stack: Stack) -> Iterator[tuple[str, psutil.Process]]:
    """Every process of the stack's parts, with the name of its part."""
    for name in (name for part in PARTS.values() for name in part.program_names):
        record = PartRecord.read(stack.layout, name)
        assert record
        leader = psutil.Process(record.leader.pid)
        for process in (leader, *leader.children(recursive=True)):
            yield name, process


def test_no_process_of_airflow_has_a_secret_in_its_environment_or_command_line(
    worked: AirflowUser, stack: Stack, finder: Finder
) -> None:
    seen = set()
    for name, process in part_processes(stack):
        try:
            raw = Path(f"/proc/{process.pid}/environ").read_bytes() + Path(f"/proc/{process.pid}/cmdline").read_bytes()
        except OSError:  # a process between two tasks
            continue
        seen.add(name)
        assert finder.names_in(raw) == set(), f"{name}: {process.pid}"
    assert len(seen) == 8


def test_a_task_and_what_it_starts_inherit_no_secret(
    worked: AirflowUser, stack: Stack, finder: Finder, tmp_path: Path
) -> None:
    answer, dags = tmp_path / "environment.json", stack.root / "dags" / "probe.py"
    put(dags, PROBE.format(answer=str(answer), seconds=Deadline.PROCESS.seconds))
    try:
        worked.wait_for_dag("probe")
        assert worked.run("probe", {})["state"] == "success"
    finally:
        dags.unlink()
    told = answer.read_text()
    assert "AIRFLOW_HOME" in told
    assert finder.names_in(told) == set()
    assert "AIRFLOW_CONN_" not in told


def written(path: Path) -> bytes:
    """Read a file without its holes: each index of Kafka is a hole of 10 MB with a few bytes in it."""
    parts, end = [], 0
    with path.open("rb") as file:
        while True:
            try:
                begin = os.lseek(file.fileno(), end, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:  # which says that there is no more
                    raise
                return b"".join(parts)
            end = os.lseek(file.fileno(), begin, os.SEEK_HOLE)
            file.seek(begin)
            parts.append(file.read(end - begin))


def test_only_private_files_hold_secrets(worked: AirflowUser, stack: Stack, finder: Finder) -> None:
    state = stack.layout.state
    looked_at, holders = set(), {}
    for path in sorted(state.rglob("*")):
        name = str(path.relative_to(state))
        if name.startswith(DATABASE_FILES) or not path.is_file():
            continue
        try:
            found = finder.names_in(written(path))
        except FileNotFoundError:  # Spark and Kafka remove files while we look
            continue
        looked_at.add(name)
        if found:
            holders[name] = found
    assert set(holders) <= PRIVATE_FILES, holders
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    loose = {name for name in holders if stat.S_IMODE((state / name).stat().st_mode) & 0o077}
    assert loose == set()
    wanted = ("airflow/logs/dag_id=shop.operate/", "streams/shop.purchases/", "logs/airflow-triggerer.log")
    for beginning in wanted:
        assert [name for name in looked_at if name.startswith(beginning)], beginning
    assert [name for name in looked_at if name.endswith("/driver.log")]
    assert [name for name in looked_at if "/scratch/" in name]  # the running stream's checkpoint
    assert {"env", "credentials.json", "airflow/airflow.cfg"} <= set(holders)  # the search can find


def test_no_table_of_airflow_and_the_control_database_holds_a_secret(
    worked: AirflowUser, stack: Stack, finder: Finder
) -> None:
    """Rendered fields, XComs, triggers, serialised DAGs and audit log; action log, plans, alarms and attempts."""
    document = json.loads(stack.layout.credentials_file.read_text())["database_passwords"]
    rows = {"airflow": 0, "millrace_control": 0}
    for database, role in (("airflow", "airflow"), ("millrace_control", "millrace_control_owner")):
        keywords = {"host": "127.0.0.1", "port": ports.read(stack.layout)["postgres"], "dbname": database}
        with psycopg.connect(**keywords, user=role, password=document[role]) as connection:  # type: ignore[arg-type]
            tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
            for (table,) in tables:
                for (row,) in connection.execute(f'SELECT t::text FROM "{table}" t'):  # type: ignore[call-overload]
                    rows[database] += 1
                    assert finder.names_in(row) == set(), f"{database}.{table}"
    assert rows["airflow"] > 100
    assert rows["millrace_control"] > 3


def test_what_the_api_shows_of_tasks_holds_no_secret(worked: AirflowUser, finder: Finder) -> None:
    everywhere = "/dags/~/dagRuns/~/taskInstances"
    tasks = worked.call("GET", f"{everywhere}?limit=1000&order_by=-start_date")["task_instances"]
    assert {task["dag_id"] for task in tasks} >= {"shop.topics", "shop.source.cdnow", "shop.operate"}
    assert finder.names_in(json.dumps(tasks)) == set()
    xcoms = worked.call("GET", f"{everywhere}/~/xcomEntries?limit=1000")
    assert finder.names_in(json.dumps(xcoms)) == set()
    assert worked.request("GET", "/connections").json()["total_entries"] == 0
    assert worked.request("GET", "/config").status_code == 403
    newest: dict[tuple[str, str], tuple[str, int]] = {}
    for task in tasks:
        if task["try_number"]:
            newest.setdefault((task["dag_id"], task["task_id"]), (task["dag_run_id"], task["try_number"]))
    for (dag_id, task_id), (run_id, attempt) in newest.items():
        assert finder.names_in(worked.log(dag_id, run_id, task_id, attempt)) == set(), f"{dag_id} {task_id}"
