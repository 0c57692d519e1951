"""A driver with a JVM and busy Python workers, as a stream's is. Nothing of Millrace is imported."""

import os
import signal
import sys
import time

from pyspark.sql import SparkSession

LIFE_SECONDS = 300


def spin(batches):  # type: ignore[no-untyped-def]
    """Keep a Python worker busy for longer than the test, and not for ever."""
    time.sleep(LIFE_SECONDS)
    yield from batches


def main() -> None:
    signal.alarm(LIFE_SECONDS)
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "512m")
        .config("spark.local.dir", os.getcwd())  # a JVM that is killed leaves its files: in the app's root
        .config("spark.driver.extraJavaOptions", f"-Djava.io.tmpdir={os.getcwd()}")
        .getOrCreate()
    )
    print("ready", flush=True)
    spark.range(0, 4, 1, 2).mapInArrow(spin, "id long").count()


if __name__ == "__main__":
    sys.exit(main())
