"""The one Spark session of a run, in pytest's own process; no JVM outlives the tests of this folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.budget import Kind, spend
from support.stack import quick_java
from support.waiting import Deadline, exit_code_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    """The run's one Spark: begun by the first module that asks, and for each with settings and views of its own."""
    from pyspark.sql import SparkSession

    spend(Kind.SPARK_SESSIONS)
    running = SparkSession.getActiveSession() or begin(tmp_path_factory.mktemp("spark"))
    return running.newSession()


def begin(scratch: Path) -> SparkSession:
    """A session on this machine alone, everything temporary in a folder of the run."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["JAVA_HOME"] = str(quick_java())
    return (
        SparkSession.builder.master("local[1]")
        .appName("millrace-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.local.dir", str(scratch))
        .config("spark.io.encryption.enabled", "true")  # as `runtime/session.py` has it
        .config("spark.sql.warehouse.dir", str(scratch))
        .config("spark.driver.extraJavaOptions", f"-Djava.io.tmpdir={scratch}")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Iterator[None]:
    """PySpark keeps its JVM for the next session of the process: 400 MB until the end of the run."""
    try:
        return (yield)
    finally:
        if nextitem is None or not nextitem.path.is_relative_to(HERE):
            end_jvm()


def end_jvm() -> None:
    """End session and JVM, whoever began them; a module that comes back later begins others."""
    if "pyspark" not in sys.modules:
        return
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if session := SparkSession.getActiveSession():
        session.stop()
    if context := SparkContext._active_spark_context:
        context.stop()
    if gateway := SparkContext._gateway:
        gateway.shutdown()
        gateway.proc.stdin.close()  # what the JVM waits for
        exit_code_of(gateway.proc, within=Deadline.SPARK, what="the JVM of these tests to end")
        SparkContext._gateway = SparkContext._jvm = None
