"""What a batch read of its inputs, and how much of it is bad: counted whatever the transform does with them.

A transform, or Spark's optimiser for it, may leave an input out, stop in the middle of one, or read one twice. The
counts must not depend on that: nothing moves before every record that was read is a row, dropped by the transform, or
in quarantine.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from millrace.domain.declaration.pipeline import Pipeline, Stream
from millrace.domain.formats.undeclared import Undeclared, total
from millrace.domain.groups.snapshots import Partition
from millrace.domain.sinks.batch import TaskResults
from millrace.errors import MillraceError
from millrace.runtime.formats.field_tally import from_text
from millrace.runtime.stream.source import BAD_FIELD, TRUNCATED_FIELD, UNDECLARED_FIELD
from millrace.runtime.stream.transform import Transform, input_type
from millrace.runtime.stream.writing import written

# Spark's logical plans that hand every row of each child on to their parent, which here always reads to the end.
_READ_TO_THE_END = frozenset({"Project", "Filter", "Generate", "Union", "ArrowEvalPython", "BatchEvalPython"})
_IN_ANOTHER_ORDER = frozenset({"Repartition", "RepartitionByExpression", "RebalancePartitions", "Sort"})
_COUNTING = "CollectMetrics"
_FLAGS = (BAD_FIELD, TRUNCATED_FIELD, UNDECLARED_FIELD)
_MOST_PARTITIONS = 1_000_000  # a histogram with no fewer bins than values counts each exactly
_MOST_BLOCKS = 100_000  # no more different values are counted exactly, and an observation takes no list of values


@dataclass(frozen=True, slots=True)
class Read:
    """How many records were read, how many of them are bad, and of how many a timestamp was truncated.

    Attributes:
        of_each: the records of each partition, by topic and number; none of one without any.
        undeclared: the fields that no schema names, by topic.
    """

    records: int = 0
    bad: int = 0
    truncated: int = 0
    of_each: Mapping[Partition, int] = field(default_factory=dict)
    undeclared: Mapping[str, Undeclared] = field(default_factory=dict)

    def __add__(self, more: Read) -> Read:
        both = self.undeclared.keys() & more.undeclared
        return Read(
            self.records + more.records,
            self.bad + more.bad,
            self.truncated + more.truncated,
            Counter(self.of_each) + Counter(more.of_each),
            {
                **self.undeclared,
                **more.undeclared,
                **{topic: total((self.undeclared[topic], more.undeclared[topic])) for topic in both},
            },
        )


def write_counted(
    inputs: Mapping[str, DataFrame],
    writing: Callable[[Mapping[str, DataFrame]], DataFrame],
    before: Callable[[Read], None] | None = None,
) -> tuple[Read, TaskResults]:
    """Write what the transform makes of these inputs, and count all of them; each is read once.

    Where the transform reads each input once and to its end, as selects and filters do, it is counted on the way.
    Otherwise each input is decoded, kept (in memory, on disk where that is full) and counted first.

    Args:
        inputs: the batch's records by topic, as `runtime.stream.source.decoded` gives them.
        writing: what the tasks will report, by the good records of each topic (`runtime.stream.writing.writing`). It
            may be asked twice.
        before: is to be called once all is counted, before anything is written; None: nothing is.

    Raises:
        SinkUnreachableError, SinkRolledBackError, SinkExhaustedError, SinkFailedError: what stopped a task.
    """
    if before is not None:
        return _counted_first(inputs, writing, before)
    names = [_counted_as(topic) for topic in inputs]
    counted = zip(names, inputs.items(), strict=True)
    watched = {topic: frame.observe(name, *_counts()) for name, (topic, frame) in counted}
    reports = writing(good_records(watched))
    plan = _execution(reports).optimizedPlan()
    if reads_each_once(plan.children().head(), names):  # the writing itself, at the top, reads to the end
        done = written(reports)
        metrics = _execution(reports).observedMetrics()
        rows = ((topic, metrics.apply(name)) for name, topic in zip(names, inputs, strict=True))
        return sum((_read(topic, *_values(row)) for topic, row in rows), Read()), done
    return _counted_first(inputs, writing)


def _counted_first(
    inputs: Mapping[str, DataFrame],
    writing: Callable[[Mapping[str, DataFrame]], DataFrame],
    before: Callable[[Read], None] = lambda read: None,
) -> tuple[Read, TaskResults]:
    kept = {topic: frame.persist(StorageLevel.MEMORY_AND_DISK) for topic, frame in inputs.items()}
    try:
        read = sum((_read(topic, *frame.agg(*_counts()).collect()[0]) for topic, frame in kept.items()), Read())
        before(read)
        return read, written(writing(good_records(kept)))
    finally:
        for frame in kept.values():
            frame.unpersist()


def reads_each_once(plan: Any, names: list[str]) -> bool:
    """Whether a plan reads what is counted under each of these names once and to its end, and nothing else.

    Args:
        plan: Spark's optimised logical plan (`org.apache.spark.sql.catalyst.plans.logical.LogicalPlan`).
        names: of the observations.
    """
    return _read_to_the_end(plan, names) == Counter(names)


def _read_to_the_end(plan: Any, names: Sequence[str], also: frozenset[str] = frozenset()) -> Counter[str] | None:
    """How often a plan reads what is counted under each of these names, each time to its end.

    None where it reads anything else, or by a node that is neither of `_READ_TO_THE_END` nor of `also`.
    """
    found: Counter[str] = Counter()
    pending = [plan]
    while pending:
        node = pending.pop()
        if not node.subqueries().isEmpty():
            return None
        if node.nodeName() == _COUNTING and node.name() in names:
            found[node.name()] += 1
        elif node.nodeName() in _READ_TO_THE_END | also | {_COUNTING}:  # an app may count what it likes
            children = node.children()
            pending += [children.apply(number) for number in range(children.size())]
        else:
            return None
    return found


def keeps_order(session: SparkSession, pipeline: Pipeline, stream: Stream, transform: Transform) -> bool:
    """Whether a transform hands on the rows of each partition of its inputs as they come, and each once.

    Where it does not, they may come to several tasks, or twice to one, in whatever order.
    """
    frames = {}
    for name, topic in pipeline.topics_of(stream).items():
        assert topic.value is not None
        frames[name] = session.createDataFrame(session.sparkContext.emptyRDD(), input_type(topic.value))
    return _inputs_read(frames, lambda given: transform(given, {})) == Counter(map(_counted_as, frames))


def takes_each_record_alone(
    frames: Mapping[str, DataFrame], rows_of: Callable[[Mapping[str, DataFrame]], DataFrame]
) -> bool:
    """Return true where each row comes from one record: no join, window, aggregate or limit.

    Args:
        frames: the records by topic.
        rows_of: what makes the rows of them.
    """
    return _inputs_read(frames, rows_of, _IN_ANOTHER_ORDER) is not None


def _inputs_read(
    frames: Mapping[str, DataFrame],
    rows_of: Callable[[Mapping[str, DataFrame]], DataFrame],
    also: frozenset[str] = frozenset(),
) -> Counter[str] | None:
    """How often each input is read to its end, by `_counted_as`; None where something else is read."""
    counts = F.count(F.lit(1)).alias("records")
    watched = {topic: frame.observe(_counted_as(topic), counts) for topic, frame in frames.items()}
    names = list(map(_counted_as, frames))
    return _read_to_the_end(_execution(rows_of(watched)).optimizedPlan(), names, also)


def _counted_as(topic: str) -> str:
    """The name of an observation, which no app gives to one of its own."""
    return f"millrace: records of {topic}"


def _counts() -> list[Column]:
    return [
        F.count(F.lit(1)).alias("records"),
        F.count_if(F.col(BAD_FIELD)).alias("bad"),
        F.count_if(F.col(TRUNCATED_FIELD)).alias("truncated"),
        F.to_json(F.histogram_numeric("_source.partition", F.lit(_MOST_PARTITIONS))).alias("of_each"),
        F.to_json(
            F.call_function("approx_top_k", F.col(UNDECLARED_FIELD), F.lit(_MOST_BLOCKS), F.lit(_MOST_BLOCKS)),
            {"ignoreNullFields": "true"},
        ).alias("undeclared"),
    ]


def _values(row: Any) -> tuple[int, int, int, str | None, str | None]:
    """The values of an observation, a `Row` of the JVM."""
    return int(row.getLong(0)), int(row.getLong(1)), int(row.getLong(2)), row.getString(3), row.getString(4)


def _read(topic: str, records: int, bad: int, truncated: int, of_each: str | None, undeclared: str | None) -> Read:
    partitions: Counter[Partition] = Counter()
    for each in json.loads(of_each or "[]"):  # histograms that were merged may hold a value twice
        partitions[topic, each["x"]] += int(each["y"])
    if partitions.total() != records:
        raise MillraceError(
            f"{records} records were read, but the partitions have {dict(partitions)}", where=f"topic {topic}"
        )
    blocks = [each for each in json.loads(undeclared or "[]") if "item" in each]  # the records without it have none
    counts = total(chain.from_iterable(repeat(from_text(each["item"]), each["count"]) for each in blocks))
    return Read(records, bad, truncated, partitions, {topic: counts} if blocks else {})


def good_records(frames: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
    """What a transform is given of decoded records: those that are not bad."""
    return {topic: frame.where(~F.col(BAD_FIELD)).drop(*_FLAGS) for topic, frame in frames.items()}


def _execution(frame: DataFrame) -> Any:
    """A frame's `QueryExecution`, the one that an action on this very frame runs.

    Its metrics are there when the action returns; `pyspark.sql.Observation` waits for a listener to bring them, for
    ever where what it counts is not in the plan.
    """
    return frame._jdf.queryExecution()
