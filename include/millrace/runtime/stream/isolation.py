"""Records on which a transform raises: found in a batch, so that one of them does not end its stream at every start.

Spark names the failure, never the record. The batch is decoded and kept once, then transformed in halves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import pyarrow as pa
import structlog
from py4j.protocol import Py4JJavaError
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from millrace.domain.streams.failing import MOST_FAILING, SUSPICIOUS, Outcome, find_failing, find_one
from millrace.domain.topics.offsets import Source
from millrace.errors import Code, DeclarationError
from millrace.runtime.life.spark_failures import is_of_the_machine, reason
from millrace.runtime.stream.inputs import good_records, takes_each_record_alone

log = structlog.get_logger()

Frames = Mapping[str, DataFrame]
_PLACE = pa.schema(
    [("topic", pa.string()), ("topic_id", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())]
)
_LOGS_OF_CONTEXT = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")  # source: pyspark/errors/exceptions/base.py
_LOGS_OF_TRIES = (
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.util.Utils",
    "org.apache.spark.api.python",
    "org.apache.spark.sql.execution.datasources.v2",
)


class TooManyFailingError(DeclarationError):
    """The transform fails on more records than are set aside."""

    usual_code = Code.WRONG_TRANSFORM


def failing_records(
    inputs: Frames,
    rows_of: Callable[[Frames], DataFrame],
    failure: Exception,
    *,
    where: str,
    most: int = MOST_FAILING,
    one: bool = False,
    all_may_fail: bool = False,
    on_try: Callable[[str], object] = lambda step: None,
) -> dict[Source, str]:
    """Find the records that a transform fails on, each with Spark's reason.

    A transform that looks at several records at once is not searched: half of a join proves nothing of a record.

    Args:
        inputs: the batch's records by topic, as `runtime.stream.source.decoded` gives them.
        rows_of: the transform, on the good records that it is given.
        failure: what ended the batch; raised again where no record by itself is the cause.
        where: whose transform it is, for people.
        most: how many records may fail.
        one: whether one of them will do.
        all_may_fail: whether it is no wonder that each record fails.
        on_try: called before each try, with the step in words; what it raises ends the search.

    Returns:
        At least one record.

    Raises:
        TooManyFailingError: more records fail than may.
    """
    if not isinstance(failure, PySparkException | Py4JJavaError) or is_of_the_machine(failure):
        raise failure
    kept = {topic: frame.persist(StorageLevel.MEMORY_AND_DISK) for topic, frame in inputs.items()}
    try:
        search = _Search(good_records(kept), rows_of, on_try)
        if not search.can_begin():
            raise failure
        with _quiet(next(iter(kept.values())).sparkSession):
            count, try_ = len(search.places), search.failure_of
            suspicious = None if all_may_fail else SUSPICIOUS
            found = find_one(count, try_) if one else find_failing(count, try_, most=most, suspicious=suspicious)
    finally:
        for frame in kept.values():
            frame.unpersist()
    log.warning("transform_fails", records=len(found.failing), tries=search.tries, outcome=found.outcome.value)
    if found.outcome is Outcome.TOO_MANY:
        raise _too_many(search.places, found.failing, where)
    if found.outcome is not Outcome.FOUND:
        raise failure
    return {_source(search.places, row): why for row, why in found.failing.items()}


class _Search:
    """Tries a transform on some of the good records of a batch, which are decoded and kept."""

    def __init__(self, good: Frames, rows_of: Callable[[Frames], DataFrame], on_try: Callable[[str], object]) -> None:
        self._good = good
        self._rows_of = rows_of
        self._on_try = on_try
        self.tries = 0
        self.places = _PLACE.empty_table()

    def can_begin(self) -> bool:
        """Read the places; true where that works and the transform looks at each record by itself."""
        try:
            self.places = _places(self._good)
            return takes_each_record_alone(self._good, self._rows_of)
        except (PySparkException, Py4JJavaError):
            return False

    def failure_of(self, piece: range) -> str | None:
        """Why the transform fails on these records; None where it passes."""
        self.tries += 1
        self._on_try(f"look for the records that the transform fails on: try {self.tries}, {len(piece)} records")
        try:
            read_to_the_end(self._rows_of(_of(self._good, self.places.slice(piece.start, len(piece)))))
        except (PySparkException, Py4JJavaError) as error:
            if is_of_the_machine(error):
                raise
            return reason(error)
        return None


def read_to_the_end(rows: DataFrame) -> None:
    """Compute every value of every row, and write nothing.

    No Python worker is needed for it: one that fails costs seconds (`spark.python.task.killTimeout`).
    """
    rows.write.format("noop").mode("overwrite").save()


def without(frames: Frames, sources: Mapping[Source, str]) -> dict[str, DataFrame]:
    """These frames without the records of these sources."""
    of_each: dict[tuple[str, int], list[int]] = {}
    for topic_id, partition, offset in sources:
        of_each.setdefault((topic_id, partition), []).append(offset)
    left = dict(frames)
    for (topic_id, partition), offsets in of_each.items():
        gone = _in_partition(topic_id, partition) & F.col("_source.offset").isin(offsets)
        left = {topic: frame.where(~gone) for topic, frame in left.items()}
    return left


@contextmanager
def _quiet(session: SparkSession) -> Iterator[None]:
    """Keep Spark from logging each failed try: stack traces by the hundred, with values of records in them."""
    log4j = session._jvm.org.apache.logging.log4j
    levels = {name: log4j.LogManager.getLogger(name).getLevel() for name in _LOGS_OF_TRIES}
    # PySpark keeps loggers of a class of its own under these names: no others may be made.
    loggers = [PySparkLogger.getLogger(name) for name in _LOGS_OF_CONTEXT]
    disabled = [logger.disabled for logger in loggers]
    set_level = log4j.core.config.Configurator.setLevel
    for name in levels:
        set_level(name, log4j.Level.OFF)
    for logger in loggers:
        logger.disabled = True
    log.warning("transform_searched", note="what Spark says of each try is not logged until `transform_fails`")
    try:
        yield
    finally:
        for name, level in levels.items():
            set_level(name, level)
        for logger, was in zip(loggers, disabled, strict=True):
            logger.disabled = was


def _places(good: Frames) -> pa.Table:
    """Where the records lie, in the order of partition and offset."""
    names = [f"_source.{name}" for name in _PLACE.names]
    found = [frame.select(*names).toArrow().cast(_PLACE) for frame in good.values()]
    return pa.concat_tables(found).sort_by([(name, "ascending") for name in _PLACE.names])


def _of(good: Frames, places: pa.Table) -> dict[str, DataFrame]:
    """The records of these places alone; the places are adjacent in the order of `_places`."""
    spans = places.group_by(["topic", "topic_id", "partition"], use_threads=False).aggregate(
        [("offset", "min"), ("offset", "max")]
    )
    wanted: dict[str, Column] = dict.fromkeys(good, F.lit(False))
    for span in spans.to_pylist():
        within = F.col("_source.offset").between(span["offset_min"], span["offset_max"])
        wanted[span["topic"]] |= _in_partition(span["topic_id"], span["partition"]) & within
    return {topic: frame.where(wanted[topic]) for topic, frame in good.items()}


def _in_partition(topic_id: str, partition: int) -> Column:
    return (F.col("_source.topic_id") == topic_id) & (F.col("_source.partition") == partition)


def _source(places: pa.Table, row: int) -> Source:
    topic_id, partition, offset = (places.column(name)[row].as_py() for name in ("topic_id", "partition", "offset"))
    return topic_id, partition, offset


def _too_many(places: pa.Table, failing: Mapping[int, str], where: str) -> TooManyFailingError:
    first = min(failing)
    topic, partition, offset = (places.column(name)[first].as_py() for name in ("topic", "partition", "offset"))
    return TooManyFailingError(
        f"the transform fails on more than {MOST_FAILING} records in an hour, for example "
        f"{topic}/{partition}@{offset}: {failing[first]}",
        where=where,
        next_step="correct the transform, then start the stream; nothing of this batch was written",
    )
