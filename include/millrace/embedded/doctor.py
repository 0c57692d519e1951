"""What `./millrace doctor` looks at: each connection with its origin and a live test, and the machine."""

from __future__ import annotations

import os
import platform
import shutil
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from configparser import ConfigParser
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from millrace.declarations import load
from millrace.declarations.environment import ENVIRONMENTS
from millrace.domain.declaration.pipeline import Pipeline
from millrace.domain.formats.printable import printable, shown
from millrace.embedded.jars.java import find_java
from millrace.embedded.layout import Layout, cache_folder
from millrace.errors import MillraceError
from millrace.settings import Settings, ignored_extra, open_settings, read_environment_file, variable_name
from millrace.usecases.alarms.notifiers import LOG_FILE
from millrace.usecases.declaration.environment import environment_of

CONNECTIONS = (
    "millrace_kafka",
    "millrace_s3",
    "millrace_control",
    "millrace_control_owner",
    "millrace_sink",
    "millrace_sink_reader",
    "millrace_spark",
)
PACKAGES = ("apache-airflow", "pyspark", "confluent-kafka", "boto3", "great-expectations", "psycopg", "supervisor")
EXECUTOR_VARIABLE = "AIRFLOW__CORE__EXECUTOR"
LOCAL_EXECUTOR = "LocalExecutor"
_AT_ONCE = 8  # connections that are tried side by side
LEAST_FREE_BYTES = 2 * 10**9
LEAST_MEMORY_BYTES = 5 * 10**9


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at: whether it is fine, where it came from, what was found, and the seconds a live test took."""

    name: str
    fine: bool
    origin: str
    found: str
    seconds: float | None = None


def examine(root: Path) -> list[Check]:
    """Look at everything; nothing is changed."""
    layout = Layout(root)
    settings = open_settings(root)
    from_file = read_environment_file(layout.environment_file)
    pipelines, broken = _sound_pipelines(root)
    names = list(dict.fromkeys([*CONNECTIONS, *sorted(name for each in pipelines for name in _named_by(each))]))
    with_apps = {each.kafka for each in pipelines if each.apps}
    without_spark = {each.kafka for each in pipelines} - with_apps - {*CONNECTIONS}

    def check(name: str) -> Check:
        return _connection(name, settings, from_file, by_spark=name not in without_spark)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        connections = list(pool.map(check, names))
    return [
        *connections,
        *broken,
        _java(layout),
        _disk(root),
        _disk(cache_folder()),
        _memory(),
        _versions(),
        _permissions(layout),
        executor_check(layout, os.environ),
        outage_check(settings),
    ]


def _sound_pipelines(root: Path) -> tuple[Sequence[Pipeline], Sequence[Check]]:
    """Return the pipelines without errors, and a check where some have errors."""
    step = "their Connections were not checked; run `millrace spec check`"
    try:
        project = load(root)
    except (MillraceError, OSError) as error:
        what = error.what if isinstance(error, MillraceError) else str(error.strerror)
        return (), [Check("declarations", False, "include", f"{printable(what)}; {step}")]
    files = sorted({each.file for each in project.findings})
    wrong = [Check("declarations", False, "include", f"errors in {', '.join(map(shown, files))}; {step}")]
    return project.pipelines, wrong if files else []


def _named_by(pipeline: Pipeline) -> set[str]:
    """Return the Connections that a declaration names, or has by default."""
    readers = {each.quality.connection for each in pipeline.streams if each.quality}
    apps = {name for app in pipeline.apps for name in app.connections}
    return {pipeline.kafka, *apps, *(name for name in readers if name)}


def _connection(name: str, settings: Settings, from_file: dict[str, str], *, by_spark: bool) -> Check:
    variable = variable_name(name)
    if os.environ.get(variable):
        origin = "environment"
    elif variable in from_file:
        origin = ".millrace/env"
    else:
        return Check(name, False, "nowhere", f"set {variable}, or start the embedded stack with `./millrace up`")
    began = time.monotonic()
    try:
        found = _live_test(name, settings, by_spark)
        return Check(name, True, origin, found, time.monotonic() - began)
    except MillraceError as error:
        return Check(name, False, origin, error.what, time.monotonic() - began)
    except Exception as error:  # whatever a driver raises is a finding here, not a crash
        return Check(name, False, origin, str(error).strip().splitlines()[0][:200], time.monotonic() - began)


def _live_test(name: str, settings: Settings, by_spark: bool) -> str:
    connection = settings.connection(name)
    kind = connection.kind
    tests: dict[str, Callable[[str, Settings], str]] = {"aws": _s3, "postgres": _postgres}
    if kind == "kafka":
        found = _kafka(name, settings, by_spark)
    elif kind in tests:
        found = tests[kind](name, settings)
    else:
        found = "apps run on this machine" if connection.host == "local" else f"not tested ({kind})"
    ignored = ignored_extra(connection)
    return found + (f"; ignored keys of its extra: {', '.join(map(shown, ignored))}" if ignored else "")


def _kafka(name: str, settings: Settings, by_spark: bool) -> str:
    from confluent_kafka.admin import AdminClient

    from millrace.adapters.kafka.settings.spark import librdkafka_alone, must_serve_spark
    from millrace.domain.declaration.kafka_security import Client, notices

    kafka = settings.kafka(name)
    if by_spark:
        must_serve_spark(kafka)
    client = AdminClient({**kafka.librdkafka, "log_level": 0})  # must outlive the answer
    cluster = client.describe_cluster(request_timeout=5).result(timeout=6)
    found = f"{kafka.bootstrap_servers}, cluster {cluster.cluster_id}, {len(cluster.nodes)} broker(s)"
    if not by_spark:
        return found
    if alone := librdkafka_alone(kafka):
        found += f"; keys that Spark does not read: {', '.join(map(shown, alone))}"
    return "; ".join([found, *notices(kafka.librdkafka, Client.SPARK)])


def _s3(name: str, settings: Settings) -> str:
    from millrace.adapters.s3.store import S3Store

    s3 = settings.s3(name)
    next(S3Store(s3, attempts=1, read_seconds=5).list("", page_size=1), None)
    return f"{s3.endpoint_url or 'the provider'}, bucket {s3.bucket}"


def _postgres(name: str, settings: Settings) -> str:
    import psycopg

    server = settings.postgres(name)
    with psycopg.connect(**server.keywords(), connect_timeout=5) as connection:  # type: ignore[arg-type]
        connection.execute("SELECT 1")
        number = connection.info.server_version
    return (
        f"{server.host}:{server.port}/{server.database} as {server.user}, PostgreSQL {number // 10000}.{number % 10000}"
    )


def _java(layout: Layout) -> Check:
    try:
        java = find_java(layout.state / "java")
        return Check("java", True, java.source, f"{java.major} in {java.home}")
    except (MillraceError, OSError) as error:
        return Check("java", False, "nowhere", str(error).splitlines()[0])


def _disk(folder: Path) -> Check:
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(there).free
    return Check("disk", free >= LEAST_FREE_BYTES, str(folder), f"{free / 1e9:.1f} GB free")


def _memory() -> Check:
    import psutil

    memory = psutil.virtual_memory()
    found = f"{memory.available / 1e9:.1f} of {memory.total / 1e9:.1f} GB available, {os.cpu_count()} cores"
    return Check("memory", memory.total >= LEAST_MEMORY_BYTES, "this machine", found)


def _versions() -> Check:
    found, absent = [f"Python {platform.python_version()}"], []
    for package in PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            absent.append(package)
    text = ", ".join(found) + (f"; missing: {', '.join(absent)}" if absent else "")
    return Check("versions", not absent, "requirements.txt", text)


def executor_check(layout: Layout, environment: Mapping[str, str]) -> Check:
    """Return whether Airflow runs its tasks on this host alone, where the processes of its streams are.

    Args:
        layout: the project's; the settings of the embedded Airflow win.
        environment: the variables of this process, for an Airflow of the user's own.

    Source: the order of Airflow's own configuration: variable, then file, then default.
    """
    embedded = read_environment_file(layout.airflow_environment_file)
    if found := embedded.get(EXECUTOR_VARIABLE):
        origin = str(layout.airflow_environment_file)
    elif found := environment.get(EXECUTOR_VARIABLE, ""):
        origin = "environment"
    else:
        home = Path(environment.get("AIRFLOW_HOME") or Path.home() / "airflow")
        file = Path(environment.get("AIRFLOW_CONFIG") or home / "airflow.cfg")
        parser = ConfigParser(interpolation=None, strict=False)
        parser.read(file, encoding="utf-8")
        found, origin = parser.get("core", "executor", fallback=""), str(file)
    if not found:
        return Check("executor", True, "Airflow's default", LOCAL_EXECUTOR)
    if found.strip() == LOCAL_EXECUTOR:
        return Check("executor", True, origin, LOCAL_EXECUTOR)
    what = f"{found}: a task could start a stream on any of its hosts; set the executor to {LOCAL_EXECUTOR}"
    return Check("executor", False, origin, what)


def outage_check(settings: Settings) -> Check:
    """Return whether the watchdog can page somebody while the control database is down.

    An environment that declares notifiers of Airflow's wants people to be paged, so that takes a webhook. One with
    `log` alone, as the embedded stack, wants nobody paged.
    """
    try:
        environment = environment_of(settings.root)
    except MillraceError as error:
        return Check("outage notifiers", False, str(error.where), error.what)
    refused = [notifier.kind for notifier in environment.notifiers if notifier.needs_airflow]
    pagers = [dict(each.arguments)["connection"] for each in environment.notifiers if each.kind == "webhook"]
    found = [f"webhook {name}" for name in pagers] or [f"{LOG_FILE} only, which pages nobody"]
    missing = [variable_name(name) for name in pagers if settings.lookup(name) is None]
    if missing:
        found.append(f"missing outside Airflow: {', '.join(missing)}")
    found += [f"{kind} needs Airflow, so it is not used while the control database is down" for kind in refused]
    if refused and not pagers:
        found.append("add the notifier {kind: webhook, connection: ...}")
    fine = not missing and not (refused and not pagers)
    return Check("outage notifiers", fine, f"{ENVIRONMENTS}/{environment.name}.yaml", "; ".join(found))


def _permissions(layout: Layout) -> Check:
    secret = [
        layout.environment_file,
        layout.airflow_environment_file,
        layout.airflow_configuration_file,
        layout.credentials_file,
        layout.airflow_passwords,
    ]
    folders = [layout.state, layout.run, layout.programs]
    there = [path for path in (*secret, *folders) if path.exists()]
    loose = [str(path) for path in there if stat.S_IMODE(path.stat().st_mode) & 0o077]
    found = (
        f"other users can read {', '.join(loose)}"
        if loose
        else f"{len(there)} files and folders that other users cannot read"
    )
    return Check("secrets", not loose, ".millrace", found)
