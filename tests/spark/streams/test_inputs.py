"""Every record that is read is counted, and every bad one, once, whatever a transform does with its inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from millrace.domain.declaration.pipeline import Column, ColumnType, Topic, ValueFormat, ValueSchema
from millrace.domain.formats.undeclared import Undeclared

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from millrace.domain.sinks.batch import TaskResult, TaskResults
    from millrace.runtime.stream.inputs import Read

Inputs = Mapping[str, "DataFrame"]
PARTITIONS = 3
LEFT, RIGHT = "left", "right"


class Batch:
    """One batch of two topics; who reads a partition of one leaves a line in a file."""

    def __init__(self, spark: SparkSession, folder: Path, *, extra: str = "") -> None:
        self._spark = spark
        self._extra = extra
        self._file = folder / "reads"
        self.inputs = {LEFT: self._decoded(LEFT, good=9, bad=3), RIGHT: self._decoded(RIGHT, good=6, bad=6)}

    def copy(self, transform: Callable[[Inputs], DataFrame]) -> tuple[Read, TaskResults]:
        from millrace.runtime.stream.inputs import write_counted
        from millrace.runtime.stream.writing import writing

        self._file.unlink(missing_ok=True)
        return write_counted(self.inputs, lambda good: writing(transform(good), _counted))

    def reads(self) -> Counter[str]:
        """How often each topic's partitions were read."""
        return Counter(self._file.read_text().split())

    def _decoded(self, topic: str, *, good: int, bad: int) -> DataFrame:
        from millrace.runtime.stream.source import RAW_TYPE, decoded
        from support.streams.raw_records import raw_frame  # workers import this module, and have no `support`

        values = [f'{{"id": {number}{self._extra}}}'.encode() for number in range(good)] + [b"not json"] * bad
        rows = [(topic, number % PARTITIONS, number, 0, b"k", value, []) for number, value in enumerate(values)]
        raw = raw_frame(self._spark, rows, PARTITIONS)
        file = str(self._file)

        def noted(blocks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            with open(file, "a") as reads:
                reads.write(f"{topic}\n")
            yield from blocks

        return decoded(raw.mapInArrow(noted, RAW_TYPE), _topic(topic), f"id of {topic}")


def _counted(blocks: Iterator[pa.RecordBatch], attempt: int) -> TaskResult:
    """A sink that takes everything."""
    from millrace.domain.sinks.batch import TaskResult

    return TaskResult(sum(len(block) for block in blocks))


def _topic(name: str) -> Topic:
    schema = ValueSchema(ValueFormat.JSON, (Column("id", ColumnType.INT, required=True),))
    return Topic(name=name, pipeline="p", partitions=PARTITIONS, value=schema)


@pytest.fixture
def batch(spark: SparkSession, tmp_path: Path) -> Batch:
    return Batch(spark, tmp_path)


def selected(inputs: Inputs) -> DataFrame:
    return inputs[LEFT].where("id % 2 = 0").unionByName(inputs[RIGHT].selectExpr("id", "_source"))


def without_the_right(inputs: Inputs) -> DataFrame:
    return inputs[LEFT]


def joined_with_nothing(inputs: Inputs) -> DataFrame:
    return inputs[LEFT].join(inputs[RIGHT].where("id < 0").select("id"), "id")


def optimised_away(inputs: Inputs) -> DataFrame:
    return inputs[LEFT].unionByName(inputs[RIGHT].where("1 = 0"))


def one_of_each(inputs: Inputs) -> DataFrame:
    return inputs[LEFT].limit(1).unionByName(inputs[RIGHT].limit(1))


def left_twice(inputs: Inputs) -> DataFrame:
    return inputs[LEFT].unionByName(inputs[LEFT].where("id < 3")).unionByName(inputs[RIGHT].where("id = 1"))


def asked_beside(inputs: Inputs) -> DataFrame:
    inputs[RIGHT].limit(1).createOrReplaceTempView("some_of_the_right")
    return inputs[LEFT].unionByName(inputs[RIGHT]).where("id >= (SELECT min(id) FROM some_of_the_right)")


OF_EACH = {(topic, partition): 4 for topic in (LEFT, RIGHT) for partition in range(PARTITIONS)}


@pytest.mark.parametrize(
    ("transform", "rows"),
    [
        pytest.param(selected, 5 + 6, marks=pytest.mark.full),
        pytest.param(without_the_right, 9, marks=pytest.mark.full),
        pytest.param(joined_with_nothing, 0, marks=pytest.mark.full),
        (optimised_away, 9),
        pytest.param(one_of_each, 2, marks=pytest.mark.full),
        pytest.param(left_twice, 9 + 3 + 1, marks=pytest.mark.full),
        pytest.param(asked_beside, 9 + 6, marks=pytest.mark.full),
    ],
)
def test_every_input_is_read_once_and_counted_to_its_end(
    batch: Batch, transform: Callable[[Inputs], DataFrame], rows: int
) -> None:
    from millrace.runtime.stream.inputs import Read

    read, done = batch.copy(transform)
    assert read == Read(records=24, bad=9, of_each=OF_EACH)
    assert done.rows == rows
    assert batch.reads() == {LEFT: PARTITIONS, RIGHT: PARTITIONS}


@pytest.mark.parametrize(
    ("transform", "rows"), [(selected, 5 + 6), (left_twice, 9 + 3 + 1)], ids=["on the way", "first"]
)
def test_every_input_is_read_once_and_undeclared_fields_of_all_blocks_are_counted_by_topic(
    spark: SparkSession, tmp_path: Path, transform: Callable[[Inputs], DataFrame], rows: int
) -> None:
    """Blocks of two records: the counts of blocks that are alike add up, and records that are filtered count too."""
    from millrace.runtime.stream.inputs import Read

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 2)
    try:
        batch = Batch(spark, tmp_path, extra=',"Id": 1, "größe": {"id": 2}')
        read, done = batch.copy(transform)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    undeclared = {LEFT: Undeclared(9, {"Id": 9, "größe": 9}), RIGHT: Undeclared(6, {"Id": 6, "größe": 6})}
    assert read == Read(records=24, bad=9, of_each=OF_EACH, undeclared=undeclared)
    assert done.rows == rows
    assert batch.reads() == {LEFT: PARTITIONS, RIGHT: PARTITIONS}


