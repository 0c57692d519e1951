"""What Spark's tasks report of their writing, and what shows of what they were given."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millrace.domain.sinks.batch import TaskResult, TaskResults
from millrace.errors import (
    Code,
    MillraceError,
    SinkExhaustedError,
    SinkFailedError,
    SinkRolledBackError,
    SinkUnreachableError,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

SECRET = "kept-to-itself"
TASKS, ROWS = 3, 30
LARGE = 2 * 1024 * 1024  # bytes: more than PySpark sends along with a task


class NoRoomError(SinkExhaustedError):
    """An adapter's own kind of a failure."""


@dataclass(frozen=True)
class Refusing:
    """Takes every row but the last of its task, and fails where it is told to."""

    password: str = field(repr=False)
    fails: type[Exception] | None = None

    def __call__(self, blocks: Iterator[pa.RecordBatch], attempt: int) -> TaskResult:
        ids = [one for block in blocks for one in block.column("id").to_pylist()]
        if self.fails and issubclass(self.fails, MillraceError) and 0 in ids:
            raise self.fails("no room", where="there", next_step="make room", code=Code.MISSING_RIGHT)
        if self.fails is RuntimeError and 0 in ids:
            raise RuntimeError("a fault of the writer's own")
        return TaskResult(len(ids) - 1, {("t", 0, ids[-1]): f"by {attempt}"})


@dataclass(frozen=True)
class ReadingOne:
    """Fails after the first of its blocks, and says in which process."""

    def __call__(self, blocks: Iterator[pa.RecordBatch], attempt: int) -> TaskResult:
        first = next(blocks)
        raise SinkUnreachableError(f"away after {first.num_rows} of {ROWS}", where=str(os.getpid()))


@dataclass(frozen=True)
class TellingWorker:
    """Says which process its task ran in."""

    def __call__(self, blocks: Iterator[pa.RecordBatch], attempt: int) -> TaskResult:
        return TaskResult(sum(block.num_rows for block in blocks), {("worker", 0, os.getpid()): ""})


def shows(text: str, secret: str = SECRET) -> bool:
    """Whether a text shows a secret as it is, as the JVM prints its bytes, or as Py4J sends them."""
    octets = secret.encode()
    signed = [str(octet - 256 if octet > 127 else octet) for octet in octets]
    return any(form in text for form in (secret, ", ".join(signed), ",".join(signed), *in_base64(octets)))


