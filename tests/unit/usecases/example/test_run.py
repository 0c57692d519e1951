from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from millrace.cli.example.run import print_report
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.proof.coverage import Problem
from millrace.domain.declaration.pipeline import Backup, Pipeline, PostgresSink, SourceProgram, Stream, Topic
from millrace.domain.groups.commits import BackupMetadata, Committed
from millrace.domain.quality.books import Fault, Finding, Reconciliation, Sums
from millrace.domain.quality.ranges import Mark
from millrace.domain.quality.recompute import Apart, Difference, Recomputed
from millrace.domain.streams.position import LogBounds
from millrace.domain.topics.offsets import SourceAt, TopicPartition
from millrace.domain.topics.sources import SourceRecord, TopicRecord, sequence_header
from millrace.errors import PartFailedError
from millrace.usecases.example.backup import ProvenBackup
from millrace.usecases.example.quality import TableVerdict
from millrace.usecases.example.run import ExampleParts, ExampleProgress, ExampleReport, run_example

TOPIC = "shop.purchases"
TOPIC_ID = "T" * 22
PLACE = TopicPartition(TOPIC, TOPIC_ID, 0)
STREAM = Stream("purchases", "shop", "shop_purchases", (TOPIC,), PostgresSink("millrace_sink", TOPIC), "group")
PIPELINE = Pipeline("shop", "team", "millrace_kafka", (), (STREAM,), (SourceProgram("cdnow", "shop", "cdnow", TOPIC),))
BACKED_UP = replace(PIPELINE, topics=(Topic(TOPIC, "shop", backup=Backup()),))
BACKUP_GROUP = "millrace.shop.backup"
DAY = datetime(1997, 1, 12, tzinfo=UTC)


def purchase(number: int) -> SourceRecord:
    value = f'{{"customer_id":"{number:05}","purchased_on":"1997-01-12","quantity":3,"amount":20.00}}'
    return SourceRecord(b"k", value.encode(), DAY)


RECORDS = (
    *(purchase(number) for number in range(4)),
    SourceRecord(b"k", b"{}", DAY, (("millrace-example", b"missing all fields"),)),
)


@dataclass(frozen=True)
class Entry:
    source: SourceAt
    rule: str = "missing_field"


SOUND = TableVerdict("12 rules over 5 rows: passed")


@dataclass
class World:
    """Kafka, Airflow and PostgreSQL in memory: one partition whose last offset is a transaction's marker."""

    state_folder: Path
    records: list[TopicRecord] = field(default_factory=list)
    rows: set[int] = field(default_factory=set)
    changed: set[int] = field(default_factory=set)
    entries: list[Entry] = field(default_factory=list)
    redriven: set[SourceAt] = field(default_factory=set)
    next_offset: int = 0
    committed_offset: int = 0
    backed_up_id: str = TOPIC_ID
    backup_offset: int = 0
    archived: int = 0
    pipeline: Pipeline = PIPELINE
    exists: bool = False
    triggered: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    stream_works: bool = True
    backup_works: bool = True
    breaches: list[Problem] = field(default_factory=list)
    proved: list[Incarnation] = field(default_factory=list)
    watch: tuple[str, str] | None = None
    verdict: TableVerdict | None = SOUND
    problem: str = ""

    def parts(self) -> ExampleParts:
        return ExampleParts(
            self.pipeline,
            lambda: RECORDS,
            self,
            Reader(self),
            self,
            self,
            self.proof,
            lambda topic: f"{topic}: 5 B, without bound",
            self.books,
            self.made_again,
            lambda: self.verdict,
            self.state_folder,
        )

    # Airflow
    def run(
        self, dag_id: str, conf: Mapping[str, str], *, within_seconds: float, progress: Callable[[str], None]
    ) -> str:
        progress("running")
        self.triggered.append((dag_id, dict(conf)))
        if dag_id == "shop.topics":
            self.exists = True
        if dag_id == "shop.source.cdnow":
            self.load()
        return "run"

    def latest_states(self, prefix: str) -> dict[str, str]:
        return {f"{prefix}dag": "success"}

    def latest_run(self, dag_id: str) -> tuple[str, str] | None:
        return self.watch

    def link(self, dag_id: str, run_id: str = "") -> str:
        return f"http://airflow/{dag_id}/{run_id}"

    # Kafka
    def load(self) -> None:
        self.records = [
            TopicRecord(0, offset, record.key, record.value, (*record.headers, sequence_header("shop.cdnow", offset)))
            for offset, record in enumerate(RECORDS)
        ]

    @property
    def end(self) -> int:
        return len(self.records) + 1 if self.records else 0

    def partitions(self, topics: Collection[str]) -> list[TopicPartition]:
        return [TopicPartition(TOPIC, TOPIC_ID, 0)] if self.exists else []

    def bounds(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, LogBounds]:
        return {partition: LogBounds(0, self.end) for partition in partitions}

    def committed(self, group: str, partitions: Collection[TopicPartition]) -> dict[tuple[str, int], Committed]:
        if group != BACKUP_GROUP:
            return {(TOPIC, 0): Committed(self.committed_offset)}
        said = BackupMetadata("shop.backup", self.backed_up_id, 1, self.backup_offset, 1, "")
        return {(TOPIC, 0): Committed(self.backup_offset, said.encode())}

    # PostgreSQL
    def next_offsets(self, stream: str, topic_id: str) -> dict[int, int]:
        return {0: self.next_offset}

    def books(self) -> Reconciliation:
        there = self.rows | {entry.source.offset for entry in self.entries}
        lost = sorted({record.offset for record in self.records} - there)
        spans = tuple((offset, offset + 1) for offset in lost)
        findings = (Finding(Fault.MISSING, PLACE, spans, len(lost), len(lost)),) if lost else ()
        mark = Mark(1, {PLACE: self.next_offset})
        return Reconciliation(
            TOPIC, DAY, DAY, mark, mark, mark, Sums(rows=len(self.rows)), findings, problem=self.problem
        )

    def made_again(self) -> Recomputed:
        places = tuple(SourceAt(TOPIC, 0, offset) for offset in sorted(self.changed))
        apart = (Apart(Difference.CHANGED, "amount", len(places), places),) if places else ()
        return Recomputed(records=len(self.records), compared=5, apart=apart)

    def quarantined(self, stream: str, topic: str, topic_id: str) -> list[Entry]:
        return self.entries

    def redriven_sources(self, stream: str, topic: str, topic_id: str) -> set[SourceAt]:
        return self.redriven

    # S3: what was archived, held against the topic as it is now
    def proof(self, incarnation: Incarnation) -> ProvenBackup:
        self.proved.append(incarnation)
        pending = max(0, self.end - self.backup_offset)
        return ProvenBackup(self.archived, pending, 0, tuple(map(str, self.breaches)), "audit/shop/page.html")

    # The apps: they work while the example waits
    def wait(self, seconds: float) -> None:
        if self.backup_works and self.pipeline.backup:
            self.backup_offset, self.archived = self.end, len(self.records)
        if self.stream_works:
            self.rows = {record.offset for record in self.records[:4]}
            self.entries = [Entry(SourceAt(TOPIC, 0, 4))]
            self.next_offset, self.committed_offset = self.end, self.end


