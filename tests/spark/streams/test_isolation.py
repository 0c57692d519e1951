"""The records that a transform raises on are named, whatever the failure is; nothing else is blamed on a record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

from millrace.domain.declaration.pipeline import Column, ColumnType, Topic, ValueFormat, ValueSchema
from millrace.errors import DeclarationError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from millrace.domain.topics.offsets import Source

LEFT, RIGHT = "left", "right"
PARTITIONS = 2
GOOD = 6  # of each topic: a search tries a batch some ten times, and each try is a query that Spark compiles
Inputs = Mapping[str, "DataFrame"]


class Batch:
    """Six good records and three bad ones of each of two topics, `id` counted from 0."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self.inputs = {name: self._decoded(name) for name in (LEFT, RIGHT)}

    def good(self) -> Inputs:
        from millrace.runtime.stream.inputs import good_records

        return good_records(self.inputs)

    def failing(self, transform: Callable[[Inputs], DataFrame], **more: Any) -> dict[Source, str]:
        """What is found after the batch has failed."""
        from millrace.runtime.stream.isolation import failing_records, read_to_the_end

        with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever Spark has for it
            read_to_the_end(transform(self.good()))
        return failing_records(self.inputs, transform, caught.value, where="app a", **more)

    def _decoded(self, topic: str) -> DataFrame:
        from millrace.runtime.stream.source import decoded
        from support.streams.raw_records import raw_frame  # workers import this module, and have no `support`

        values = [b'{"id": %d}' % number for number in range(GOOD)] + [b"not json"] * 3
        rows = [(topic, number % PARTITIONS, number, 0, b"k", value, []) for number, value in enumerate(values)]
        raw = raw_frame(self._spark, rows, PARTITIONS)
        schema = ValueSchema(ValueFormat.JSON, (Column("id", ColumnType.INT, required=True),))
        return decoded(raw, Topic(name=topic, pipeline="p", partitions=PARTITIONS, value=schema), f"id of {topic}")


def place(topic: str, number: int) -> Source:
    return f"id of {topic}", number % PARTITIONS, number


@pytest.fixture
def batch(spark: SparkSession) -> Batch:
    return Batch(spark)


def overflowing(inputs: Inputs) -> DataFrame:
    from pyspark.sql import functions as F

    number = F.when(F.col("id").isin(2, 5), 10**6).otherwise(F.col("id") % 10)
    return (
        inputs[LEFT]
        .select((number * 1000).cast("decimal(6,2)").alias("x"), "_source")
        .unionByName(inputs[RIGHT].selectExpr("cast(id as decimal(6,2)) as x", "_source"))
    )


def raising_in_python(inputs: Inputs) -> DataFrame:
    from pyspark.sql import functions as F

    def checked(number: int) -> int:
        if number == 5:
            raise ValueError("5 is no number\nthat I like")
        return number

    return inputs[LEFT].unionByName(inputs[RIGHT].select(F.udf(checked, "int")("id").alias("id"), "_source"))


def counting_too_long(inputs: Inputs) -> DataFrame:
    return inputs[LEFT].selectExpr("timestamp_seconds(if(id = 5, 9223372036854775807, id)) as x", "_source")


def test_each_record_that_the_transform_raises_on_is_named_with_its_reason(batch: Batch) -> None:
    # First a failure that Spark tells without its place in the app: its loggers are not the same for both kinds.
    assert batch.failing(counting_too_long) == {place(LEFT, 5): "java.lang.ArithmeticException: long overflow"}
    found = batch.failing(overflowing)
    assert found.keys() == {place(LEFT, 2), place(LEFT, 5)}
    for why in found.values():
        assert "[NUMERIC_VALUE_OUT_OF_RANGE" in why
        assert "1000000000" in why
        assert "ansi" not in why
    [one] = batch.failing(lambda inputs: overflowing(inputs).repartition(2).sort("x"), one=True)
    assert one in found


@pytest.mark.full  # each try starts Python workers again, which takes seconds
def test_a_python_function_that_raises_is_told_by_its_last_words(batch: Batch) -> None:
    assert batch.failing(raising_in_python) == {place(RIGHT, 5): "ValueError: 5 is no number that I like"}


def test_records_left_out_are_those_that_failed(batch: Batch) -> None:
    from millrace.runtime.stream.isolation import read_to_the_end, without

    left = without(batch.good(), {place(LEFT, 2): "raised", place(LEFT, 5): "raised"})
    assert [left[name].count() for name in (LEFT, RIGHT)] == [GOOD - 2, GOOD]
    read_to_the_end(overflowing(left))


def test_a_transform_that_looks_at_several_records_at_once_is_not_searched(batch: Batch) -> None:
    """Half of a batch has no partner for its records: each of them would fail by itself."""
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F

    def joined(inputs: Inputs) -> DataFrame:
        other = inputs[RIGHT].where("id <> 3").select(F.col("id").alias("other"))
        found = inputs[LEFT].join(other, F.expr("other = id"), "left")
        found = found.observe("of the app itself", F.count(F.lit(1)).alias("rows"))
        return found.selectExpr("if(other IS NULL, raise_error(concat('none for ', id)), id) as id", "_source")

    with pytest.raises(PySparkException, match="none for 3"):
        batch.failing(joined)


@pytest.mark.full
def test_a_failure_that_meets_every_record_is_blamed_on_none(batch: Batch) -> None:
    from pyspark.errors import PySparkException

    def always(inputs: Inputs) -> DataFrame:
        both = inputs[LEFT].unionByName(inputs[RIGHT])
        return both.selectExpr("if(id >= 0, raise_error('the service is away'), id) as id", "_source")

    with pytest.raises(PySparkException, match="the service is away"):
        batch.failing(always)


def test_a_sink_that_fails_is_not_blamed_on_records(batch: Batch) -> None:
    from millrace.runtime.stream.isolation import failing_records

    def fails(blocks: Iterator[pa.RecordBatch], attempt: int) -> Any:
        for _ in blocks:
            raise RuntimeError("the writer itself")

    from pyspark.errors import PySparkException

    from millrace.runtime.stream.writing import writing, written

    with pytest.raises(PySparkException, match="the writer itself") as caught:
        written(writing(batch.good()[LEFT], fails))
    with pytest.raises(PySparkException, match="the writer itself"):
        failing_records(batch.inputs, lambda inputs: inputs[LEFT], caught.value, where="app a")
    with pytest.raises(MemoryError):
        failing_records(batch.inputs, lambda inputs: inputs[LEFT], MemoryError("this process"), where="app a")


def test_more_failing_records_than_the_bound_end_the_app_by_name(batch: Batch) -> None:
    def two_of_them(inputs: Inputs) -> DataFrame:
        return inputs[LEFT].selectExpr("if(id < 2, raise_error(concat('no ', id)), id) as id", "_source")

    with pytest.raises(DeclarationError, match=r"for example left/0@0: \[USER_RAISED_EXCEPTION\] no 0"):
        batch.failing(two_of_them, most=1)


def test_a_stop_ends_the_search(batch: Batch) -> None:
    class StopError(Exception):
        pass

    steps: list[str] = []

    def on_try(step: str) -> None:
        steps.append(step)
        if len(steps) == 3:
            raise StopError

    with pytest.raises(StopError):
        batch.failing(overflowing, on_try=on_try)
    assert steps[0].endswith(f"try 1, {2 * GOOD} records")
