"""A driver with a JVM and busy Python workers, as a stream's is. Nothing of Millrace is imported.

It uses no SQL: to load and warm that up costs more than all the rest, and starts no other process.
"""

import os
import signal
import sys
import time

from pyspark import SparkConf, SparkContext

LIFE_SECONDS = 300


def spin(rows):  # type: ignore[no-untyped-def]
    """Keep a Python worker busy for longer than the test, and not for ever."""
    time.sleep(LIFE_SECONDS)


def main() -> None:
    signal.alarm(LIFE_SECONDS)
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "512m",
        "spark.local.dir": os.getcwd(),  # a JVM that is killed leaves its files: in the app's root
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={os.getcwd()}",
    }
    configuration = SparkConf().setMaster("local[2]").setAppName("stub").setAll(list(settings.items()))
    context = SparkContext(conf=configuration)
    print("ready", flush=True)
    context.parallelize(range(4), 2).foreachPartition(spin)


if __name__ == "__main__":
    sys.exit(main())
