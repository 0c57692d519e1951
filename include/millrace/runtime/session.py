"""The Spark session of a stream app, bounded for a small machine."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from pyspark.sql import SparkSession

from millrace.domain.declaration import Stream

_MIB = 1024 * 1024
_LONGEST_POLL = timedelta(seconds=10)


def open_session(stream: Stream, epoch: int, jars: Sequence[Path], scratch: Path) -> SparkSession:
    """A local session for one stream: loopback only, no web pages, everything temporary under `scratch`.

    For the process of one stream app: `scratch` becomes its temporary folder.
    """
    scratch.mkdir(parents=True, exist_ok=True, mode=0o700)
    tempfile.tempdir = str(scratch)  # PySpark leaves a folder behind when it is killed while its gateway starts
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    cores = stream.resources.cores
    options = {
        "spark.driver.memory": f"{stream.resources.memory_bytes // _MIB}m",
        "spark.driver.extraJavaOptions": f"-XX:+UseSerialGC -XX:+ExitOnOutOfMemoryError -Djava.io.tmpdir={scratch}",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.jars": ",".join(str(jar) for jar in jars),
        "spark.python.daemon.module": "millrace.runtime.worker_daemon",
        "spark.local.dir": str(scratch / "local"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(32 * _MIB),
        # How long Spark waits before it looks again for records, where it has found none. The trigger's pace is kept
        # apart from this; who looks once an hour only would leave what came meanwhile, and seem to be stuck.
        "spark.sql.streaming.pollingDelay": f"{min(stream.trigger, _LONGEST_POLL).total_seconds() * 1000:.0f}ms",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        "spark.sql.streaming.minBatchesToRetain": "2",
        "spark.sql.streaming.metricsEnabled": "false",
        "spark.sql.ui.retainedExecutions": "1",
        "spark.ui.retainedJobs": "1",
        "spark.ui.retainedStages": "1",
        "spark.ui.retainedTasks": "1",
        "spark.log.level": "WARN",
    }
    builder = SparkSession.builder.master(f"local[{cores}]").appName(f"{stream.qualified_name}#{epoch}")
    for key, value in options.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    # It warns of `kafka.group.id` at every batch that reads several topics, which assign partitions and join no group.
    log4j = session._jvm.org.apache.logging.log4j
    log4j.core.config.Configurator.setLevel("org.apache.spark.sql.kafka010.KafkaSourceProvider", log4j.Level.ERROR)
    return session
