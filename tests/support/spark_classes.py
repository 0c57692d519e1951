"""Archive the classes that Spark loads, so that the JVMs of later tests map them: this halves the CPU of a start.

The archive lies in the Python environment, beside the jars that it was made from. A JVM checks that they are the same
and leaves an archive of other jars aside. It is made once an environment, as a step of a whole run. Test runs without
it are slower and nothing else.

Source: JEP 350, dynamic archives of class data sharing.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from millrace.embedded.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"
PATIENCE_SECONDS = 60.0
"""How long the JVM may take to write the archive at its end. It needs three seconds on an idle machine."""


def main() -> None:
    """Make the archive unless it is there."""
    if ARCHIVE.exists():
        print(f"{ARCHIVE}: it is there")
        return
    draft = ARCHIVE.with_name(f"{ARCHIVE.name}.{os.getpid()}")
    with tempfile.TemporaryDirectory(prefix="millrace-spark-classes-") as scratch:
        try:
            record(draft, Path(scratch))
            if draft.exists():
                draft.replace(ARCHIVE)
                print(f"{ARCHIVE}: {ARCHIVE.stat().st_size / 1e6:.0f} MB")
            else:
                print("this Java writes no archive of classes: every JVM of a test loads them by itself")
        finally:
            draft.unlink(missing_ok=True)


def record(draft: Path, scratch: Path) -> None:
    """Let a JVM do what streams and jobs do, and write down at its end which classes it has loaded."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["JAVA_HOME"] = str(find_java(scratch / "java").home)
    session = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.local.dir", str(scratch))
        .config("spark.io.encryption.enabled", "true")
        .config("spark.sql.warehouse.dir", str(scratch))
        .config(
            "spark.driver.extraJavaOptions", f"-XX:TieredStopAtLevel=1 -XX:ArchiveClassesAtExit={draft} -Xlog:disable"
        )
        .getOrCreate()
    )
    work(session, scratch)
    session.stop()
    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()  # the JVM waits for this
    gateway.proc.wait(PATIENCE_SECONDS)


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
    main()