class Reader:
    def __init__(self, world: World) -> None:
        self._world = world

    def committed(self, topic: str) -> Iterator[TopicRecord]:
        yield from self._world.records


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def nothing(_: ExampleProgress) -> None:
    """Progress nobody looks at."""


def test_the_example_runs_the_dags_in_order_and_waits_for_the_stream(world: World) -> None:
    seen: list[ExampleProgress] = []
    report = run_example(world.parts(), seen.append, wait=world.wait)
    assert [dag_id for dag_id, _ in world.triggered] == ["shop.topics", "shop.source.cdnow", "shop.operate"]
    assert world.triggered[2][1].items() >= {"stream": "purchases", "action": "start"}.items()
    assert (report.records_in, report.rows_out, len(report.quarantined), report.lag) == (5, 4, 1, 0)
    assert report.quarantined[0].shows == "missing all fields"
    assert (report.findings, report.exit_code, report.already_done) == ((), 0, False)
    assert ExampleProgress("the stream: offsets processed", 0, 6) in seen


def test_a_second_run_starts_nothing_and_says_so(world: World) -> None:
    run_example(world.parts(), nothing, wait=world.wait)
    world.triggered.clear()
    report = run_example(world.parts(), nothing, wait=world.wait)
    assert report.already_done
    assert report.exit_code == 0
    assert world.triggered == []


def test_a_row_damaged_after_the_first_run_is_found_by_the_second(world: World) -> None:
    run_example(world.parts(), nothing, wait=world.wait)
    world.rows.remove(2)
    world.changed.add(1)
    report = run_example(world.parts(), nothing, wait=world.wait)
    assert report.exit_code == 1
    assert report.findings == (
        "books: missing: shop.purchases/0 [2, 3), 1 offset",
        "recomputed: column amount: differs: 1: shop.purchases/0@1",
    )
    assert report.already_done


def test_a_good_record_in_quarantine_and_a_bad_one_that_is_not_are_findings(world: World) -> None:
    run_example(world.parts(), nothing, wait=world.wait)
    bad = world.entries[0].source
    world.entries = [Entry(SourceAt(TOPIC, 0, 2), "not_json")]
    world.rows.add(bad.offset)
    assert run_example(world.parts(), nothing, wait=world.wait).findings == (
        f"{TOPIC}/0@2: in quarantine as not_json, but it is a good record",
        f"{bad}: not in quarantine, but it is a bad record (missing all fields)",
    )
    world.entries, world.redriven = [], {bad}
    assert run_example(world.parts(), nothing, wait=world.wait).exit_code == 0


