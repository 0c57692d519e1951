"""The transform of the guide to records that no schema describes makes the rows that the guide shows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GUIDE = (Path(__file__).parents[3] / "docs" / "guide" / "nested.md").read_text("utf-8")
SHOWN = re.findall(r"^\| `(.+?)` \| `(\{.*?\})` \| .*\|$", GUIDE, re.MULTILINE)
OTHERS = ((None, "{}"), (b'{"user-id":"\xff"}', "{}"))
SCHEMA = (
    "key BINARY, value BINARY, _source STRUCT<topic: STRING, topic_id: STRING, partition: INT, offset: BIGINT, "
    "timestamp: TIMESTAMP> NOT NULL"
)


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_the_rows_are_those_that_the_guide_shows(spark: SparkSession, ansi: str) -> None:
    from millrace.adapters.sinks.postgres.types import target_columns
    from millrace.runtime.stream.transform import output_columns

    spark.conf.set("spark.sql.ansi.enabled", ansi)
    [code] = re.findall(r"^```python\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
    app: dict[str, Any] = {}
    exec(code, app)  # the guide's own, as a reader copies it
    assert len(SHOWN) == 10
    records = [(record.encode(), row) for record, row in SHOWN] + list(OTHERS)
    frame = spark.createDataFrame(
        [(None, value, ("web.orders", "A" * 22, 0, offset, None)) for offset, (value, _) in enumerate(records)], SCHEMA
    )

    made = app["transform"]({"web.orders": frame}, {})

    rows = [{name: value for name, value in row.asDict().items() if value is not None} for row in made.collect()]
    assert [row.pop("_source").offset for row in rows] == list(range(len(records)))
    assert [{name: str(value) for name, value in row.items()} for row in rows] == [
        json.loads(row) for _, row in records
    ]
    columns = target_columns(output_columns(made.schema, "web_orders"), "the guide")
    assert [(column.name, column.type) for column in columns] == [
        ("user_id", "text"),
        ("amount", "numeric(12,2)"),
        ("city", "text"),
        ("items", "text"),
    ]
