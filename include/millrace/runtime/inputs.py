"""What a batch read of its inputs, and how much of it is bad: counted whatever the transform does with them.

A transform, or Spark's optimiser for it, may leave an input out, stop in the middle of one, or read one twice. The
counts must not depend on that: nothing moves before every record that was read is a row, dropped by the transform, or
in quarantine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from millrace.runtime.sinks.postgres import Copied, copied
from millrace.runtime.source import BAD_FIELD, TRUNCATED_FIELD

# Spark's logical plans that hand every row of each child on to their parent, which here always reads to the end.
_READ_TO_THE_END = frozenset({"Project", "Filter", "Generate", "Union", "ArrowEvalPython", "BatchEvalPython"})
_COUNTING = "CollectMetrics"


@dataclass(frozen=True, slots=True)
class Read:
    """How many records were read, how many of them are bad, and of how many a timestamp was truncated."""

    records: int = 0
    bad: int = 0
    truncated: int = 0

    def __add__(self, more: Read) -> Read:
        return Read(self.records + more.records, self.bad + more.bad, self.truncated + more.truncated)


def copy_counted(
    inputs: Mapping[str, DataFrame], copying: Callable[[Mapping[str, DataFrame]], DataFrame]
) -> tuple[Read, Copied]:
    """Copy what the transform makes of these inputs, and count all of them; each is read once.

    Where the transform reads each input once and to its end, as selects and filters do, it is counted on the way.
    Otherwise each input is decoded, kept (in memory, on disk where that is full) and counted first.

    Args:
        inputs: the batch's records by topic, as `runtime.source.decoded` gives them.
        copying: what the tasks will report, by the good records of each topic (`runtime.sinks.postgres.copying`). It
            may be asked twice.

    Raises:
        SinkUnreachableError, SinkRolledBackError, SinkExhaustedError, SinkStatementError: what stopped a task's copy.
    """
    names = [f"records of {topic}" for topic in inputs]
    counted = zip(names, inputs.items(), strict=True)
    watched = {topic: frame.observe(name, *_counts()) for name, (topic, frame) in counted}
    reports = copying(_good(watched))
    plan = _execution(reports).optimizedPlan()
    if reads_each_once(plan.children().head(), names):  # the copy itself, at the top, reads to the end
        done = copied(reports)
        metrics = _execution(reports).observedMetrics()
        return sum((_read(metrics.apply(name)) for name in names), Read()), done
    return _counted_first(inputs, copying)


def _counted_first(
    inputs: Mapping[str, DataFrame], copying: Callable[[Mapping[str, DataFrame]], DataFrame]
) -> tuple[Read, Copied]:
    kept = {topic: frame.persist(StorageLevel.MEMORY_AND_DISK) for topic, frame in inputs.items()}
    try:
        rows = [frame.agg(*_counts()).collect()[0] for frame in kept.values()]
        return sum((Read(*row) for row in rows), Read()), copied(copying(_good(kept)))
    finally:
        for frame in kept.values():
            frame.unpersist()


def reads_each_once(plan: Any, names: list[str]) -> bool:
    """Whether a plan reads what is counted under each of these names once and to its end, and nothing else.

    Args:
        plan: Spark's optimised logical plan (`org.apache.spark.sql.catalyst.plans.logical.LogicalPlan`).
        names: of the observations.
    """
    found: Counter[str] = Counter()
    pending = [plan]
    while pending:
        node = pending.pop()
        if not node.subqueries().isEmpty():
            return False
        if node.nodeName() == _COUNTING:
            found[node.name()] += 1
        elif node.nodeName() in _READ_TO_THE_END:
            children = node.children()
            pending += [children.apply(number) for number in range(children.size())]
        else:
            return False
    return found == Counter(names)


def _counts() -> list[Column]:
    return [
        F.count(F.lit(1)).alias("records"),
        F.count_if(F.col(BAD_FIELD)).alias("bad"),
        F.count_if(F.col(TRUNCATED_FIELD)).alias("truncated"),
    ]


def _read(row: Any) -> Read:
    """From the values of an observation, a `Row` of the JVM."""
    return Read(*(int(row.getLong(number)) for number in range(3)))


def _good(frames: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
    return {topic: frame.where(~F.col(BAD_FIELD)).drop(BAD_FIELD, TRUNCATED_FIELD) for topic, frame in frames.items()}


def _execution(frame: DataFrame) -> Any:
    """A frame's `QueryExecution`, the one that an action on this very frame runs.

    Its metrics are there when the action returns; `pyspark.sql.Observation` waits for a listener to bring them, for
    ever where what it counts is not in the plan.
    """
    return frame._jdf.queryExecution()
