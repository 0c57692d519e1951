"""The embedded stack as a Compose file: the same programs, settings and variables, each server in a container.

Everything here is derived from what `./millrace up` starts. What differs is where things are: host names in place of
127.0.0.1, ports of the servers' own choice, and paths inside the images.
"""

from __future__ import annotations

import hashlib
import io
import shlex
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from millrace import __version__
from millrace.embedded import environment
from millrace.embedded.compose import images, secrets
from millrace.embedded.compose.site import HOSTS, PORTS, site
from millrace.embedded.credentials import Credentials
from millrace.embedded.jars.parts import read_lock
from millrace.embedded.layout import Layout
from millrace.embedded.servers.airflow import Airflow
from millrace.embedded.servers.kafka import LOGGING, broker_command
from millrace.embedded.servers.kafka import properties as kafka_properties
from millrace.embedded.servers.part import Site
from millrace.embedded.servers.postgres import ENCODING, SETTINGS, programs_folder
from millrace.embedded.servers.s3 import S3
from millrace.errors import Code, PartFailedError

FILE = "docker-compose.yaml"
ABOUT = "# docs/operations/compose.md says what it is; settings of your own go into docker-compose.override.yaml.\n"
PUBLISHED = "${MILLRACE_AIRFLOW_PORT:-8080}"
KAFKA_FOLDER = Path("/etc/millrace")
KAFKA_DATA = Path("/var/lib/kafka/data")
_LAYOUT = Layout(images.ROOT)
_STREAMS = f"streams:{_LAYOUT.state / 'streams'}"
_LOGS = f"logs:{_LAYOUT.airflow_home / 'logs'}"


def generated_files() -> dict[str, str]:
    """What `./millrace compose` writes, by path below the project's root. No secret is in it."""
    return {
        FILE: compose_file(),
        "docker/airflow.Dockerfile": images.airflow_dockerfile(),
        "docker/spark.Dockerfile": images.spark_dockerfile(),
        ".dockerignore": images.dockerignore(),
    }


def compose_file() -> str:
    """The text of `docker-compose.yaml`."""
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.width = 4096  # a line a value, however long
    yaml.indent(mapping=2, sequence=4, offset=2)
    text = io.StringIO()
    yaml.dump(_document(), text)
    return images.HEADER + ABOUT + text.getvalue()


def _document() -> dict[str, Any]:
    here = site(Credentials.make())  # only for what is not secret
    shared = _shared(_airflow_environment(here))
    configs = {
        "kafka-server": kafka_properties(here, KAFKA_DATA),
        "kafka-log4j2": LOGGING.format(level="INFO", target="SYSTEM_OUT"),
    }
    return {
        "x-airflow-environment": shared,
        "services": {
            "kafka": _kafka(configs),
            "postgres": _postgres(),
            "s3": _s3(here),
            "setup": _setup(shared),
            "airflow-api-server": _api_server(here, shared),
            "airflow-dag-processor": _dag_processor(here, shared),
            "streams": _streams(shared),
            "example": _example(here),
        },
        "configs": {name: {"content": _lines(_escaped(text))} for name, text in configs.items()},
        "secrets": {secret.name: {"file": f"./{secrets.FOLDER}/{secret.name}"} for secret in secrets.ALL},
        "volumes": {name: {} for name in ("kafka", "postgres", "s3", "state", "streams", "logs")},
    }


def _airflow_environment(here: Site) -> dict[str, str]:
    configuration = Airflow().configuration(here)
    escaped = {name: _escaped(value) for name, value in configuration.items()}
    return escaped | {"AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{PUBLISHED}"} | _everywhere()


def _everywhere() -> dict[str, str]:
    """Variables of every service that runs Millrace's code."""
    near = ",".join((environment.NOT_BY_PROXY, *HOSTS.values()))
    return {"MILLRACE_ENVIRONMENT": "${MILLRACE_ENVIRONMENT:-}", "NO_PROXY": near, "no_proxy": near}