def test_counts_do_not_depend_on_how_the_app_has_spark_write_json(spark: SparkSession, tmp_path: Path) -> None:
    spark.conf.set("spark.sql.jsonGenerator.ignoreNullFields", "false")
    try:
        read, _ = Batch(spark, tmp_path, extra=',"Id": 1').copy(selected)
    finally:
        spark.conf.unset("spark.sql.jsonGenerator.ignoreNullFields")
    assert {topic: counts.records for topic, counts in read.undeclared.items()} == {LEFT: 9, RIGHT: 6}


def test_counts_of_two_reads_add_up_by_topic() -> None:
    from millrace.runtime.stream.inputs import Read

    one = Read(2, 1, 0, {(LEFT, 0): 2}, {LEFT: Undeclared(1, {"a": 1})})
    two = Read(3, 0, 1, {(LEFT, 0): 3}, {LEFT: Undeclared(2, {"a": 1, "b": 2}), RIGHT: Undeclared(1, {"c": 1})})
    together = {LEFT: Undeclared(3, {"a": 2, "b": 2}), RIGHT: Undeclared(1, {"c": 1})}
    assert one + two == Read(5, 1, 1, {(LEFT, 0): 5}, together)


def test_only_what_reads_to_the_end_is_counted_on_the_way(batch: Batch, spark: SparkSession) -> None:
    """What is counted first is kept; nothing is kept for a transform that selects, filters and explodes."""
    from pyspark.sql import functions as F

    from millrace.runtime.stream.inputs import Read

    def plain(inputs: Inputs) -> DataFrame:
        cached.append(spark._jsparkSession.sharedState().cacheManager().isEmpty())
        exploded = inputs[LEFT].withColumn("_ordinal", F.explode(F.array(F.lit(0), F.lit(1))))
        return exploded.unionByName(inputs[RIGHT].withColumn("_ordinal", F.lit(0)))

    cached: list[bool] = []
    read, done = batch.copy(plain)
    assert read == Read(records=24, bad=9, of_each=OF_EACH)
    assert done.rows == 2 * 9 + 6
    assert cached == [True]
    batch.copy(one_of_each)
    assert spark._jsparkSession.sharedState().cacheManager().isEmpty()  # and given back


