"""The two container images, as Dockerfiles: `airflow`, and `spark`, which is the same with Java and Spark's jars.

Both are made as any checkout is: the launcher installs `requirements.txt`, held to its hashes. `python -m
millrace.embedded.compose.images` is the step of the second one that brings Java and jars, held to the committed locks.
"""

from __future__ import annotations

import os
import re
import shutil
from importlib.metadata import metadata
from pathlib import Path, PurePosixPath

from millrace import ROOT_VARIABLE
from millrace.embedded.jars import parts
from millrace.embedded.jars.java import bundled_java
from millrace.embedded.layout import Layout, cache_folder

ROOT = Path("/opt/millrace")
"""The project's folder in an image."""

PYTHON = ROOT / ".venv" / "bin" / "python"
JAVA_HOME = Path("/opt/java")
PARTS = Path("/opt/parts")
"""What is the user's cache folder elsewhere: it holds the jars."""

USER, USER_ID = "millrace", 50000
JAR_SETS = ("spark-connector", "s3proxy")
FOLDERS = ("", "airflow", "airflow/logs", "s3", "s3/data", "streams")
"""Below `.millrace`: made in the image, so that a new volume in their place belongs to the user."""

ENVIRONMENT = {
    "LANG": "C.UTF-8",
    "PYTHONUNBUFFERED": "1",
    ROOT_VARIABLE: str(ROOT),
    "PATH": f"{PYTHON.parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
}
INSTALLED = ("millrace", "pyproject.toml", "requirements.txt", "README.md", "LICENSE")
"""What the environment is made from, besides the package itself."""

PROJECT = ("dags", "plugins", "sources", "spark_apps", "include")
"""What a pipeline's author changes."""

HEADER = "# Made by `./millrace compose`: what is changed here is lost with its next run.\n"


def python_version() -> str:
    """The oldest Python that Millrace runs on, `3.11`: the one whose lock is tried the most."""
    found = re.search(r">=\s*(\d+\.\d+)", metadata("millrace")["Requires-Python"])
    assert found is not None
    return found.group(1)


def airflow_dockerfile() -> str:
    """The text of the Dockerfile for Airflow's components that start no stream."""
    return HEADER + _environment() + _project() + _owned(FOLDERS) + _user()


def spark_dockerfile() -> str:
    """The text of the Dockerfile for streams: the other image's steps first, so that the two share them."""
    bring_java = "RUN --mount=type=cache,target=/root/.cache python -m millrace.embedded.compose.images"
    java = f"ENV JAVA_HOME={JAVA_HOME}\n{bring_java}\n"
    return HEADER + _environment() + java + _project() + _owned(FOLDERS) + _user()


def dockerignore() -> str:
    """The text of `.dockerignore`: nothing goes into an image but what is named, so no password can."""
    lines = ["*", *(f"!{name}" for name in sorted((*INSTALLED, *PROJECT))), "**/__pycache__"]
    return HEADER + "".join(f"{line}\n" for line in lines)


def _environment() -> str:
    variables = " \\\n    ".join(f"{name}={value}" for name, value in ENVIRONMENT.items())
    return (
        f"FROM python:{python_version()}-slim-bookworm\n"
        f"ENV {variables}\n"
        f"RUN useradd --uid {USER_ID} --create-home {USER}\n"
        f"WORKDIR {ROOT}\n"
        f"COPY {' '.join(INSTALLED)} ./\n"
        "COPY include/millrace include/millrace\n"
        "RUN --mount=type=cache,target=/root/.cache UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1 ./millrace run -- true\n"
    )


def _project() -> str:
    return "".join(f"COPY {name} {name}\n" for name in PROJECT)


def _owned(folders: tuple[str, ...]) -> str:
    named = " ".join(str(PurePosixPath(".millrace") / folder) for folder in folders)
    return (
        f"RUN chmod -R a+rX {' '.join((*INSTALLED, *PROJECT))} \\\n"  # a checkout may be its owner's alone
        "    && python -m compileall -q include spark_apps \\\n"
        f"    && rm -rf .millrace && install -d -o {USER} -g {USER} -m 700 {named}\n"
    )


def _user() -> str:
    return f"USER {USER}\n"


def bring_java_and_jars(java_home: Path = JAVA_HOME, cache: Path = PARTS) -> None:
    """Lay Java and the jars of Spark's connector and of the S3 server where the image has them, for every user.

    Raises:
        PartFailedError: a jar is not the one that the lock names.
        UnreachableError: the jars could not be downloaded.
    """
    java = bundled_java(java_home)
    fetched = parts.fetch(JAR_SETS, java, lambda line: print(line, flush=True))
    for jar_set, paths in fetched.jars.items():
        for path, jar in zip(paths, parts.read_lock(jar_set), strict=True):
            target = jar.path_in(cache)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    for path in (*java_home.rglob("*"), *cache.rglob("*")):
        path.chmod(path.stat().st_mode | (0o555 if path.is_dir() or os.access(path, os.X_OK) else 0o444))
    print(f"jars are in {cache}, downloaded to {cache_folder()} in {fetched.download_seconds:.0f} s")


def jars(jar_set: str) -> list[Path]:
    """Where the jars of a set are in the image."""
    return [jar.path_in(PARTS) for jar in parts.read_lock(jar_set)]


def write_spark_jars(layout: Layout) -> None:
    """Write down, for the streaming apps, where the image has Spark's jars."""
    parts.write_spark_jars(layout, jars("spark-connector"))


if __name__ == "__main__":
    bring_java_and_jars()
