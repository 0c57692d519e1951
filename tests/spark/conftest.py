"""The one Spark session of a run, in pytest's own process; no JVM outlives the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.checks.budget import Kind, spend
from support.stack.embedded import quick_java
from support.streams import local_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    """The run's one Spark: begun by the first module that asks, and for each with settings and views of its own."""
    from pyspark.sql import SparkSession

    spend(Kind.SPARK_SESSIONS)
    running = SparkSession.getActiveSession() or local_spark.begin(quick_java(), tmp_path_factory.mktemp("spark"))
    return running.newSession()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Iterator[None]:
    """PySpark keeps its JVM for the next session of the process: 400 MB until the end of the run."""
    try:
        return (yield)
    finally:
        if nextitem is None or not nextitem.path.is_relative_to(HERE):
            local_spark.end()
