"""Program: read a whole topic with Spark as its backup does, and only count; then count in the Python workers.

Arguments: project root, pipeline, topic, a scratch folder. Prints one JSON object: of `count` and of `workers`, where
the records travel to the Python workers and are dropped there, seconds and CPU seconds of this process tree; and of
`young count` and `young workers` the same for the first `UNWEIGHED_OFFSETS` of each partition, read before, by a JVM
that has done nothing yet.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame

from bench.scan import cpu_seconds
from millrace import declarations
from millrace.adapters.kafka.log import KafkaLog
from millrace.domain.archive.pace import UNWEIGHED_OFFSETS
from millrace.domain.topics.offsets import OffsetRange
from millrace.runtime.life.session import open_session
from millrace.runtime.stream.source import batch_options
from millrace.settings import open_settings

# Headers are never null, as the backup has them too. Spark weighs a batch after each record, and with a column of lists
# that are all null that takes the longer the larger the batch is: 12 microseconds a record in batches of 20,000.
COLUMNS = (
    "partition",
    "offset",
    "unix_millis(timestamp) AS timestamp_ms",
    "timestampType",
    "key",
    "value",
    "coalesce(headers, CAST(array() AS array<struct<key:string,value:binary>>)) AS headers",
)


def main(root: Path, pipeline: str, topic: str, scratch: Path) -> None:
    settings = open_settings(root)
    declared = declarations.load_pipeline(root, pipeline, None)
    app = declared.backup
    assert app is not None
    kafka = settings.kafka(declared.kafka)
    jars = [Path(line) for line in (settings.state_folder / "spark-jars").read_text().splitlines()]
    session = open_session(app, 0, jars, scratch)
    log = KafkaLog(kafka, client_id="bench")
    ends = log.ends(log.partitions([topic]))

    def frame(most: int | None = None) -> DataFrame:
        ranges = [OffsetRange(partition, 0, min(end, most or end)) for partition, end in ends.items()]
        options = batch_options(kafka, name=app.qualified_name, group="bench-raw-scan", ranges=ranges)
        return session.read.format("kafka").options(**options).load()

    found = {}
    for name, most in (("young ", UNWEIGHED_OFFSETS), ("", None)):
        records = sum(min(end, most or end) for end in ends.values())
        found[f"{name}count"] = timed(frame(most), records, DataFrame.count)
        found[f"{name}workers"] = timed(frame(most), records, count_in_workers)
    print(json.dumps(found))


def timed(frame: DataFrame, records: int, count: Callable[[DataFrame], int]) -> dict[str, float]:
    """Seconds and CPU seconds of one count."""
    before, began = cpu_seconds(), time.monotonic()
    found = count(frame)
    assert found == records, f"{found} records of {records}"
    return {"seconds": time.monotonic() - began, "cpu_seconds": cpu_seconds() - before}


def count_in_workers(frame: DataFrame) -> int:
    """How many records reach Python, with all that they hold."""

    def counted(blocks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"records": pa.array([sum(block.num_rows for block in blocks)], pa.int64())})

    rows: Sequence[tuple[int]] = frame.selectExpr(*COLUMNS).mapInArrow(counted, "records bigint").collect()
    return sum(row[0] for row in rows)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], Path(sys.argv[4]))
