"""Embedded stacks of a test run, in project folders of their own that tests may add files to."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from millrace.adapters.apps.processes import Process, process
from millrace.embedded.credentials import Credentials
from millrace.embedded.jars.java import find_java
from millrace.embedded.progress import Progress
from millrace.embedded.stack import PARTS, Stack
from millrace.errors import PartFailedError
from millrace.settings import PostgresSettings
from support.checks import spark_classes
from support.checks.runs import RUN_VARIABLE, STACKS

CHECKOUT = Path(__file__).resolve().parents[3]
COPIED = ("dags", "plugins", "spark_apps", "sources", "include/pipelines", "include/environments", "include/quality")


def make_project(folder: Path) -> Path:
    """A project like the checkout: its dags, plugins, apps and declarations copied, so that tests may change them."""
    for name in COPIED:
        if (CHECKOUT / name).is_dir():
            shutil.copytree(CHECKOUT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (folder / name).mkdir(parents=True)
    return folder


def open_stack(name: str) -> Stack:
    """A stack of this run that is not started yet; it is stopped and removed with the run."""
    return Stack(make_project(Path(os.environ[RUN_VARIABLE]) / STACKS / name))


QUICK_JAVA = """\
#!/bin/sh
set -- -XX:TieredStopAtLevel=1 "$@"
case "$*" in
  *org.apache.spark.launcher.Main*) ;; # it only prints the command of the next line
  *org.apache.spark.deploy.SparkSubmit*)
    if [ -e {archive} ]; then set -- -XX:SharedArchiveFile={archive} -Xshare:auto -Xlog:cds*=off "$@"; fi ;;
esac
exec {java} "$@"
"""


def quick_java() -> Path:
    """Return a home of Java for JVMs of a minute.

    The optimizing compiler never pays in a minute. Spark takes its classes from the archive, if there is one already.
    """
    folder = Path(os.environ[RUN_VARIABLE]) / "java"
    program = folder / "bin" / "java"
    if not program.exists():
        found = find_java(folder.with_name("java-found"))
        program.parent.mkdir(parents=True)
        archive = spark_classes.archive_for(found)
        program.write_text(QUICK_JAVA.format(java=shlex.quote(str(found.program)), archive=shlex.quote(str(archive))))
        program.chmod(0o755)
    return folder


quick = True
"""Whether JVMs compile quickly only, and passwords are hashed once; benchmarks have both as people do."""

_quick_passwords: set[Path] = set()
"""Folders of projects whose PostgreSQL hashes passwords once."""

failed_starts: list[str] = []
"""Parts that did not start at the first try, each with its reason and the end of its log; told at the run's end."""

_answered: dict[Path, dict[str, Sequence[Process]]] = {}
"""The processes of each part of a stack when it last answered a real call, by the project's folder."""


def start(stack: Stack, *parts: str) -> Stack:
    """Start these parts unless they run, with what is waited for on standard error. They are quick, see `quick`.

    A part that answered once is not called again while its processes are the same: a call takes a test 50 ms.

    A part that does not start is tried once more, which is told. Where that does not help either the run ends here:
    every other test that needs the part would wait as long for it.
    """
    processes, answered = processes_of(stack, parts), _answered.setdefault(stack.root, {})
    if processes.keys() >= set(parts) and processes.items() <= answered.items():
        return stack
    ready = {status.name for status in stack.status(parts) if status.healthy}
    if set(parts) <= ready:
        answered.update(processes)
        return stack
    with pytest.MonkeyPatch.context() as patch:
        if quick:
            patch.setenv("JAVA_HOME", str(quick_java()))
        try:
            stack.start(Progress(), parts)
        except PartFailedError as first:
            failed_starts.append(str(first))
            try:
                stack.start(Progress(), parts)
            except PartFailedError as second:
                pytest.exit(f"it did not start twice: {second}", returncode=pytest.ExitCode.INTERNAL_ERROR)
    if quick and stack.root not in _quick_passwords and processes_of(stack, ["postgres"]):
        hash_passwords_once(stack)
        _quick_passwords.add(stack.root)
    return stack


def superuser(stack: Stack) -> PostgresSettings:
    """How PostgreSQL's superuser connects."""
    password = Credentials.of(stack.layout).database_passwords["postgres"]
    working = stack.settings().postgres("millrace_control")
    return replace(working, user="postgres", database="postgres", password=password)


def hash_passwords_once(stack: Stack) -> None:
    """Let PostgreSQL hash each password once, and not 4,096 times: a client repeats that for each connection, in 4 ms.

    Roles that tests make, and those that a later start alters, are hashed once, too.
    """
    with psycopg.connect(**superuser(stack).keywords(), autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET scram_iterations = 1")
        connection.execute("SELECT pg_reload_conf()")
        connection.execute("SET scram_iterations = 1")
        for role, password in Credentials.of(stack.layout).database_passwords.items():
            connection.execute(sql.SQL("ALTER ROLE {} PASSWORD {}").format(sql.Identifier(role), sql.Literal(password)))


def processes_of(stack: Stack, parts: Sequence[str]) -> Mapping[str, Sequence[Process]]:
    """Return the processes of each of these parts whose programs all live.

    The supervisor learns of a death within a second, so the system is asked, too.
    """
    states = stack.supervisor.states()
    alive = {name: found for name, state in states.items() if state.pid and (found := process(state.pid))}
    programs = {part: PARTS[part].program_names for part in parts}
    return {part: [alive[name] for name in names] for part, names in programs.items() if alive.keys() >= set(names)}