def test_what_comes_before_the_writing_knows_all_counts_and_may_keep_it_from_being_done(batch: Batch) -> None:
    """As quarantine that is away does for a sink whose rows are seen at once."""
    from millrace.runtime.stream.inputs import write_counted
    from millrace.runtime.stream.writing import writing

    told: list[Read] = []
    wrote = batch._file.with_name("wrote")

    def noted(blocks: Iterator[pa.RecordBatch], attempt: int) -> TaskResult:
        wrote.touch()
        return _counted(blocks, attempt)

    def away(read: Read) -> None:
        told.append(read)
        assert not wrote.exists()
        raise ConnectionError

    def of_good(good: Inputs) -> DataFrame:
        return writing(selected(good), noted)

    with pytest.raises(ConnectionError):
        write_counted(batch.inputs, of_good, away)
    assert not wrote.exists()
    batch._file.unlink()
    read, done = write_counted(batch.inputs, of_good, told.append)
    assert told == [read, read]
    assert (read.records, read.bad, done.rows) == (24, 9, 11)
    assert batch.reads() == {LEFT: PARTITIONS, RIGHT: PARTITIONS}


def test_a_stream_that_reads_what_it_writes_leaves_that_out_and_nothing_else(spark: SparkSession) -> None:
    from millrace.runtime.stream.source import RAW_TYPE, without_own

    headers = (
        None,
        [],
        [("millrace.stream", b"p.s")],
        [("a", b"b"), ("millrace.stream", b"p.s"), ("millrace.ordinal", b"0")],
        [("millrace.stream", b"p.other")],
        [("millrace.stream", None)],
        [("millrace.streams", b"p.s")],
        [("a", b"p.s")],
    )
    rows = [("t", 0, number, 0, None, b"v", given) for number, given in enumerate(headers)]
    rows.append(("elsewhere", 0, 8, 0, None, b"v", [("millrace.stream", b"p.s")]))
    left = without_own(spark.createDataFrame(rows, RAW_TYPE), "p.s", ["t", "u"]).collect()
    assert [row.offset for row in left] == [0, 1, 4, 5, 6, 7, 8]


KEEPING = {
    "as it came": lambda left, right: left,
    "select and filter": lambda left, right: left.where("id > 1").withColumn("twice", F_("id * 2")),
    "explode": lambda left, right: left.selectExpr("posexplode(array(id, id)) as (_ordinal, id)", "_source"),
    "both once": lambda left, right: left.unionByName(right),
}
LOSING = {
    "one input twice": lambda left, right: left.where("id > 1").unionByName(left.where("id <= 1")),
    "another order": lambda left, right: left.sortWithinPartitions(F_("-id")),
    "other partitions": lambda left, right: left.repartition(2),
    "fewer partitions": lambda left, right: left.coalesce(1),
    "distinct": lambda left, right: left.distinct(),
    "a join": lambda left, right: left.join(right.selectExpr("id as other"), F_("id = other")),
    "limit": lambda left, right: left.limit(3),
}


def F_(text: str) -> Any:
    from pyspark.sql import functions as F

    return F.expr(text)


@pytest.mark.parametrize("what", [*KEEPING, *LOSING])
def test_whether_a_transform_keeps_the_order_of_its_inputs_is_seen_in_its_plan(spark: SparkSession, what: str) -> None:
    """A reader without a window would lose rows of one that does not."""
    from millrace.domain.declaration.pipeline import KafkaSink, Pipeline, Stream
    from millrace.runtime.stream.inputs import keeps_order

    read = (LEFT, RIGHT) if what in ("both once", "a join") else (LEFT,)
    stream = Stream("s", "p", "app", read, KafkaSink(("t",)), "g")
    pipeline = Pipeline("p", "o", "k", (_topic(LEFT), _topic(RIGHT)), (stream,))
    make = {**KEEPING, **LOSING}[what]
    assert keeps_order(spark, pipeline, stream, lambda given, _: make(given[LEFT], given.get(RIGHT))) is (
        what in KEEPING
    )
