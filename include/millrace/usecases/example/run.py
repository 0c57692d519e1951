"""The example: run the pipeline `shop` through Airflow on real purchases, and report what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from millrace.domain.archive.names import Incarnation
from millrace.domain.declaration.pipeline import BACKUP, Pipeline, Stream
from millrace.domain.groups.commits import Committed, archived_to
from millrace.domain.quality.books import Balance, Reconciliation
from millrace.domain.quality.recompute import Likeness, Recomputed
from millrace.domain.streams.position import LogBounds
from millrace.domain.topics.offsets import SourceAt, TopicPartition
from millrace.domain.topics.sources import SourceRecord, TopicRecord
from millrace.errors import PartFailedError
from millrace.usecases.example.backup import ProvenBackup
from millrace.usecases.example.quality import TableVerdict
from millrace.usecases.example.topic import Quarantined, QuarantineEntry, look_at, misplaced, name_quarantined
from millrace.usecases.sinks.required import table_of

PIPELINE = "shop"
SOURCE = "cdnow"
STREAM = "purchases"
FINDINGS_SHOWN = 20

_DAG_SECONDS = 300.0
_STALLED_SECONDS = 300.0
_GROUP_SECONDS = 15.0
_POLL_SECONDS = 0.5
_FAILED_WATCHES = 3


@dataclass(frozen=True, slots=True)
class ExampleProgress:
    """What the example is doing now; `done` and `total` count records where `total` is known."""

    step: str
    done: int = 0
    total: int | None = None


class DagRuns(Protocol):
    """Airflow, as far as the example needs it."""

    def run(
        self, dag_id: str, conf: Mapping[str, str], *, within_seconds: float, progress: Callable[[str], None]
    ) -> str:
        """Trigger a DAG and wait until its run has succeeded."""
        ...

    def latest_states(self, prefix: str) -> dict[str, str]:
        """The state of the latest run of every DAG whose id begins so."""
        ...

    def latest_run(self, dag_id: str) -> tuple[str, str] | None:
        """Id and state of a DAG's latest run."""
        ...

    def link(self, dag_id: str, run_id: str = "") -> str:
        """Where a person sees the DAG, or one run of it."""
        ...


class TopicReads(Protocol):
    """Bounded reads of what is committed in a topic."""

    def committed(self, topic: str) -> Iterator[TopicRecord]:
        """Every committed record the topic holds now."""
        ...


class LogReads(Protocol):
    """Ids, bounds and commits of topics."""

    def partitions(self, topics: Collection[str]) -> list[TopicPartition]:
        """Every partition of these topics; none of a topic that is not there."""
        ...

    def bounds(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, LogBounds]:
        """Log start and read_committed end of each partition."""
        ...

    def committed(self, group: str, partitions: Collection[TopicPartition]) -> dict[tuple[str, int], Committed]:
        """A group's commits of these partitions, by topic and number."""
        ...


class SinkReads(Protocol):
    """What a stream has written."""

    def next_offsets(self, stream: str, topic_id: str) -> dict[int, int]:
        """The next offset of each partition by the record of work."""
        ...

    def quarantined(self, stream: str, topic: str, topic_id: str) -> Sequence[QuarantineEntry]:
        """Every entry in quarantine of one stream and topic id."""
        ...

    def redriven_sources(self, stream: str, topic: str, topic_id: str) -> Set[SourceAt]:
        """All that has left quarantine because somebody has put it through again."""
        ...


@dataclass(frozen=True, slots=True)
class ExampleParts:
    """Everything the example works with; `proof` proves an archive, `kept` says what a topic keeps.

    `books` reconciles the books of the table, `made_again` makes rows again, `quality` is the verdict on its rows.
    """

    pipeline: Pipeline
    records: Callable[[], Iterable[SourceRecord]]
    airflow: DagRuns
    reader: TopicReads
    log: LogReads
    sink: SinkReads
    proof: Callable[[Incarnation], ProvenBackup]
    kept: Callable[[str], str]
    books: Callable[[], Reconciliation]
    made_again: Callable[[], Recomputed]
    quality: Callable[[], TableVerdict | None]
    state_folder: Path

    @property
    def stream(self) -> Stream:
        """The example's stream."""
        return self.pipeline.stream(STREAM)

    @property
    def topic(self) -> str:
        """The topic between source and stream."""
        return self.stream.reads[0]


