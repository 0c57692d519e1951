"""A driver with a JVM and busy Python workers, as a stream's is. Nothing of Millrace is imported."""

import sys
import time

from pyspark.sql import SparkSession


def spin(batches):  # type: ignore[no-untyped-def]
    """Keep a Python worker busy for ever."""
    while True:
        time.sleep(1)
    yield from batches


def main() -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "512m")
        .getOrCreate()
    )
    print("ready", flush=True)
    spark.range(0, 4, 1, 2).mapInArrow(spin, "id long").count()


if __name__ == "__main__":
    sys.exit(main())
