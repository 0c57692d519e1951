"""Spark in this process, on this machine alone, and the end of its JVM."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from support.waiting import Deadline, exit_code_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def begin(java_home: Path, scratch: Path, *flags: str) -> SparkSession:
    """Return a session with one core.

    Args:
        java_home: whose Java runs it.
        scratch: takes everything temporary.
        flags: further options of the JVM.
    """
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["JAVA_HOME"] = str(java_home)
    return (
        SparkSession.builder.master("local[1]")
        .appName("millrace-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.local.dir", str(scratch))
        .config("spark.sql.warehouse.dir", str(scratch))
        .config("spark.driver.extraJavaOptions", " ".join((f"-Djava.io.tmpdir={scratch}", *flags)))
        .config("spark.sql.session.timeZone", "UTC")
        # as `runtime/life/session.py` has them
        .config("spark.io.encryption.enabled", "true")
        .config("spark.python.daemon.module", "millrace.runtime.life.worker_daemon")
        .getOrCreate()
    )


def end() -> None:
    """End session, JVM and Python workers, whoever began them, if there are any; a later `begin` starts others."""
    if "pyspark" not in sys.modules:
        return
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway = SparkContext._gateway
    alive = gateway and gateway.proc.poll() is None
    workers = psutil.Process(gateway.proc.pid).children(recursive=True) if alive else []
    if session := SparkSession.getActiveSession():
        session.stop()
    if context := SparkContext._active_spark_context:
        context.stop()
    if gateway:
        gateway.shutdown()
        gateway.proc.stdin.close()  # the JVM waits for this
        SparkContext._gateway = SparkContext._jvm = None
        exit_code_of(gateway.proc, within=Deadline.SPARK, what="the JVM to end")
    _, left = psutil.wait_procs(workers, Deadline.KILLED.seconds)
    assert not left, f"Python workers outlive their JVM: {left}"
