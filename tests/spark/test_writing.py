"""What Spark's tasks report of their writing, and what shows of what they were given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from millrace.domain.sinks import TaskResult, TaskResults
from millrace.errors import SinkExhaustedError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

SECRET = "kept-to-itself"
TASKS, ROWS = 3, 30


@dataclass(frozen=True)
class Refusing:
    """Takes every row but the last of its task, and fails where it is told to."""

    password: str = field(repr=False)
    fails: type[Exception] | None = None

    def __call__(self, blocks: Iterator[pa.RecordBatch], attempt: int) -> TaskResult:
        ids = [one for block in blocks for one in block.column("id").to_pylist()]
        if self.fails is SinkExhaustedError and 0 in ids:
            raise SinkExhaustedError("no room", where="there", next_step="make room")
        if self.fails is RuntimeError and 0 in ids:
            raise RuntimeError("a fault of the writer's own")
        return TaskResult(len(ids) - 1, {("t", 0, ids[-1]): f"by {attempt}"})


def test_each_task_reports_once_what_it_wrote_and_what_was_refused(spark: SparkSession) -> None:
    from millrace.runtime.writing import writing, written

    done = written(writing(spark.range(0, ROWS, 1, TASKS), Refusing(SECRET)))
    assert len(set(done.attempts)) == TASKS
    each = ROWS // TASKS
    refused = {
        ("t", 0, last): f"by {id_}" for last, id_ in zip(range(each - 1, ROWS, each), done.attempts, strict=True)
    }
    assert done == TaskResults(done.attempts, ROWS - TASKS, refused)


def test_what_a_batch_may_wait_for_comes_back_as_what_it_was(spark: SparkSession) -> None:
    from millrace.runtime.writing import writing, written

    with pytest.raises(SinkExhaustedError) as caught:
        written(writing(spark.range(0, ROWS, 1, TASKS), Refusing(SECRET, SinkExhaustedError)))
    assert (caught.value.what, caught.value.where, caught.value.next_step) == ("no room", "there", "make room")


def test_a_fault_of_the_writer_is_no_failure_of_the_sink(spark: SparkSession) -> None:
    from pyspark.errors import PySparkException

    from millrace.runtime.writing import writing, written

    with pytest.raises(PySparkException, match="a fault of the writer's own") as caught:
        written(writing(spark.range(0, ROWS, 1, TASKS), Refusing(SECRET, RuntimeError)))
    assert SECRET not in str(caught.value)


def test_no_plan_shows_what_a_writer_brings_along(spark: SparkSession) -> None:
    from millrace.runtime.writing import writing, written

    frame = writing(spark.range(0, ROWS, 1, TASKS), Refusing(SECRET))
    written(frame)
    plans = frame._jdf.queryExecution()
    shown = [
        plans.toString(),
        plans.logical().toJSON(),
        plans.executedPlan().toJSON(),
        plans.executedPlan().treeString(),
    ]
    assert "MapInArrow" in shown[0]
    assert not [text for text in shown if SECRET in text]
