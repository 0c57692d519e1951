"""The variables that an app's code runs with: a few of ours, Java's home, and the Connections it may see."""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Iterable

from millrace.adapters.app_processes import ROOT_VARIABLE
from millrace.settings import Settings, read_environment_file, variable_name

INHERITED = ("PATH", "HOME", "LANG", "TZ", "MILLRACE_ENVIRONMENT")


def app_environment(settings: Settings, connections: Iterable[str]) -> dict[str, str]:
    """All variables that an app gets, but for its name.

    Args:
        settings: the project's.
        connections: the Connections it may see.

    Raises:
        UnreachableError: one of them is not defined.
    """
    environment = {key: os.environ[key] for key in INHERITED if os.environ.get(key)}
    environment.setdefault("PATH", os.defpath)
    environment.setdefault("HOME", pwd.getpwuid(os.getuid()).pw_dir)
    environment.setdefault("LANG", "C.UTF-8")
    from_file = read_environment_file(settings.state_folder / "env")
    java_home = from_file.get("MILLRACE_JAVA_HOME") or os.environ.get("JAVA_HOME")
    if java_home:
        environment["JAVA_HOME"] = java_home
    environment |= {
        ROOT_VARIABLE: str(settings.root),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    for connection in connections:
        settings.connection(connection)  # raises where there is none
        environment[variable_name(connection)] = settings.lookup(connection) or ""
    return environment
