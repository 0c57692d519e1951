"""Which variables each process of the stack gets: by allow-list, never simply what the caller happened to have."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from millrace import ROOT_VARIABLE
from millrace.embedded.layout import Layout, virtual_environment_bin
from millrace.embedded.processes import PART_VARIABLE
from millrace.embedded.servers.part import Site
from millrace.embedded.servers.postgres import programs_folder
from millrace.embedded.servers.program import Program
from millrace.embedded.servers.s3 import BUCKET
from millrace.settings import CONNECTION_PREFIX, read_environment_file, variable_name

JAVA_VARIABLE = "MILLRACE_JAVA_HOME"
HANDED_ON: tuple[str, ...] = (
    "HOME",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "USER",
    "LOGNAME",
    "TERM",
    "MILLRACE_ENVIRONMENT",
)
HANDED_ON += (
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "https_proxy",
    "http_proxy",
)
PREFIXES_HANDED_ON = ("PIP_", "UV_")
"""How this machine reaches the package index: a source program may fetch its input from there."""

NOT_BY_PROXY = "127.0.0.1,localhost"
OWNER_ONLY = variable_name("millrace_control_owner")


def connections(site: Site) -> dict[str, str]:
    """The stack's Connections in Airflow's JSON form, by variable name."""
    credentials = site.credentials
    postgres = {
        name: {
            "conn_type": "postgres",
            "host": site.host("postgres"),
            "port": site.ports["postgres"],
            "login": login,
            "password": credentials.database_passwords[login],
            "schema": database,
        }
        for name, login, database in (
            ("millrace_control", "millrace_control", "millrace_control"),
            ("millrace_control_owner", "millrace_control_owner", "millrace_control"),
            ("millrace_sink", "millrace_sink", "millrace_sink"),
            ("millrace_sink_reader", "millrace_sink_reader", "millrace_sink"),
        )
    }
    s3_extra = {
        "endpoint_url": f"http://{site.address('s3')}",
        "region_name": "us-east-1",
        "config_kwargs": {"s3": {"addressing_style": "path"}},
        "service_config": {"s3": {"bucket_name": BUCKET}},
    }
    all_of_them: dict[str, Mapping[str, object]] = {
        "millrace_kafka": {
            "conn_type": "kafka",
            "extra": {"bootstrap.servers": site.address("kafka")},
        },
        "millrace_s3": {
            "conn_type": "aws",
            "login": credentials.s3_key,
            "password": credentials.s3_secret,
            "extra": s3_extra,
        },
        **postgres,
        "millrace_spark": {"conn_type": "spark", "host": "local", "extra": {}},
    }
    return {variable_name(name): json.dumps(document) for name, document in all_of_them.items()}


def connections_file(variables: Mapping[str, str], java_home: Path | None, made_by: str = "./millrace up") -> str:
    """The text of `.millrace/env`: the Connections and the Java that streaming apps run on."""
    java = {} if java_home is None else {JAVA_VARIABLE: str(java_home)}
    lines = "".join(f"{name}={value}\n" for name, value in {**variables, **java}.items())
    return f"# Made by `{made_by}`; read by the CLI, Airflow and for the apps.\n" + lines


def of_part(layout: Layout, program: Program) -> dict[str, str]:
    """The whole environment of a part's process."""
    variables = _plain(layout) | {PART_VARIABLE: program.part}
    if program.airflow:
        variables |= of_airflow(layout)
    return variables | program.environment


def of_airflow(layout: Layout) -> dict[str, str]:
    """What Airflow's programs need. It holds no secret: those it reads from its private files."""
    variables = read_environment_file(layout.airflow_environment_file)
    if java := read_environment_file(layout.environment_file).get(JAVA_VARIABLE):
        variables |= {JAVA_VARIABLE: java, "JAVA_HOME": java}
    return variables


def of_command(layout: Layout, caller: Mapping[str, str]) -> dict[str, str]:
    """The environment of `run -- COMMAND`: the caller's own, with the project's put over it."""
    variables = {name: value for name, value in caller.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    variables |= of_airflow(layout)
    file = read_environment_file(layout.environment_file)
    connected = {name: value for name, value in file.items() if name.startswith(CONNECTION_PREFIX)}
    connected.pop(OWNER_ONLY, None)
    variables = connected | variables  # a caller's connection wins
    path = [str(virtual_environment_bin()), str(layout.tools)]
    if java := file.get(JAVA_VARIABLE):
        variables["JAVA_HOME"] = java
        path.append(f"{java}/bin")
    kafka = variables.get(variable_name("millrace_kafka"))
    if kafka:
        variables.setdefault("KAFKA_BOOTSTRAP", json.loads(kafka)["extra"]["bootstrap.servers"])
    if sink := variables.get(variable_name("millrace_sink")):
        variables = _of_postgres_clients(json.loads(sink)) | variables
    variables |= {
        ROOT_VARIABLE: str(layout.root),
        "VIRTUAL_ENV": sys.prefix,
        "PATH": os.pathsep.join([*path, caller.get("PATH", os.defpath), str(programs_folder())]),
        "PYSPARK_PYTHON": sys.executable,
    }
    return variables


def _of_postgres_clients(connection: Mapping[str, object]) -> dict[str, str]:
    """What libpq and all that is built on it read, so that `run -- psql` and scripts meet the sink database."""
    return {
        "PGHOST": str(connection["host"]),
        "PGPORT": str(connection["port"]),
        "PGUSER": str(connection["login"]),
        "PGPASSWORD": str(connection["password"]),
        "PGDATABASE": str(connection["schema"]),
    }


def _plain(layout: Layout) -> dict[str, str]:
    """The few variables every part gets."""
    handed_on = {
        name: value for name, value in os.environ.items() if name in HANDED_ON or name.startswith(PREFIXES_HANDED_ON)
    }
    outside = os.environ.get("NO_PROXY") or os.environ.get("no_proxy")
    handed_on["NO_PROXY"] = handed_on["no_proxy"] = ",".join(filter(None, (NOT_BY_PROXY, outside)))
    path = os.pathsep.join([str(virtual_environment_bin()), os.environ.get("PATH", os.defpath)])
    return {"LANG": "C.UTF-8", **handed_on, "PATH": path, ROOT_VARIABLE: str(layout.root), "PYTHONUNBUFFERED": "1"}