@dataclass(frozen=True, slots=True)
class ExampleReport:
    """What came of the example. `findings` is empty where every source is once where it should be, unchanged.

    `backup` is the archive by its proof; None where the topic is not backed up. `kept`: what the topic keeps;
    `books`, `made_again`, `quality`: what came of the books, of making rows again, of the rules.
    """

    topic: str
    partitions: int
    table: str
    records_in: int
    rows_out: int
    quarantined: tuple[Quarantined, ...]
    lag: int
    dags: tuple[tuple[str, str], ...]
    findings: tuple[str, ...]
    complete: bool
    backup: ProvenBackup | None = None
    kept: str = ""
    books: str = ""
    made_again: str = ""
    quality: str = ""
    already_done: bool = False

    @property
    def exit_code(self) -> int:
        """0 where all is right, 1 where the books do not balance."""
        return 1 if self.findings else 0


def run_example(
    parts: ExampleParts, progress: Callable[[ExampleProgress], None], *, wait: Callable[[float], None] = time.sleep
) -> ExampleReport:
    """Make the topics, load the source and start the stream through Airflow; wait until all is done; report.

    Where all that was done before, nothing is started and only the report is made anew.

    Args:
        parts: what the example works with.
        progress: called now and then, from this thread.
        wait: waits that many seconds.

    Guarantees:
        Books are held against every offset, and rows are made again, all of them up to `MOST_SAMPLED` offsets: one that
        was deleted, doubled or changed, also since an earlier run, is named in `findings`.

    Raises:
        PartFailedError: a DAG run failed or the stream does not move; says where to look.
        UnreachableError: Kafka, PostgreSQL or Airflow does not answer, or the purchases cannot be fetched.
    """
    progress(ExampleProgress("fetching the purchases"))
    records = tuple(parts.records())
    if _caught_up(parts) and not _unarchived(parts):
        progress(ExampleProgress("checking the books and recomputing rows"))
        report = make_report(parts, records)
        if report.complete:
            return replace(report, already_done=True)
    _run_dags(parts, progress)
    _wait_for_stream(parts, progress, wait)
    _wait_for_group(parts, progress, wait)
    _wait_for_backup(parts, progress, wait)
    _run_audit(parts, progress)
    progress(ExampleProgress("checking the books and recomputing rows"))
    return make_report(parts, records)


def make_report(parts: ExampleParts, records: Sequence[SourceRecord]) -> ExampleReport:
    """Hold the source's file against the topic, and the topic against the sink by books and by making again."""
    stream, topic = parts.stream, parts.topic
    partitions = parts.log.partitions([topic])
    bounds = parts.log.bounds(partitions)
    starts = {partition.partition: bound.start for partition, bound in bounds.items()}
    topic_id = partitions[0].topic_id if partitions else ""
    found = look_at(f"{PIPELINE}.{SOURCE}", topic, records, parts.reader.committed(topic), starts)
    books, again = parts.books(), parts.made_again()
    entries = parts.sink.quarantined(stream.qualified_name, topic, topic_id)
    backup, faults = _proven(parts, topic_id)
    verdict = parts.quality()
    return ExampleReport(
        topic=topic,
        partitions=len(partitions),
        table=table_of(stream).table,
        records_in=found.records,
        rows_out=books.sums.rows,
        quarantined=name_quarantined(entries, found.labels),
        lag=sum(_lags(parts, stream.group).values()),
        dags=tuple((parts.airflow.latest_states(f"{PIPELINE}.") | parts.airflow.latest_states("millrace.")).items()),
        findings=(
            *found.findings,
            *misplaced(entries, found, parts.sink.redriven_sources(stream.qualified_name, topic, topic_id)),
            *_faults_of(books),
            *_unlike(again),
            *faults,
            *(verdict.faults if verdict else ()),
        ),
        complete=found.complete,
        backup=backup,
        kept=parts.kept(topic),
        books=str(books),
        made_again=str(again),
        quality=verdict.line if verdict else "",
    )


