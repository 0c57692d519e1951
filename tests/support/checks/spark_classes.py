"""Archive the classes that Spark loads, so that the JVMs of later tests map them: this halves the CPU of a start.

The archive lies in the Python environment, beside the jars that it was made from; its name says by which Java and from
which Spark. A whole run makes it where there is none. Where it cannot be made, tests are slower and nothing else.

Source: JEP 350, dynamic archives of class data sharing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from millrace.embedded.jars.java import Java, find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE_SECONDS = 300.0
"""How long the recording may take; 25 s on an idle machine."""
SAY_SECONDS = 60.0
"""How long a Java may take to say its version."""


def archive_for(java: Java) -> Path:
    """Return the archive's path for this Java and the installed Spark, whether it is there or not."""
    said = subprocess.run([java.program, "-version"], capture_output=True, check=True, timeout=SAY_SECONDS).stderr
    return Path(sys.prefix) / f"spark-classes-{sha256(said + version('pyspark').encode()).hexdigest()[:16]}.jsa"


def main() -> None:
    """Make the archive unless it is there. A failure is said and leaves nothing behind."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory(prefix="millrace-spark-classes-", ignore_cleanup_errors=True) as scratch:
        archive = archive_for(find_java(Path(scratch) / "java"))
        if archive.exists():
            print(f"{archive}: it is there")
            return
        draft = archive.with_suffix(f".{os.getpid()}")
        try:
            said = record_apart(draft, Path(scratch))
            if said or not draft.exists():
                print(
                    f"no archive of Spark's classes, each JVM loads them by itself: {said or 'this Java writes none'}"
                )
                return
            draft.replace(archive)
            print(f"{archive}: {archive.stat().st_size / 1e6:.0f} MB")
        finally:
            draft.unlink(missing_ok=True)


def record_apart(draft: Path, scratch: Path) -> str:
    """Record in processes of their own, which are gone afterwards, however this ends; return what went wrong."""
    process = subprocess.Popen(
        [sys.executable, __file__, str(draft), str(scratch)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        return f"it took longer than {PATIENCE_SECONDS:.0f} s"
    finally:
        if process.returncode != 0:
            kill_group(process.pid)
        process.wait()
    return "" if process.returncode == 0 else output[-2000:]


def kill_group(group: int) -> None:
    """Kill every process of a group, if any is left."""
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def record(draft: Path, scratch: Path) -> None:
    """Let a JVM do what streams and jobs do, and write down at its end which classes it has loaded."""
    from support.streams import local_spark

    session = local_spark.begin(
        find_java(scratch / "java").home,
        scratch,
        "-XX:TieredStopAtLevel=1",
        f"-XX:ArchiveClassesAtExit={draft}",
        "-Xlog:disable",
    )
    work(session, scratch)
    local_spark.end()


def work(session: SparkSession, scratch: Path) -> None:
    """Run a query with Python functions, and a stream with batches in Python."""
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F

    def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    rows = session.createDataFrame([(1, "a", 2.5), (2, None, None)], "id INT, name STRING, amount DOUBLE")
    made = rows.mapInArrow(same, rows.schema).groupBy("name").agg(F.max("id").alias("id"), F.sum("amount"))
    assert made.join(rows, "id").select(F.struct("*")).count() == 2

    def batch(frame: DataFrame, number: int) -> None:
        frame.mapInArrow(same, frame.schema).collect()

    source = session.readStream.format("rate").option("rowsPerSecond", 10).load()
    query = source.writeStream.foreachBatch(batch).option("checkpointLocation", str(scratch / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))  # where `support` is
    if len(sys.argv) == 3:
        record(Path(sys.argv[1]), Path(sys.argv[2]))
    else:
        main()
