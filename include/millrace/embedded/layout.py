"""Where the running stack keeps what it writes: everything below `ROOT/.millrace`, and jars in the user's cache."""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from millrace.settings import STATE_FOLDER

PRIVATE_FOLDER = 0o700
PRIVATE_FILE = 0o600


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of one project's stack. All folders are 0700, all files that hold a secret 0600."""

    root: Path

    @property
    def state(self) -> Path:
        """The folder that everything below lives in."""
        return self.root / STATE_FOLDER

    @property
    def environment_file(self) -> Path:
        """The Connections, read by the CLI, the apps and Airflow's components."""
        return self.state / "env"

    @property
    def airflow_environment_file(self) -> Path:
        """Airflow's own configuration without its secrets: the environment of Airflow's components and tasks."""
        return self.state / "airflow.env"

    @property
    def airflow_configuration_file(self) -> Path:
        """What is secret in Airflow's configuration, its signing keys among it: in a file, so in no environment."""
        return self.airflow_home / "airflow.cfg"

    @property
    def credentials_file(self) -> Path:
        """The passwords and keys made on the first start."""
        return self.state / "credentials.json"

    @property
    def ports_file(self) -> Path:
        """The ports of the last start, used again where they are still free."""
        return self.state / "ports.json"

    @property
    def spark_jars_file(self) -> Path:
        """The jars a streaming app needs on its class path, one path a line."""
        return self.state / "spark-jars"

    @property
    def logs(self) -> Path:
        """One log file a part."""
        return self.state / "logs"

    @property
    def run(self) -> Path:
        """Which process is which part: one record a part."""
        return self.state / "run"

    @property
    def programs(self) -> Path:
        """What each part is started with."""
        return self.state / "programs"

    @property
    def tools(self) -> Path:
        """Wrappers of Kafka's own command line tools."""
        return self.state / "bin"

    @property
    def airflow_home(self) -> Path:
        """Airflow's AIRFLOW_HOME."""
        return self.state / "airflow"

    @property
    def airflow_passwords(self) -> Path:
        """User names and passwords of the Airflow page."""
        return self.airflow_home / "passwords.json"

    def log_file(self, part: str) -> Path:
        """The log of one part."""
        return self.logs / f"{part}.log"

    def make(self) -> None:
        """Make the folders, each readable by its owner alone."""
        for folder in (self.state, self.logs, self.run, self.programs, self.tools, self.airflow_home):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(PRIVATE_FOLDER)


def write_private(path: Path, text: str) -> None:
    """Replace a file's text in one step; no other user can read it at any moment."""
    descriptor, partial = tempfile.mkstemp(prefix=path.name + ".", dir=path.parent)  # mkstemp makes it 0600
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(text)
    os.replace(partial, path)


def cache_folder() -> Path:
    """The user's cache folder for parts that several checkouts share."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    folder = Path(base) if base.startswith("/") else Path.home() / ".cache"
    return folder / "millrace"


def virtual_environment_bin() -> Path:
    """The folder with the programs of the running Python environment."""
    return Path(sys.executable).parent
