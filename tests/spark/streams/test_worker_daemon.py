"""The modules that a new worker finds imported, and the places that they came from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

IMPORTED = (
    "pandas",
    "psycopg",
    "pyarrow.csv",
    "millrace.adapters.sinks.postgres.copy",
    "millrace.runtime.stream.bad_records",
)


def test_a_worker_has_all_imported_and_takes_pyspark_from_no_archive(spark: SparkSession) -> None:
    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import sys

        import py4j
        import pyspark

        missing = [name for name in IMPORTED if name not in sys.modules]
        for batch in batches:
            said = json.dumps([missing, pyspark.__file__, py4j.__file__])
            yield pa.RecordBatch.from_pydict({"said": [said] * batch.num_rows})

    [(said,)] = spark.range(1).mapInArrow(look, "said STRING").collect()
    missing, *files = json.loads(said)
    assert missing == []
    assert all(Path(file).is_file() for file in files), files  # what is in an archive is none