def _faults_of(books: Reconciliation) -> list[str]:
    """What keeps the books from being balanced."""
    faults = [str(finding) for finding in books.findings]
    if not faults and books.balance is not Balance.BALANCED:
        faults.append(str(books))
    return [f"books: {fault}" for fault in faults]


def _unlike(again: Recomputed) -> list[str]:
    """What is not as the app makes it; that nothing could be made again is a fault too."""
    faults = [str(again)] if again.likeness is Likeness.NOTHING else again.differences
    return [f"recomputed: {fault}" for fault in faults]


def _proven(parts: ExampleParts, topic_id: str) -> tuple[ProvenBackup | None, list[str]]:
    """The topic's archive by its proof, and what that finds fault with."""
    if parts.pipeline.backup is None or not topic_id:
        return None, []
    found = parts.proof(Incarnation(parts.topic, topic_id))
    faults = [f"archive: {breach}" for breach in found.breaches]
    if found.pending:
        faults.append("archive: some records are not archived yet; run `millrace streams show shop.backup`")
    return found, faults


def _run_dags(parts: ExampleParts, progress: Callable[[ExampleProgress], None]) -> None:
    steps: list[tuple[str, str, dict[str, str]]] = [
        ("creating the topics", f"{PIPELINE}.topics", {}),
        ("loading the purchases", f"{PIPELINE}.source.{SOURCE}", {}),
        (
            "starting the stream",
            f"{PIPELINE}.operate",
            {"stream": STREAM, "action": "start", "reason": "the example, started by `./millrace up`"},
        ),
    ]
    if parts.pipeline.backup is not None:
        conf = {"stream": BACKUP, "action": "start", "reason": "the example's backup, started by `./millrace up`"}
        steps.append(("starting the backup", f"{PIPELINE}.operate", conf))
    for step, dag_id, conf in steps:
        _run_dag(parts, progress, step, dag_id, conf)


def _run_audit(parts: ExampleParts, progress: Callable[[ExampleProgress], None]) -> None:
    """Have the backup audited, so that there is evidence to look at."""
    if parts.pipeline.backup is not None:
        _run_dag(parts, progress, "auditing the backup", f"{PIPELINE}.backup_audit", {})


def _run_dag(
    parts: ExampleParts, progress: Callable[[ExampleProgress], None], step: str, dag_id: str, conf: Mapping[str, str]
) -> None:
    said = f"{step}: DAG {dag_id}"
    progress(ExampleProgress(said))
    parts.airflow.run(
        dag_id,
        conf,
        within_seconds=_DAG_SECONDS,
        progress=lambda state: progress(ExampleProgress(f"{said}: {state}")),
    )


def _remaining(parts: ExampleParts) -> tuple[int, int] | None:
    """(offsets done, offsets in the topic) by the sink's record of work; None where there is no topic."""
    partitions = parts.log.partitions([parts.topic])
    if not partitions:
        return None
    bounds = parts.log.bounds(partitions)
    stored = parts.sink.next_offsets(parts.stream.qualified_name, partitions[0].topic_id)
    total = sum(bound.end - bound.start for bound in bounds.values())
    open_offsets = sum(
        max(0, bound.end - max(bound.start, stored.get(partition.partition, bound.start)))
        for partition, bound in bounds.items()
    )
    return total - open_offsets, total


def _caught_up(parts: ExampleParts) -> bool:
    remaining = _remaining(parts)
    return remaining is not None and remaining[0] == remaining[1]