def _kafka(configs: Mapping[str, str]) -> dict[str, Any]:
    version = next(jar.version for jar in read_lock("kafka") if jar.name.startswith("kafka_2"))
    server = broker_command("java", KAFKA_FOLDER)
    tool = ["java", "-Xmx256m", next(word for word in server if "log4j2" in word), "kafka.tools.StorageTool"]
    format_it = [*tool, "format", "--ignore-formatted", f"--config={KAFKA_FOLDER / 'server.properties'}"]
    make_id = f'--cluster-id="$({shlex.join(["java", *tool[-1:], "random-uuid"])})"'  # without a log: it prints the id
    script = (
        f"test -f {KAFKA_DATA / 'meta.properties'} || {shlex.join(format_it)} {make_id}\nexec {shlex.join(server)}\n"
    )
    probe = ["java", "-Xmx128m", "org.apache.kafka.tools.BrokerApiVersionsCommand"]
    probe += ["--bootstrap-server", f"{HOSTS['kafka']}:{PORTS['kafka']}"]
    return {
        "image": f"apache/kafka:{version}",
        "entrypoint": ["/bin/sh", "-ec"],
        "command": [_lines(_escaped(script))],
        "environment": {"CLASSPATH": "/opt/kafka/libs/*"},
        # Compose makes a container anew when its labels change, but not when the text of a configuration does
        "labels": {"millrace.configuration": hashlib.sha256("".join(configs.values()).encode()).hexdigest()},
        "configs": [
            {"source": "kafka-server", "target": str(KAFKA_FOLDER / "server.properties")},
            {"source": "kafka-log4j2", "target": str(KAFKA_FOLDER / "log4j2.properties")},
        ],
        "volumes": [f"kafka:{KAFKA_DATA}"],
        "healthcheck": _healthcheck(probe, every="20s"),  # a JVM each time
        **_lasting("60s"),
    }


def _postgres() -> dict[str, Any]:
    settings = {name: value for name, value in SETTINGS.items() if name not in _OF_THE_IMAGE}
    options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    return {
        "image": f"postgres:{postgres_version()}-bookworm",
        "command": [_escaped(word) for word in ("postgres", *options)],
        "environment": {
            "POSTGRES_PASSWORD_FILE": secrets.POSTGRES_PASSWORD.path,
            "POSTGRES_INITDB_ARGS": shlex.join(ENCODING),
        },
        "secrets": [secrets.POSTGRES_PASSWORD.mount()],
        "shm_size": "256mb",  # parallel queries want more than Docker's 64
        "volumes": ["postgres:/var/lib/postgresql"],
        # while the image prepares its folder, a server answers on the socket alone
        "healthcheck": _healthcheck(["pg_isready", "-h", "127.0.0.1", "-U", "postgres"]),
        **_lasting("60s"),
    }


_OF_THE_IMAGE = ("listen_addresses", "unix_socket_directories")
"""What the image sets itself; its own start needs a socket."""


