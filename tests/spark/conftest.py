"""No JVM outlives the module that started it."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from support.waiting import Deadline, exit_code_of


@pytest.fixture(scope="module", autouse=True)
def _no_jvm_left() -> Iterator[None]:
    """PySpark keeps its JVM for the next session of the process: 400 MB until the end of the run."""
    yield
    if "pyspark" not in sys.modules:
        return
    from pyspark import SparkContext

    if context := SparkContext._active_spark_context:
        context.stop()
    if gateway := SparkContext._gateway:
        gateway.shutdown()
        gateway.proc.stdin.close()  # what the JVM waits for
        exit_code_of(gateway.proc, within=Deadline.SPARK, what="the JVM of these tests to end")
        SparkContext._gateway = SparkContext._jvm = None