def _wait_for_stream(
    parts: ExampleParts, progress: Callable[[ExampleProgress], None], wait: Callable[[float], None]
) -> None:
    """Wait until the record of work has reached the end of the topic; give up when nothing moves."""
    last_done, waited = -1, 0.0
    failed: set[str] = set()
    while True:
        done, total = _remaining(parts) or (0, 0)
        progress(ExampleProgress("the stream: offsets processed", done, total))
        if done == total:
            return
        if done != last_done:
            last_done, waited = done, 0.0
        name = parts.stream.qualified_name
        _give_up_on(parts, _stream_dag(), f"stream {name}", name, f"{done} of {total} offsets done", failed, waited)
        wait(_POLL_SECONDS)
        waited += _POLL_SECONDS


def _wait_for_group(
    parts: ExampleParts, progress: Callable[[ExampleProgress], None], wait: Callable[[float], None]
) -> None:
    """Give the driver time to commit to its group what it has written: the group follows the record of work."""
    waited = 0.0
    while sum(_lags(parts, parts.stream.group).values()) and waited < _GROUP_SECONDS:
        progress(ExampleProgress("the consumer group is catching up with the sink"))
        wait(_POLL_SECONDS)
        waited += _POLL_SECONDS


def _wait_for_backup(
    parts: ExampleParts, progress: Callable[[ExampleProgress], None], wait: Callable[[float], None]
) -> None:
    """Wait until the backup's group stands at the end of the topic; give up when it does not move."""
    last, waited = -1, 0.0
    failed: set[str] = set()
    app = f"{PIPELINE}.{BACKUP}"
    while (left := _unarchived(parts)) > 0:
        progress(ExampleProgress("the backup is copying the topic to S3"))
        if left != last:
            last, waited = left, 0.0
        _give_up_on(parts, app, f"the backup {app}", app, f"{left} offsets are not archived", failed, waited)
        wait(_POLL_SECONDS)
        waited += _POLL_SECONDS


def _give_up_on(
    parts: ExampleParts, dag_id: str, who: str, app: str, left: str, failed: set[str], waited: float
) -> None:
    """Raise where an app has ended too often, by its DAG's failed runs, or has not moved for too long."""
    run = parts.airflow.latest_run(dag_id)
    if run and run[1] == "failed":
        failed.add(run[0])
    if waited > _STALLED_SECONDS or len(failed) >= _FAILED_WATCHES:
        what = f"ended {len(failed)} times" if failed else f"made no progress for {_STALLED_SECONDS:.0f} s"
        raise PartFailedError(
            f"{who} {what}: {left}",
            where=parts.airflow.link(dag_id, run[0] if run else ""),
            next_step=f"read its log: {_driver_log(parts, app)}",
        )


def _unarchived(parts: ExampleParts) -> int:
    """Offsets that are not archived, by the group's commits; 0 where the topic is not backed up."""
    backup = parts.pipeline.backup
    if backup is None:
        return 0
    bounds = parts.log.bounds(parts.log.partitions([parts.topic]))
    done = archived_to(bounds, parts.log.committed(backup.group, bounds))
    return sum(bound.end - max(bound.start, done[partition]) for partition, bound in bounds.items())


def _lags(parts: ExampleParts, group: str) -> dict[int, int]:
    """By partition, the offsets between the group's commit and the end of the topic."""
    partitions = parts.log.partitions([parts.topic])
    bounds = parts.log.bounds(partitions)
    committed = parts.log.committed(group, partitions)
    lags = {}
    for partition, bound in bounds.items():
        commit = committed.get((partition.topic, partition.partition))
        lags[partition.partition] = bound.end - max(bound.start, commit.offset if commit else bound.start)
    return lags


def _stream_dag() -> str:
    return f"{PIPELINE}.stream.{STREAM}"


def _driver_log(parts: ExampleParts, app: str) -> Path:
    """The log of an app's newest epoch."""
    folder = parts.state_folder / "streams" / app
    epochs = [int(path.name) for path in folder.glob("*") if path.name.isdigit()]
    return folder / str(max(epochs)) / "driver.log" if epochs else folder
