"""What records without a value are to streams that upsert, and to others: what a transform is given, and is counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millrace.domain.declaration.pipeline import (
    BYTES_COLUMNS,
    Column,
    ColumnType,
    Key,
    Pipeline,
    PostgresSink,
    SinkMode,
    Stream,
    Topic,
    ValueFormat,
    ValueSchema,
)
from millrace.domain.sinks.batch import TaskResult
from millrace.errors import DeclarationError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = (Column("name", ColumnType.STRING, required=True), Column("id", ColumnType.STRING, required=True))
DELETING = Topic(
    name="people", pipeline="p", key=Key("id"), value=ValueSchema(ValueFormat.JSON, COLUMNS, tombstones=True)
)
ORDINARY = replace(DELETING, value=ValueSchema(ValueFormat.JSON, COLUMNS))
TOO_LATE_MS = 253_402_300_800_000
RECORDS = (
    (b"1", b'{"id":"1","name":"Ada"}', 1_000),
    (b"1", None, 2_000),
    (b"\xff", b'{"id":"2","name":"Bo"}', 3_000),
    (b"\xff", None, 4_000),
    (None, None, 5_000),
    (None, b'{"id":"3","name":"Cy"}', 6_000),
    (b"4", b"", 7_000),
    (b"5", b"nope", 8_000),
    (b"6\0", None, 9_000),
    (b"7", None, TOO_LATE_MS),
    ("\u00fc".encode(), None, 10_000),
    ("\u00fc".encode(), b'{"id":"\\u00fc","name":"Di"}', 11_000),
    (b'"1"', b'{"id":"1","name":"Ed"}', 12_000),
    (b'{"id":"1"}', b'{"id":"1","name":"Flo"}', 13_000),
    (b"1 ", b'{"id":"1","name":"Gus"}', 14_000),
    (b"\xef\xbb\xbf1", b'{"id":"1","name":"Hal"}', 15_000),
)
GOOD = [
    (0, "1", "Ada", False),
    (1, "1", None, True),
    (10, "\u00fc", None, True),
    (11, "\u00fc", "Di", False),
]
BAD = {
    2: "key_mismatch",
    3: "invalid_utf8",
    4: "null_key",
    5: "null_key",
    6: "empty_value",
    7: "not_json",
    8: "nul_character",
    9: "far_timestamp",
    **dict.fromkeys(range(12, 16), "key_mismatch"),
}


def raw(spark: SparkSession) -> DataFrame:
    from support.streams.raw_records import raw_frame  # workers import this module, and have no `support`

    rows = [("people", 0, number, at, key, value, []) for number, (key, value, at) in enumerate(RECORDS)]
    return raw_frame(spark, rows, 2)


def test_a_transform_is_given_deletes_beside_rows_and_all_are_counted(spark: SparkSession) -> None:
    from millrace.runtime.stream.inputs import Read, write_counted
    from millrace.runtime.stream.source import decoded
    from millrace.runtime.stream.transform import input_type
    from millrace.runtime.stream.writing import writing

    written: list[DataFrame] = []

    def write(good: Mapping[str, DataFrame]) -> DataFrame:
        written.append(good["people"])
        return writing(good["people"], counted)

    read, done = write_counted({"people": decoded(raw(spark), DELETING, "id")}, write)
    assert read == Read(records=len(RECORDS), bad=len(BAD), of_each={("people", 0): len(RECORDS)})
    assert done.rows == len(GOOD)
    [given] = written
    rows = given.select("_source.offset", "id", "name", "_deleted").orderBy("offset").collect()
    assert [tuple(row) for row in rows] == GOOD
    assert DELETING.value is not None
    assert given.schema.simpleString() == input_type(DELETING.value).simpleString()


def counted(blocks: Iterator[pa.RecordBatch], attempt: int) -> TaskResult:
    """A sink that takes everything."""
    return TaskResult(sum(len(block) for block in blocks))


def test_the_bad_ones_are_found_again(spark: SparkSession) -> None:
    from millrace.runtime.stream.bad_records import find_bad_records
    from millrace.runtime.stream.plain_read import RAW_SCHEMA

    blocks = raw(spark).toArrow().cast(RAW_SCHEMA).to_batches()
    found = [
        row for block in find_bad_records({"people": (DELETING, "id")}, {})(iter(blocks)) for row in block.to_pylist()
    ]
    assert {row["_offset"]: row["rule"] for row in found} == BAD
    assert {row["_offset"]: row["key"] for row in found} == {offset: RECORDS[offset][0] for offset in BAD}


def test_keys_go_to_python_only_where_they_are_looked_at(spark: SparkSession) -> None:
    from millrace.runtime.stream.source import _key_as_needed

    assert ORDINARY.value is not None
    assert DELETING.value is not None
    [ordinary, deleting, untouched] = (
        raw(spark).select(_key_as_needed(schema)).toPandas().to_dict("list")
        for schema in (ORDINARY.value, DELETING.value, ValueSchema(ValueFormat.BYTES, BYTES_COLUMNS))
    )
    keys = [key for key, _, _ in RECORDS]
    assert ordinary == {"has_key": [key is not None for key in keys]}
    assert deleting == untouched == {"key": keys}


def declared(mode: SinkMode, topic: Topic = DELETING) -> tuple[Pipeline, Stream]:
    sink = PostgresSink("sink", "a.people", mode, ("id",) if mode is SinkMode.UPSERT else ())
    stream = Stream(name="people", pipeline="p", app="people", reads=("people",), sink=sink, group="g")
    return Pipeline(name="p", owner="o", kafka="k", topics=(topic,), streams=(stream,)), stream


@pytest.mark.parametrize(("mode", "topic"), [(SinkMode.APPEND, DELETING), (SinkMode.UPSERT, ORDINARY)])
def test_without_it_or_where_rows_are_appended_nothing_is_deleted_and_nothing_marked(
    spark: SparkSession, mode: SinkMode, topic: Topic
) -> None:
    from millrace.runtime.formats.plain_decoder import plain_decoder_of
    from millrace.runtime.stream.bad_records import find_bad_records
    from millrace.runtime.stream.plain_read import RAW_SCHEMA
    from millrace.runtime.stream.source import decoded
    from millrace.runtime.stream.transform import output_type

    pipeline, stream = declared(mode, topic)
    topics = pipeline.topics_of(stream)
    assert topics == {"people": ORDINARY}
    rows = decoded(raw(spark), topics["people"], "id")
    assert rows.columns == ["name", "id", "_source", "_bad", "_truncated", "_undeclared"]
    good = [row.offset for row in rows.where("not _bad").select("_source.offset").orderBy("offset").collect()]
    assert good == [0, 2, *range(11, 16)]
    again = decoded(raw(spark), topics["people"], "id", plain_decoder_of)
    assert sorted(again.collect(), key=str) == sorted(rows.collect(), key=str)
    assert output_type(spark, pipeline, stream, lambda inputs, _: inputs["people"]).names == ["name", "id", "_source"]
    blocks = raw(spark).toArrow().cast(RAW_SCHEMA).to_batches()
    found = [
        row
        for block in find_bad_records({"people": (topics["people"], "id")}, {})(iter(blocks))
        for row in block.to_pylist()
    ]
    without_value = {number for number, (_, value, _) in enumerate(RECORDS) if value is None}
    assert {row["_offset"] for row in found if row["rule"] == "null_value"} == without_value
    assert {row["_offset"] for row in found} == set(range(len(RECORDS))) - set(good)


def checked(spark: SparkSession, mode: SinkMode, columns: list[str], topic: Topic = DELETING) -> list[str]:
    """The columns of an app that selects these, where its driver takes it."""
    from millrace.runtime.stream.transform import output_columns, output_type

    pipeline, stream = declared(mode, topic)

    def select(inputs: Mapping[str, DataFrame], tables: Mapping[str, DataFrame]) -> DataFrame:
        return inputs["people"].selectExpr(*columns)

    found = output_type(spark, pipeline, stream, select)
    output_columns(found, stream.app, ("_timestamp", "_deleted") if mode is SinkMode.UPSERT else ())
    return list(found.names)


def test_a_start_names_the_inputs_there_are_to_an_app_that_asks_for_another(
    spark: SparkSession, tmp_path: Path
) -> None:
    from millrace.runtime.stream.inputs import keeps_order
    from millrace.runtime.stream.transform import load_transform, output_type

    pipeline, stream = declared(SinkMode.APPEND, ORDINARY)
    path = tmp_path / "spark_apps" / "people" / "transform.py"
    path.parent.mkdir(parents=True)
    path.write_text('def transform(inputs, tables):\n    return inputs["persons"]\n')
    with pytest.raises(DeclarationError, match=r"the input 'persons', but the stream reads people"):
        output_type(spark, pipeline, stream, load_transform(tmp_path, "people"))
    path.write_text('def transform(inputs, tables):\n    return inputs["people"]\n')
    assert keeps_order(spark, pipeline, stream, load_transform(tmp_path, "people"))


def test_an_app_may_lose_deletes_only_where_they_delete_nothing(spark: SparkSession) -> None:
    kept, lost = ["id", "_deleted", "_source"], ["id", "_source"]
    assert checked(spark, SinkMode.UPSERT, kept) == kept
    assert checked(spark, SinkMode.APPEND, lost) == lost
    assert checked(spark, SinkMode.UPSERT, lost, ORDINARY) == lost
    with pytest.raises(DeclarationError, match="`_deleted` cannot be resolved"):
        checked(spark, SinkMode.APPEND, kept)
    with pytest.raises(DeclarationError, match="app people lost `_deleted`: a deleted key would") as caught:
        checked(spark, SinkMode.UPSERT, lost)
    assert caught.value.next_step == "keep the column `_deleted` in every select"


@pytest.mark.parametrize("mode", SinkMode)
def test_whether_a_row_is_deleted_is_yes_or_no(spark: SparkSession, mode: SinkMode) -> None:
    with pytest.raises(DeclarationError, match="app people returns `_deleted` as string, not boolean"):
        checked(spark, mode, ["id", "'yes' AS _deleted", "_source"])


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["_deleted", "_deleted"], "`_deleted` twice"),
        (["_deleted", "_source"], "`_source` twice"),
        (["_deleted", "1 AS _ordinal", "2 AS _ordinal"], "`_ordinal` twice"),
        (["_deleted", "name", "id"], "`id` twice"),
        (["_deleted", "name AS ID"], "`id` and `ID`, which are one name to Spark"),
        (["_deleted", "false AS _DELETED"], "`_deleted` and `_DELETED`, which are one name to Spark"),
    ],
)
def test_a_column_is_given_once(spark: SparkSession, more: list[str], told: str) -> None:
    with pytest.raises(DeclarationError, match=f"app people returns the column {told}"):
        checked(spark, SinkMode.UPSERT, ["id", "_source", *more])


def test_a_null_in_deleted_is_not_taken_for_a_row(spark: SparkSession) -> None:
    from millrace.runtime.stream.source import decoded
    from millrace.runtime.stream.writing import with_sources

    good = decoded(raw(spark), DELETING, "id").where("not _bad")
    unsure = good.selectExpr("id", "_source", "_deleted AND name != 'x' AS _deleted")
    [given, without] = (
        with_sources(output, ["id"], ("_timestamp", "_deleted")).orderBy("_offset").collect()
        for output in (unsure, unsure.drop("_deleted"))
    )
    assert [(row._offset, row._deleted) for row in given] == [(0, False), (1, None), (10, None), (11, False)]
    assert [row._deleted for row in without] == [False] * len(GOOD)
