"""The Spark session of an app, bounded for a small machine."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from millrace.domain.declaration.pipeline import App

_MIB = 1024 * 1024


def open_session(
    app: App, epoch: int, jars: Sequence[Path], scratch: Path, options: Mapping[str, str] = {}
) -> SparkSession:
    """A local session for one app: loopback only, no web pages, everything temporary under `scratch`.

    For the process of that app alone: `scratch` becomes its temporary folder.

    Args:
        app: names the session and bounds it.
        epoch: is part of its name.
        jars: what Spark's JVM loads beside its own.
        scratch: made if it is not there.
        options: what this kind of app wants beside what all have.
    """
    scratch.mkdir(parents=True, exist_ok=True, mode=0o700)
    tempfile.tempdir = str(scratch)  # PySpark leaves a folder behind when it is killed while its gateway starts
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    cores = app.resources.cores
    of_all = {
        "spark.driver.memory": f"{app.resources.memory_bytes // _MIB}m",
        # Spark's Kafka source takes the JVM's zone for dates of before 1900.
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:+ExitOnOutOfMemoryError -Duser.timezone=UTC "
        f"-Djava.io.tmpdir={scratch}",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.jars": ",".join(str(jar) for jar in jars),
        "spark.python.daemon.module": "millrace.runtime.life.worker_daemon",
        "spark.local.dir": str(scratch / "local"),
        # What tasks bring along, a sink's password too, gets there: PySpark writes a function of over 1 MiB to a file,
        # and Spark spills what it broadcasts. The key is in memory alone; that Spark warns of keys on the wire is about
        # executors elsewhere.
        "spark.io.encryption.enabled": "true",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(32 * _MIB),
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        "spark.sql.streaming.minBatchesToRetain": "2",
        "spark.sql.streaming.metricsEnabled": "false",
        "spark.sql.ui.retainedExecutions": "1",
        "spark.ui.retainedJobs": "1",
        "spark.ui.retainedStages": "1",
        "spark.ui.retainedTasks": "1",
        "spark.log.level": "WARN",
    }
    builder = SparkSession.builder.master(f"local[{cores}]").appName(f"{app.qualified_name}#{epoch}")
    for key, value in {**of_all, **options}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    # It warns of `kafka.group.id` at every batch that reads several topics, which assign partitions and join no group.
    log4j = session._jvm.org.apache.logging.log4j
    log4j.core.config.Configurator.setLevel("org.apache.spark.sql.kafka010.KafkaSourceProvider", log4j.Level.ERROR)
    return session