def in_base64(octets: bytes) -> list[str]:
    """What of these bytes is the same wherever they stand in what is encoded: one form for each place in a triple."""
    encoded = ((before, base64.b64encode(b" " * before + octets).decode()) for before in range(3))
    return [text[-(-before * 8 // 6) : (before + len(octets)) * 8 // 6] for before, text in encoded]


def holding(folder: Path, octets: bytes) -> list[Path]:
    """The files below a folder that have these bytes in them; one that is gone meanwhile has not."""
    return [path for path in folder.rglob("*") if path.is_file() and octets in read(path)]


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def test_each_task_reports_once_what_it_wrote_and_what_was_refused(spark: SparkSession) -> None:
    from millrace.runtime.stream.writing import writing, written

    done = written(writing(spark.range(0, ROWS, 1, TASKS), Refusing(SECRET)))
    assert len(set(done.attempts)) == TASKS
    each = ROWS // TASKS
    refused = {
        ("t", 0, last): f"by {id_}" for last, id_ in zip(range(each - 1, ROWS, each), done.attempts, strict=True)
    }
    assert done == TaskResults(done.attempts, ROWS - TASKS, refused)


@pytest.mark.parametrize(
    ("fails", "kind"),
    [
        (SinkUnreachableError, SinkUnreachableError),
        (SinkRolledBackError, SinkRolledBackError),
        (SinkExhaustedError, SinkExhaustedError),
        (SinkFailedError, SinkFailedError),
        (NoRoomError, SinkExhaustedError),
    ],
    ids=lambda given: given.__name__,
)
def test_what_a_batch_may_wait_for_comes_back_as_what_it_was(
    spark: SparkSession, fails: type[MillraceError], kind: type[MillraceError]
) -> None:
    from millrace.runtime.stream.writing import writing, written

    with pytest.raises(MillraceError) as caught:
        written(writing(spark.range(0, ROWS, 1, TASKS), Refusing(SECRET, fails)))
    assert type(caught.value) is kind
    assert (caught.value.what, caught.value.where, caught.value.next_step) == ("no room", "there", "make room")
    assert caught.value.code is Code.MISSING_RIGHT


def test_a_writer_that_fails_before_its_last_block_costs_no_worker(spark: SparkSession) -> None:
    from millrace.runtime.stream.writing import writing, written
    from support.waiting import Deadline, eventually  # workers import this module, and have no `support`

    one_by_one = spark.newSession()
    one_by_one.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1")
    frame = one_by_one.range(0, ROWS, 1, 1)
    with pytest.raises(SinkUnreachableError, match=f"away after 1 of {ROWS}") as caught:
        written(writing(frame, ReadingOne()))
    worker = int(caught.value.where)

    def works_again() -> bool:
        """A worker may be given back a moment after its job has ended: the next job may have another."""
        return ("worker", 0, worker) in written(writing(frame, TellingWorker())).refused

    eventually(works_again, within=Deadline.SERVER, what=f"worker {worker} to do another task")


def test_a_fault_of_the_writer_is_no_failure_of_the_sink(spark: SparkSession) -> None:
    from pyspark.errors import PySparkException

    from millrace.runtime.stream.writing import writing, written

    with pytest.raises(PySparkException, match="a fault of the writer's own") as caught:
        written(writing(spark.range(0, ROWS, 1, TASKS), Refusing(SECRET, RuntimeError)))
    assert SECRET not in str(caught.value)


def test_no_plan_shows_what_a_writer_brings_along(spark: SparkSession) -> None:
    from millrace.runtime.stream.writing import writing, written

    frame = writing(spark.range(0, ROWS, 1, TASKS), Refusing(SECRET))
    written(frame)
    plans = frame._jdf.queryExecution()
    brought = plans.logical().functionExpr().func().command()
    assert shows(brought.toString())  # the plan does hold it
    unabridged = (True, True, brought.size() + 100, True, True)
    shown = [
        plans.toString(),
        plans.logical().toJSON(),
        plans.logical().treeString(*unabridged),
        plans.executedPlan().toJSON(),
        plans.executedPlan().treeString(*unabridged),
    ]
    assert all("MapInArrow" in text for text in shown)
    assert not [text for text in shown if shows(text)]


@pytest.mark.parametrize("secret", [SECRET, "größer"])
@pytest.mark.parametrize("before", range(3))
def test_a_secret_is_found_in_each_form_that_a_text_may_have_it_in(secret: str, before: int) -> None:
    octets = b"\x80\x05\x95"[:before] + secret.encode() + b"\x94."
    signed = [str(octet - 256 if octet > 127 else octet) for octet in octets]
    forms = (
        f"MapInArrow(password={secret})",
        f"ArraySeq({', '.join(signed)})",
        f"[{','.join(signed)}]",
        f"cj{base64.b64encode(octets).decode()}",
    )
    assert [shows(form, secret) for form in forms] == [True] * len(forms)
    assert not any(shows(form, secret[::-1]) for form in forms)


def test_no_file_has_what_a_writer_brings_along(spark: SparkSession, tmp_path: Path) -> None:
    from millrace.runtime.stream.writing import writing, written

    ballast = os.urandom(LARGE)

    def prepare(blocks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        assert len(ballast) == LARGE
        return blocks

    frame = writing(spark.range(0, ROWS, 1, TASKS), Refusing(SECRET), prepare)
    assert written(frame).rows == ROWS - TASKS
    context = spark.sparkContext
    scratch = Path(context.getConf().get("spark.local.dir"))
    assert Path(context._jvm.System.getProperty("java.io.tmpdir")) == scratch
    assert [path for path in scratch.rglob("*") if path.is_file() and path.stat().st_size > LARGE]  # it was written
    assert holding(scratch, SECRET.encode()) == []
    (tmp_path / "found").write_bytes(ballast + SECRET.encode() + ballast)
    assert holding(tmp_path, SECRET.encode()) == [tmp_path / "found"]