def test_books_that_could_not_be_held_to_the_end_are_a_finding(world: World) -> None:
    world.problem = "the bucket does not answer"
    report = run_example(world.parts(), nothing, wait=world.wait)
    [finding] = report.findings
    assert finding.startswith("books: ")
    assert finding.endswith("the bucket does not answer")


def test_a_load_that_was_cut_short_is_finished(world: World) -> None:
    run_example(world.parts(), nothing, wait=world.wait)
    del world.records[3:], world.entries[:]
    world.rows = {0, 1, 2}
    world.next_offset = world.end
    assert run_example(world.parts(), nothing, wait=world.wait).exit_code == 0
    assert ("shop.source.cdnow", {}) in world.triggered[3:]


def test_a_record_missing_from_the_topic_is_named(world: World) -> None:
    run_example(world.parts(), nothing, wait=world.wait)
    del world.records[1]
    world.rows.remove(1)
    world.next_offset = world.end
    (finding,) = run_example(world.parts(), nothing, wait=world.wait).findings
    assert finding.startswith("shop.purchases: lost: 1 records of source shop.cdnow are not in the topic: 1")


def test_a_record_somebody_else_wrote_only_has_to_end_somewhere(world: World) -> None:
    run_example(world.parts(), nothing, wait=world.wait)
    world.records.append(TopicRecord(0, 5, b"k", b"{}"))
    world.next_offset = world.end
    (finding,) = run_example(world.parts(), nothing, wait=world.wait).findings
    assert finding == "books: missing: shop.purchases/0 [5, 6), 1 offset"
    world.entries.append(Entry(SourceAt(TOPIC, 0, 5)))
    assert run_example(world.parts(), nothing, wait=world.wait).exit_code == 0


def test_a_stream_that_does_not_move_is_given_up_with_its_log(world: World) -> None:
    world.stream_works = False
    (world.state_folder / "streams" / "shop.purchases" / "12").mkdir(parents=True)
    (world.state_folder / "streams" / "shop.purchases" / "9").mkdir()
    with pytest.raises(PartFailedError, match="made no progress for 300 s: 0 of 6 offsets") as raised:
        run_example(world.parts(), nothing, wait=world.wait)
    assert raised.value.next_step.endswith("streams/shop.purchases/12/driver.log")
    assert raised.value.where == "http://airflow/shop.stream.purchases/"


def test_a_stream_that_ends_again_and_again_is_given_up_at_once(world: World) -> None:
    world.stream_works = False
    runs = iter(range(1000))

    def wait(_: float) -> None:
        world.watch = (f"run-{next(runs)}", "failed")

    with pytest.raises(PartFailedError, match="ended 3 times") as raised:
        run_example(world.parts(), nothing, wait=wait)
    assert raised.value.where == "http://airflow/shop.stream.purchases/run-2"


@pytest.fixture
def backed_up(world: World) -> World:
    world.pipeline = BACKED_UP
    return world


def test_a_topic_that_is_backed_up_is_waited_for_and_proved(backed_up: World) -> None:
    seen: list[ExampleProgress] = []
    report = run_example(backed_up.parts(), seen.append, wait=backed_up.wait)
    started = [conf for dag_id, conf in backed_up.triggered if dag_id == "shop.operate"]
    assert [(conf["stream"], conf["action"]) for conf in started] == [("purchases", "start"), ("backup", "start")]
    assert [dag_id for dag_id, _ in backed_up.triggered][4:] == ["shop.backup_audit"]
    assert len(backed_up.triggered) == 5
    assert backed_up.proved == [Incarnation(TOPIC, TOPIC_ID)]
    assert (archived(report), report.findings, report.exit_code) == (5, (), 0)


def test_the_backup_is_waited_for_when_the_stream_is_done_before_it(backed_up: World) -> None:
    backed_up.backup_works = False
    seen: list[str] = []

    def wait(seconds: float) -> None:
        backed_up.wait(seconds)
        backed_up.backup_works = "the backup is copying the topic to S3" in seen

    report = run_example(backed_up.parts(), lambda progress: seen.append(progress.step), wait=wait)
    assert (archived(report), report.exit_code) == (5, 0)


def test_where_no_topic_is_backed_up_nothing_is_said_of_an_archive(world: World) -> None:
    report = run_example(world.parts(), nothing, wait=world.wait)
    assert report.backup is None
    assert world.proved == []
    assert [conf["stream"] for dag_id, conf in world.triggered if dag_id == "shop.operate"] == ["purchases"]
    assert "archive" not in printed(report)


