"""Where the daemon of Spark's Python workers takes PySpark from."""

from __future__ import annotations

from millrace.runtime.worker_daemon import without_archives

ARCHIVES = ["/env/site/pyspark/python/lib/pyspark.zip", "/env/site/pyspark/python/lib/py4j-0.10.9.9-src.zip"]


def test_archives_of_the_installed_pyspark_are_left_out() -> None:
    path = ["/app", *ARCHIVES, "/env/lib/python311.zip", "/env/site"]
    assert without_archives(path) == ["/app", "/env/lib/python311.zip", "/env/site"]


def test_archives_of_another_spark_stay() -> None:
    path = ["/opt/spark/python/lib/pyspark.zip", "/env/site"]
    assert without_archives(path) == path
    assert without_archives([*ARCHIVES, "/elsewhere"]) == [*ARCHIVES, "/elsewhere"]  # no package would be left
