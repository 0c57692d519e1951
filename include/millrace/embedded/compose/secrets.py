"""The secrets of `docker-compose.yaml`: which files there are, where a container finds each, and how they are made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from millrace.embedded import environment
from millrace.embedded.compose import images
from millrace.embedded.compose.site import site
from millrace.embedded.credentials import Credentials
from millrace.embedded.layout import PRIVATE_FOLDER, Layout, write_private
from millrace.embedded.servers.airflow import Airflow
from millrace.embedded.servers.s3 import properties as s3_properties
from millrace.settings import variable_name

FOLDER = "docker/secrets"
USUAL_PLACE = "/run/secrets"
ELSEWHERE = "streams"
"""The host that `millrace_spark` names where no stream may be started: not `local`, so that nothing tries."""

_READABLE = 0o444
"""A container's user is none of this machine's, so a secret's file is readable; its folder is closed."""


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret: its file's name, and where the containers that get it find it; None for Compose's own place."""

    name: str
    target: str | None = None

    def mount(self) -> str | dict[str, str]:
        """How a service asks for it."""
        return self.name if self.target is None else {"source": self.name, "target": self.target}

    @property
    def path(self) -> str:
        """Its path in a container."""
        return self.target or f"{USUAL_PLACE}/{self.name}"


_LAYOUT = Layout(images.ROOT)
POSTGRES_PASSWORD = Secret("postgres-password")
S3_PROPERTIES = Secret("s3proxy.properties", str(_LAYOUT.state / "s3" / "s3proxy.properties"))
AIRFLOW_CONFIGURATION = Secret("airflow.cfg", str(_LAYOUT.airflow_configuration_file))
AIRFLOW_USERS = Secret("airflow-passwords.json")
AIRFLOW_USERS_TO_READ = Secret("airflow-passwords.json", str(_LAYOUT.airflow_passwords))
CREDENTIALS = Secret("credentials.json", str(_LAYOUT.credentials_file))
CONNECTIONS = Secret("connections", str(_LAYOUT.environment_file))
CONNECTIONS_OF_OWNER = Secret("connections-owner", str(_LAYOUT.environment_file))
CONNECTIONS_TO_LOOK = Secret("connections-look", str(_LAYOUT.environment_file))
ALL = (
    POSTGRES_PASSWORD,
    S3_PROPERTIES,
    AIRFLOW_CONFIGURATION,
    AIRFLOW_USERS,
    CREDENTIALS,
    CONNECTIONS,
    CONNECTIONS_OF_OWNER,
    CONNECTIONS_TO_LOOK,
)


def texts(credentials: Credentials) -> dict[str, str]:
    """The text of each secret, by name. Each service gets those it works with and no other."""
    here = site(credentials)
    everything = environment.connections(here)
    working = {name: value for name, value in everything.items() if name != environment.OWNER_ONLY}
    spark = json.dumps({"conn_type": "spark", "host": ELSEWHERE, "extra": {}})
    looking = working | {variable_name("millrace_spark"): spark}

    def file(variables: Mapping[str, str]) -> str:
        return environment.connections_file(variables, images.JAVA_HOME, "./millrace compose")

    return {
        POSTGRES_PASSWORD.name: credentials.database_passwords["postgres"],
        S3_PROPERTIES.name: s3_properties(here),
        AIRFLOW_CONFIGURATION.name: Airflow().secret_configuration(here),
        AIRFLOW_USERS.name: json.dumps(credentials.airflow_passwords),
        CREDENTIALS.name: json.dumps(asdict(credentials), indent=1),
        CONNECTIONS.name: file(working),
        CONNECTIONS_OF_OWNER.name: file(everything),
        CONNECTIONS_TO_LOOK.name: file(looking),
    }


def write(root: Path) -> tuple[Path, bool]:
    """Write the secrets' files; passwords that were made before are kept. Returns their folder, and whether it is new.

    The folder is its owner's alone. The files in it can be read by everybody, because Compose mounts them as they are
    and the containers' users are none of this machine's.
    """
    folder = root / FOLDER
    folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
    folder.chmod(PRIVATE_FOLDER)
    stored = folder / CREDENTIALS.name
    new = not stored.exists()
    credentials = Credentials.make() if new else Credentials.read(stored.read_text(encoding="utf-8"))
    for name, text in texts(credentials).items():
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            write_private(path, text)
        path.chmod(_READABLE)
    return folder, new
