"""The files a new pipeline begins with: declaration, DAG file, app, test, rules, and sample records for its topic."""

from __future__ import annotations

import json
import re
from pathlib import Path

from millrace.declarations.fields import PIPELINE_NAME, RESERVED_PIPELINES, RESERVED_SCHEMAS
from millrace.declarations.project import file_of
from millrace.declarations.quality import file_of as rules_file_of
from millrace.domain.formats.printable import shown
from millrace.errors import Code, RefusedError, UsageError

_DAG = '''\
"""The DAGs of the pipeline {name}, made from include/pipelines/{name}.yaml."""

from millrace.airflow.pipeline import pipeline_dags

globals().update(pipeline_dags("{name}"))
'''
_OWN_TOPIC = """\
pipeline: {name}
owner: {owner}
topics:
  {topic}:
    partitions: 2
    key: {{field: id}}
    value: {{format: json, schema: "id STRING NOT NULL, happened_at TIMESTAMP NOT NULL, amount DECIMAL(12,2)"}}
streams:
  events:
    app: {app}
    reads: [{topic}]
    writes: {{postgres: {{connection: millrace_sink, table: {table}}}}}
    quality: {{rules: {app}, every: 1h}}
sources:
  sample:
    program: {name}_sample
    writes: {topic}
"""
_OTHER_TOPIC = """\
pipeline: {name}
owner: {owner}
streams:
  events:
    app: {app}
    reads: [{topic}]
    writes: {{postgres: {{connection: millrace_sink, table: {table}}}}}
"""
_RULES = """\
# What the rows of {table} have to be; docs/reference/rules.md has every kind of rule.
rules:
  id_given: {{not_null: id}}
  id_shape: {{regex: {{column: id, matches: "^[a-z0-9-]+$"}}}}
  amount_type: {{type: {{column: amount, is: "numeric(12,2)"}}}}
  amount_sane: {{range: {{column: amount, min: 0, max: 1000000}}, severity: warn}}
  happened_in_order: {{condition: "happened_at > timestamptz '2000-01-01 00:00:00+00'"}}
  once: {{unique: [id, happened_at], severity: warn}}
"""
_APP = '''\
"""What the stream {name}.events makes of each record of {topic}."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame


def transform(inputs: Mapping[str, DataFrame], tables: Mapping[str, DataFrame]) -> DataFrame:
    """One row per record, as it came. Pure, no I/O; every row keeps `_source`, which says where it came from.

    Args:
        inputs: `{topic}` with its declared columns and `_source`.
        tables: not used.
    """
    events = inputs["{topic}"]
    return events
'''
_SOURCE = '''\
"""Sample records for the topic {topic}, to be replaced by your own producers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from millrace.domain.topics.sources import SourceRecord

RECORDS = 1000
FIRST = datetime(2026, 1, 1, tzinfo=UTC)


def records() -> Iterator[SourceRecord]:
    """1,000 events of 50 ids, a second apart, always the same and in the same order."""
    for number in range(RECORDS):
        happened_at = FIRST + timedelta(seconds=number)
        key = f"id-{{number % 50:02}}"
        value = {{"id": key, "happened_at": happened_at.isoformat(), "amount": number % 100 + 0.5}}
        # The record's own timestamp is now: retention by time would delete old ones
        yield SourceRecord(key.encode(), json.dumps(value).encode(), datetime.now(UTC))
'''
_TEST = '''\
"""The transform of {name}.events as a batch on a small frame."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from millrace import declarations
from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
APP = ROOT / "spark_apps" / "{app}" / "transform.py"
SOURCE = "_source STRUCT<topic: STRING, topic_id: STRING, partition: INT, offset: BIGINT, timestamp: TIMESTAMP>"


def test_each_record_becomes_one_row_that_keeps_its_source(spark: SparkSession) -> None:
    """`spark` is the run's own session, from tests/spark/conftest.py."""
    loaded = importlib.util.spec_from_file_location("{app}_transform", APP)
    app = importlib.util.module_from_spec(loaded)
    loaded.loader.exec_module(app)
    value = declarations.load_pipeline(ROOT, "{name}").topic("{topic}").value
    # a schema without NOT NULL, so that one row of nulls will do
    columns = ", ".join(f"{{column.name}} {{column.sql_type}}" for column in value.decoded)
    row = (*(None for _ in value.decoded), ("{topic}", "id", 0, 7, None))

    events = spark.createDataFrame([row], f"{{columns}}, {{SOURCE}}")
    rows = app.transform({{"{topic}": events}}, {{}}).collect()

    assert [each["_source"]["offset"] for each in rows] == [7]
'''


def starter(name: str, *, owner: str = "my-team", reads: str | None = None) -> dict[str, str]:
    """The files of a new pipeline, by their paths from the project's root.

    Args:
        name: the pipeline's name.
        owner: who answers for it.
        reads: a topic that another pipeline declares; None makes a topic of its own, fed by sample records.

    Raises:
        UsageError: a pipeline cannot have this name.
    """
    if not PIPELINE_NAME.fullmatch(name) or name in RESERVED_PIPELINES:
        rule = "a lower-case letter and up to 23 of a-z, 0-9 and _, and not `millrace` or `platform`"
        raise UsageError(f"`{shown(name)}` cannot be a pipeline's name", next_step=f"choose {rule}")
    if not 0 < len(owner.strip()) <= 100 or not owner.isprintable():
        raise UsageError("the owner is empty, too long or not printable", next_step="name a team or a person")
    reserved = name in RESERVED_SCHEMAS or name.startswith("pg_")
    words = {
        "name": name,
        "owner": owner if re.fullmatch(r"[a-z]{2,}(-[a-z]+)+", owner) else json.dumps(owner, ensure_ascii=False),
        "topic": reads or f"{name}.events",
        "app": f"{name}_events",
        "table": f"{'data_' if reserved else ''}{name}.events",
    }
    files = {
        file_of(name): (_OTHER_TOPIC if reads else _OWN_TOPIC).format(**words),
        f"dags/{name}.py": _DAG.format(**words),
        f"spark_apps/{name}_events/transform.py": _APP.format(**words),
        f"tests/spark/test_{name}_events.py": _TEST.format(**words),
    }
    if reads is None:
        files[rules_file_of(f"{name}_events")] = _RULES.format(**words)
        files[f"sources/{name}_sample.py"] = _SOURCE.format(**words)
    return files


def write_starter(root: Path, files: dict[str, str]) -> None:
    """Write the files of a new pipeline.

    Guarantees:
        Nothing that exists is changed.

    Raises:
        RefusedError: one of them exists already; none is written then.
    """
    for path in files:
        if (root / path).exists():
            raise RefusedError(
                "the file already exists",
                where=path,
                next_step="choose another name, or delete it",
                code=Code.ALREADY_EXISTS,
            )
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        with (root / path).open("x", encoding="utf-8") as file:
            file.write(text)
