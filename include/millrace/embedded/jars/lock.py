"""For maintainers: make the jar locks anew. `python -m millrace.embedded.jars.lock` (docs/operations/embedded.md)."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from millrace.embedded.jars import parts
from millrace.embedded.jars.java import find_java
from millrace.embedded.jars.parts import Jar

ROOTS = {
    "kafka": (
        "org.apache.kafka:kafka_2.13:4.3.1",
        "org.apache.kafka:kafka-tools:4.3.1",
        "org.apache.logging.log4j:log4j-slf4j-impl:2.25.5",
    ),
    "s3proxy": ("org.gaul:s3proxy:4.0.0:jar-with-dependencies",),
    # Taken without what they depend on: pyspark brings hadoop, scala, slf4j, lz4, snappy and zstd itself. The token
    # provider is published up to 4.0.0 only; it is not used without Kerberos, but its classes are loaded.
    "spark-connector": (
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
        "org.apache.kafka:kafka-clients:3.9.2",
        "org.apache.commons:commons-pool2:2.13.1",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    ),
}
WITH_DEPENDENCIES = frozenset({"kafka"})


def make_lock(jar_set: str) -> str:
    """The text of a set's lock file: every jar its roots need, with the SHA-256 of what was downloaded.

    Ivy compares each file with the checksum published beside it, so the lock is as good as the day's download.
    """
    with tempfile.TemporaryDirectory() as scratch:
        java = find_java(Path(scratch) / "java")
        roots = [Jar("", *root.split(":")) for root in ROOTS[jar_set]]
        transitive = jar_set in WITH_DEPENDENCIES
        folder = parts.retrieve(roots, java, Path(scratch), lambda _line: None, transitive=transitive)
        jars = sorted(_describe(path, roots, Path(scratch) / "cache") for path in folder.iterdir())
    head = [f"# {root}" for root in ROOTS[jar_set]]
    return "\n".join(["# Made by `python -m millrace.embedded.jars.lock` from", *head, *(line for _, line in jars), ""])


def _describe(path: Path, roots: list[Jar], cache: Path) -> tuple[str, str]:
    organisation, _, file_name = path.name.partition("@")
    sha256 = parts._sha256(path)
    for root in roots:
        if (root.organisation, root.file_name) == (organisation, file_name):
            coordinate = ":".join(filter(None, (root.organisation, root.name, root.version, root.classifier)))
            return coordinate, f"{sha256} {coordinate}"
    names = [folder.name for folder in (cache / organisation).iterdir() if file_name.startswith(folder.name + "-")]
    name = max(names, key=len)
    coordinate = f"{organisation}:{name}:{file_name.removeprefix(name + '-').removesuffix('.jar')}"
    return coordinate, f"{sha256} {coordinate}"


def main() -> None:
    """Write the lock of each set named on the command line, or of all."""
    for jar_set in sys.argv[1:] or parts.SETS:
        started = time.monotonic()
        parts._lock_file(jar_set).write_text(make_lock(jar_set), encoding="utf-8")
        print(f"{jar_set}: {len(parts.read_lock(jar_set))} jars in {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
