"""What a new worker finds imported, and from where."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

IMPORTED = ("pandas", "psycopg", "pyarrow.csv", "millrace.adapters.postgres_copy", "millrace.runtime.bad_records")


def test_a_worker_has_all_imported_and_takes_pyspark_from_no_archive(spark: SparkSession) -> None:
    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import sys

        import py4j
        import pyspark

        missing = [name for name in IMPORTED if name not in sys.modules]
        for batch in batches:
            said = [str([pyspark.__file__, py4j.__file__, *missing])] * batch.num_rows
            yield pa.RecordBatch.from_pydict({"said": said})

    [(said,)] = spark.range(1).mapInArrow(look, "said STRING").collect()
    assert ".zip" not in said
    assert said.count(",") == 1, f"not imported: {said}"