def test_a_second_run_starts_nothing_once_stream_and_backup_are_done(backed_up: World) -> None:
    run_example(backed_up.parts(), nothing, wait=backed_up.wait)
    backed_up.triggered.clear()
    report = run_example(backed_up.parts(), nothing, wait=backed_up.wait)
    assert (report.already_done, archived(report), report.exit_code) == (True, 5, 0)
    assert backed_up.triggered == []


def test_a_second_run_starts_what_is_behind_though_only_the_backup_is(backed_up: World) -> None:
    run_example(backed_up.parts(), nothing, wait=backed_up.wait)
    backed_up.triggered.clear()
    backed_up.backup_offset, backed_up.archived = 2, 2
    report = run_example(backed_up.parts(), nothing, wait=backed_up.wait)
    assert [dag_id for dag_id, _ in backed_up.triggered][2:] == ["shop.operate", "shop.operate", "shop.backup_audit"]
    assert (report.already_done, archived(report), report.exit_code) == (False, 5, 0)


def test_what_the_archives_proof_finds_is_a_finding(backed_up: World) -> None:
    run_example(backed_up.parts(), nothing, wait=backed_up.wait)
    backed_up.breaches.append(Problem("is not there", sequence=3, partition=0, first=0, next=2))
    report = run_example(backed_up.parts(), nothing, wait=backed_up.wait)
    assert report.exit_code == 1
    assert report.findings == ("archive: manifest 3: is not there [0, 2) of partition 0",)
    assert "in the archive" not in printed(report)


def test_what_came_after_the_backup_stood_at_the_end_is_a_finding(backed_up: World) -> None:
    """The proof looks later than the group: somebody may have produced since."""

    def proof(incarnation: Incarnation) -> ProvenBackup:
        backed_up.backup_offset = 2
        return backed_up.proof(incarnation)

    report = run_example(replace(backed_up.parts(), proof=proof), nothing, wait=backed_up.wait)
    (finding,) = report.findings
    assert finding.startswith("archive: some records are not archived yet")
    assert report.exit_code == 1


def test_a_backup_that_does_not_move_is_given_up_with_its_log(backed_up: World) -> None:
    backed_up.backup_works = False
    (backed_up.state_folder / "streams" / "shop.backup" / "3").mkdir(parents=True)
    (backed_up.state_folder / "streams" / "shop.purchases" / "4").mkdir(parents=True)
    with pytest.raises(PartFailedError, match="backup made no progress for 300 s: 6 offsets") as raised:
        run_example(backed_up.parts(), nothing, wait=backed_up.wait)
    assert raised.value.next_step.endswith("streams/shop.backup/3/driver.log")
    assert raised.value.where == "http://airflow/shop.backup/"


def test_a_backup_that_ends_again_and_again_is_given_up_at_once(backed_up: World) -> None:
    backed_up.backup_works = False
    runs = iter(range(1000))

    def wait(seconds: float) -> None:
        backed_up.wait(seconds)
        backed_up.watch = (f"run-{next(runs)}", "failed")

    with pytest.raises(PartFailedError, match=r"the backup shop\.backup ended 3 times: 6 offsets") as raised:
        run_example(backed_up.parts(), nothing, wait=wait)
    assert raised.value.where.startswith("http://airflow/shop.backup/run-")


def test_what_was_archived_of_a_topic_that_is_gone_does_not_count(backed_up: World) -> None:
    run_example(backed_up.parts(), nothing, wait=backed_up.wait)
    backed_up.triggered.clear()
    backed_up.backed_up_id, backed_up.backup_works = "F" * 22, False
    with pytest.raises(PartFailedError, match="6 offsets are not archived"):
        run_example(backed_up.parts(), nothing, wait=backed_up.wait)


def test_the_printed_report_says_how_many_records_are_archived(backed_up: World) -> None:
    text = printed(run_example(backed_up.parts(), nothing, wait=backed_up.wait))
    assert "  backup       5 of 5 records proven, lost 0; evidence: audit/shop/page.html\n" in text
    assert "  kept         shop.purchases: 5 B, without bound\n" in text
    assert "  quality      12 rules over 5 rows: passed\n" in text
    assert "Every record is proven to be in the archive." in text


def test_broken_rules_are_in_the_report_and_make_it_red(backed_up: World) -> None:
    backed_up.verdict = TableVerdict("2 rules over 5 rows: broken: once", ("quality: once: 2 of 5 rows break it",))
    report = run_example(backed_up.parts(), nothing, wait=backed_up.wait)
    assert report.exit_code == 1
    text = printed(report)
    assert "  quality      2 rules over 5 rows: broken: once\n" in text
    assert "    quality: once: 2 of 5 rows break it\n" in text


def archived(report: ExampleReport) -> int | None:
    return report.backup.records if report.backup else None


def printed(report: ExampleReport) -> str:
    said = StringIO()
    print_report(Console(file=said), report, ())
    return said.getvalue()