def postgres_version() -> str:
    """The version of the PostgreSQL that the embedded stack runs."""
    answer = subprocess.run([programs_folder() / "postgres", "--version"], capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise PartFailedError(
            "PostgreSQL does not print its version", where=str(programs_folder()), code=Code.MISSING_PROGRAM
        )
    return answer.stdout.split()[-1]


def _s3(here: Site) -> dict[str, Any]:
    return {
        **_image("spark", built=True),
        "command": S3().programs(here)[0].command,
        "secrets": [secrets.S3_PROPERTIES.mount()],
        "volumes": [f"s3:{_LAYOUT.state / 's3' / 'data'}"],
        "healthcheck": _healthcheck(_inside("healthy", "s3")),
        **_lasting("30s"),
    }


def _setup(variables: Mapping[str, str]) -> dict[str, Any]:
    """What `up` does between starting servers and starting Airflow; done anew by each `docker compose up`."""
    return {
        **_image("airflow", built=True),
        "command": _inside("setup"),
        "environment": variables,
        "secrets": [secret.mount() for secret in (secrets.CREDENTIALS, secrets.CONNECTIONS_OF_OWNER)],
        "depends_on": _after(healthy=("postgres", "s3")),
        "restart": _quoted("no"),
    }


def _api_server(here: Site, variables: Mapping[str, str]) -> dict[str, Any]:
    # a copy, for Airflow opens it to write
    copy = ["install", "-m", "600", secrets.AIRFLOW_USERS.path, str(_LAYOUT.airflow_passwords)]
    script = f"{shlex.join(copy)}\nexec {shlex.join(_component(here, 'airflow-api-server'))}\n"
    return {
        **_image("airflow"),
        "command": ["sh", "-ec", _lines(script)],
        "environment": variables,
        "secrets": [
            secret.mount()
            for secret in (secrets.AIRFLOW_CONFIGURATION, secrets.AIRFLOW_USERS, secrets.CONNECTIONS_TO_LOOK)
        ],
        "volumes": [f"{_STREAMS}:ro", _LOGS],
        "ports": [f"127.0.0.1:{PUBLISHED}:{PORTS['airflow']}"],
        "healthcheck": _healthcheck(_inside("healthy", "metadatabase")),
        "depends_on": _after(done=("setup",)),
        **_lasting("30s"),
    }


def _dag_processor(here: Site, variables: Mapping[str, str]) -> dict[str, Any]:
    return {
        **_image("airflow"),
        "command": _component(here, "airflow-dag-processor"),
        "environment": variables,
        "secrets": [secrets.AIRFLOW_CONFIGURATION.mount()],
        "volumes": [_LOGS],
        "healthcheck": _healthcheck(_inside("healthy", "dag_processor")),
        "depends_on": _after(done=("setup",), healthy=("airflow-api-server",)),
        **_lasting("30s"),
    }


def _streams(variables: Mapping[str, str]) -> dict[str, Any]:
    """Airflow's scheduler and triggerer, and the streams and backups they start: they must see one another."""
    return {
        **_image("spark"),
        "command": _inside("streams"),
        "environment": variables,
        "secrets": [secret.mount() for secret in (secrets.AIRFLOW_CONFIGURATION, secrets.CONNECTIONS)],
        "volumes": [f"state:{_LAYOUT.state}", _STREAMS, _LOGS],
        "healthcheck": _healthcheck(_inside("healthy", "scheduler", "triggerer")),
        "depends_on": _after(done=("setup",), healthy=("kafka", "s3", "airflow-api-server")),
        **_lasting("120s"),
    }


def _example(here: Site) -> dict[str, Any]:
    """The example, on demand: `docker compose run --rm example`; its report makes rows again, with Spark."""
    return {
        **_image("spark"),
        "profiles": ["example"],
        "command": [str(images.PYTHON), "-m", "millrace.cli.example.run", f"http://{here.address('airflow')}"],
        "environment": _everywhere(),
        "secrets": [secret.mount() for secret in (secrets.AIRFLOW_USERS_TO_READ, secrets.CONNECTIONS_TO_LOOK)],
        "volumes": [f"{_STREAMS}:ro"],
        "depends_on": _after(healthy=("kafka", "s3", "airflow-api-server", "airflow-dag-processor", "streams")),
        "restart": _quoted("no"),
    }


def _image(name: str, *, built: bool = False) -> dict[str, Any]:
    """An image of ours, a project's own.

    One service says how it is built, the first of its users to start: two that build the same name at once get into
    each other's way. The others never look for it elsewhere.
    """
    how = {"build": {"context": ".", "dockerfile": f"docker/{name}.Dockerfile"}}
    return {
        "image": f"${{COMPOSE_PROJECT_NAME:-millrace}}-{name}:{__version__}",
        **(how if built else {"pull_policy": "never"}),
        "init": True,
    }


def _inside(*words: str) -> list[str]:
    return [str(images.PYTHON), "-m", "millrace.embedded.compose.container", *words]


def _component(here: Site, name: str) -> list[str]:
    return next(program.command for program in Airflow().programs(here) if program.part == name)


def _healthcheck(command: Sequence[str], every: str = "10s") -> dict[str, Any]:
    return {"test": ["CMD", *command], "interval": every, "timeout": "15s", "retries": 4, "start_period": "120s"}


def _lasting(grace: str) -> dict[str, Any]:
    """A service that stays, with as much of its output kept as the embedded stack keeps."""
    logging = {"driver": "json-file", "options": {"max-size": "20m", "max-file": "3"}}
    return {"restart": "unless-stopped", "stop_grace_period": grace, "logging": logging}


def _after(*, done: Iterable[str] = (), healthy: Iterable[str] = ()) -> dict[str, dict[str, str]]:
    return {name: {"condition": "service_completed_successfully"} for name in done} | {
        name: {"condition": "service_healthy"} for name in healthy
    }


def _escaped(text: str) -> str:
    """Text that Compose must not take for a variable."""
    return text.replace("$", "$$")


def _lines(text: str) -> str:
    """Text that the file shows line by line."""
    from ruamel.yaml.scalarstring import LiteralScalarString

    shown: str = LiteralScalarString(text)
    return shown


def _quoted(text: str) -> str:
    """Text that an older YAML would take for something else."""
    from ruamel.yaml.scalarstring import DoubleQuotedScalarString

    shown: str = DoubleQuotedScalarString(text)
    return shown


def _shared(variables: Mapping[str, str]) -> Any:
    """A mapping that the file has once, under a name, however many services use it."""
    from ruamel.yaml.comments import CommentedMap

    shared = CommentedMap(variables)
    shared.yaml_set_anchor("airflow-environment", always_dump=True)
    return shared
