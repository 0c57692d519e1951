"""Records on which a transform raises: found in a batch, so that one of them does not end its stream at every start.

Spark names the failure, never the record. The batch is decoded and kept once, then transformed in halves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyarrow as pa
import structlog
from py4j.protocol import Py4JJavaError
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from millrace.domain.failing import MOST_FAILING, MOST_ROUNDS, Outcome, find_failing
from millrace.domain.offsets import Source
from millrace.errors import DeclarationError
from millrace.runtime.inputs import good_records
from millrace.runtime.spark_failures import is_of_the_machine, reason

log = structlog.get_logger()

Frames = Mapping[str, DataFrame]
_PLACE = pa.schema(
    [("topic", pa.string()), ("topic_id", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())]
)
_LOGS_OF_FAILURES = (
    "DataFrameQueryContextLogger",
    "SQLQueryContextLogger",
)  # source: pyspark/errors/exceptions/base.py


class TooManyFailingError(DeclarationError):
    """The transform fails on more records than are set aside."""


def failing_records(
    inputs: Frames,
    act: Callable[[Frames], object],
    failure: Exception,
    *,
    where: str,
    most: int = MOST_FAILING,
    on_try: Callable[[str], None] = lambda step: None,
) -> dict[Source, str]:
    """Find the records that a transform fails on, each with Spark's reason.

    Args:
        inputs: the batch's records by topic, as `runtime.source.decoded` gives them.
        act: transforms the good records that it is given, and reads the result to its end. It must write nothing.
        failure: what ended the batch; raised again where no record by itself is the cause.
        where: whose transform it is, for people.
        most: how many records may fail.
        on_try: called before each try, with the step in words; what it raises ends the search.

    Returns:
        At least one record.

    Raises:
        TooManyFailingError: more records fail than may.
    """
    if not isinstance(failure, PySparkException | Py4JJavaError) or is_of_the_machine(failure):
        raise failure
    kept = {topic: frame.persist(StorageLevel.MEMORY_AND_DISK) for topic, frame in inputs.items()}
    tries = 0

    def failure_of(piece: range) -> str | None:
        nonlocal tries
        tries += 1
        on_try(f"look for the records that the transform fails on: try {tries}, {len(piece)} records")
        try:
            act(_of(good, places.slice(piece.start, len(piece))))
        except (PySparkException, Py4JJavaError) as error:
            if is_of_the_machine(error):
                raise
            return reason(error)
        return None

    try:
        good = good_records(kept)
        try:
            places = _places(good)
        except (PySparkException, Py4JJavaError):
            raise failure from None  # they cannot be read: the transform has not seen them
        with _quiet(next(iter(kept.values())).sparkSession):
            found = find_failing(len(places), failure_of, most=most)
    finally:
        for frame in kept.values():
            frame.unpersist()
    named = {_source(places, row): why for row, why in found.failing.items()}
    if found.outcome is Outcome.FOUND:
        log.warning("transform_fails", records=len(named), tries=tries)
        return named
    if found.outcome is Outcome.TOO_MANY:
        raise _too_many(places, found.failing, failure, where)
    log.warning("transform_fails", records=len(places), tries=tries, outcome=found.outcome.value)
    if found.outcome is Outcome.TOO_LARGE:
        log.warning("batch_too_large_to_search", most=2**MOST_ROUNDS, next="lower max_records_per_batch")
    raise failure


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
    level = log4j.LogManager.getRootLogger().getLevel()
    loggers = [logging.getLogger(name) for name in _LOGS_OF_FAILURES]
    disabled = [logger.disabled for logger in loggers]
    log4j.core.config.Configurator.setRootLevel(log4j.Level.OFF)
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        log4j.core.config.Configurator.setRootLevel(level)
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


def _too_many(places: pa.Table, failing: Mapping[int, str], failure: Exception, where: str) -> TooManyFailingError:
    first: Sequence[int] = sorted(failing)[:3]
    named = [
        f"{places.column('topic')[row]}/{places.column('partition')[row]}@{places.column('offset')[row]}"
        for row in first
    ]
    examples = f" ({', '.join(named)})" if named else ""
    return TooManyFailingError(
        f"the transform fails on too many records{examples}: {reason(failure)}",
        where=where,
        next_step=f"fix the transform, then run it again: nothing of this batch is on record. At most "
        f"{MOST_FAILING} records an hour are set aside as `transform_failed`",
    )
