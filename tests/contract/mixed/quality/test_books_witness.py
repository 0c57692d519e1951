"""Offsets without a record, on the real broker and a real archive: who can tell of them, and what is left open."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

import pytest

from millrace.adapters.kafka.log import KafkaLog
from millrace.domain.archive.proof.spans import Spans
from millrace.domain.declaration.pipeline import Backup, Pipeline, Topic
from millrace.domain.quality.books import Doubt, Fault, Finding
from millrace.domain.topics.offsets import OffsetRange, TopicPartition
from millrace.embedded.stack import Stack
from millrace.errors import UnreachableError
from millrace.usecases.quality import witness as books_witness
from millrace.usecases.quality.witness import Witnesses
from support.archive.tees import DUE_AT_ONCE, TeeWorld, Topics
from support.fakes.platform import PartsPlatform
from support.waiting import Deadline, eventually

HOUR_MS = 3_600_000
BEGAN_MS = 1_767_225_600_000


@dataclass
class Read:
    """A topic that a stream has read: what it was given, and of that it drops every third record."""

    topics: Topics
    name: str

    @property
    def partition(self) -> TopicPartition:
        return TopicPartition(self.name, self.topics.topic_id(self.name), 0)

    def offsets(self) -> list[int]:
        """Of the records that a reader of committed ones is given."""
        reader, end = self.topics.platform.kafka.records(), self.topics.end(self.name, 0)
        return [record.offset for record in reader.between(self.name, 0, 0, end)]

    def doubt(self, given: Iterable[int], *, lost: int = 0) -> Doubt:
        """The ledger's entry of a stream that was given these; `lost`: so many more it was not given."""
        given = list(given)
        end = self.topics.end(self.name, 0)
        rows = {offset for at, offset in enumerate(given) if at % 3}
        absent = Spans((offset, offset + 1) for offset in range(end) if offset not in rows)
        return Doubt(OffsetRange(self.partition, 0, end), absent, end - len(given) + lost)

    def judged(self, doubt: Doubt, *, backup: Backup | None = None) -> tuple[Finding, ...]:
        topic = Topic(self.name, "p", partitions=1, backup=backup)
        pipeline = Pipeline("p", "me", "millrace_kafka", (topic,), ())
        judged = Witnesses(self.topics.platform, pipeline).judge([doubt])
        assert (judged.unasked, judged.problem) == ([], None)
        return tuple(judged.findings)


@pytest.fixture
def topics(kafka: Stack, s3: Stack) -> Topics:
    return Topics(kafka)


@pytest.fixture
def read(topics: Topics) -> Read:
    """Commits, aborts, and records of no transaction."""
    found = Read(topics, topics.make(partitions=1))
    for at in range(4):
        topics.transaction(found.name, 0, [b"kept"] * 3, commit=True)
        topics.transaction(found.name, 0, [b"taken back"] * 2, commit=False)
        topics.produce(found.name, 0, [b"plain"] * (at + 1))
    return found


def archived(read: Read) -> None:
    world = TeeWorld(read.topics, [read.name], read.topics.platform.objects.store())
    world.archive_all(world.next_epoch())


def test_markers_and_aborted_records_are_witnessed_by_the_log(read):
    given = read.offsets()
    assert len(given) == 12 + 10
    assert read.judged(read.doubt(given)) == ()


def test_and_by_the_archive_where_the_log_is_gone(read):
    doubt = read.doubt(read.offsets())
    archived(read)
    read.topics.trim(read.name, 0, doubt.range.next)
    assert read.judged(doubt, backup=DUE_AT_ONCE) == ()
    [open_] = read.judged(doubt)
    assert (open_.fault, open_.spans, open_.offsets) == (Fault.UNWITNESSED, tuple(doubt.absent), doubt.absent.offsets)
    assert "16 of them held no record" in open_.detail


@pytest.mark.parametrize("backup", [None, DUE_AT_ONCE])
def test_a_record_that_the_stream_was_not_given_is_told_whoever_knows_of_it(read, backup):
    doubt = read.doubt(read.offsets(), lost=1)
    archived(read)
    [found] = read.judged(doubt, backup=backup)
    assert (found.fault, found.offsets, found.spans) == (Fault.UNREAD, 1, ((0, doubt.range.next),))


def test_a_log_that_begins_in_the_middle_tells_of_what_it_has(read):
    given = read.offsets()
    doubt = read.doubt(given)
    middle = given[len(given) // 2]
    read.topics.trim(read.name, 0, middle)
    [found] = read.judged(doubt)
    assert found.fault is Fault.UNWITNESSED
    assert found.spans == tuple((first, min(next_, middle)) for first, next_ in doubt.absent if first < middle)


def test_where_nobody_counted_the_records_every_absent_offset_has_to_be_known(read):
    doubt = read.doubt(read.offsets())
    unknown = Doubt(doubt.range, doubt.absent, None)
    assert read.judged(unknown) == ()
    read.topics.trim(read.name, 0, doubt.range.next)
    assert [one.fault for one in read.judged(unknown)] == [Fault.UNWITNESSED]


def test_the_log_of_a_topic_that_was_made_again_tells_nothing(read):
    doubt = read.doubt(read.offsets())
    read.topics.delete(read.name)
    read.topics.make(partitions=1)
    read.topics.produce(read.name, 0, [b"x"] * 50)
    assert [one.fault for one in read.judged(doubt)] == [Fault.UNWITNESSED]
    read.topics.delete(read.name)
    assert [one.fault for one in read.judged(doubt)] == [Fault.UNWITNESSED]


def test_what_is_too_much_for_one_run_is_left_for_the_next_but_one_entry_is_always_read(read, monkeypatch):
    whole = read.doubt(read.offsets())
    middle = whole.range.next // 2
    first = Doubt(OffsetRange(read.partition, 0, middle), Spans(whole.absent.within(0, middle)), None)
    second = Doubt(OffsetRange(read.partition, middle, whole.range.next), whole.absent.minus(first.absent), None)
    monkeypatch.setattr(books_witness, "MOST_READ", 5)
    pipeline = Pipeline("p", "me", "millrace_kafka", (), ())
    judged = Witnesses(read.topics.platform, pipeline).judge([first, second])
    assert (judged.findings, judged.unasked) == ([], [second.range])
    assert Witnesses(read.topics.platform, pipeline).judge([second]).unasked == []


def test_a_broker_that_does_not_answer_leaves_the_doubts_for_the_next_run(read):
    from millrace.settings import KafkaSettings

    doubt = read.doubt(read.offsets())
    away = KafkaLog(KafkaSettings({"bootstrap.servers": "127.0.0.1:1"}), client_id="test", timeout=timedelta(seconds=1))
    platform = PartsPlatform(kafka_logs=lambda connection: away)
    judged = Witnesses(platform, Pipeline("p", "me", "millrace_kafka", (), ())).judge([doubt])  # type: ignore[arg-type]
    assert (judged.findings, judged.unasked) == ([], [doubt.range])
    assert isinstance(judged.problem, UnreachableError)


def test_a_topic_that_is_made_again_while_it_is_read_tells_nothing(read, monkeypatch):
    from millrace.adapters.kafka.reader import TopicReader

    doubt, between = read.doubt(read.offsets()), TopicReader.between

    def meanwhile(reader, *asked):
        records = list(between(reader, *asked))
        read.topics.delete(read.name)
        read.topics.make(partitions=1)
        return iter(records)

    monkeypatch.setattr(TopicReader, "between", meanwhile)
    assert [one.fault for one in read.judged(doubt)] == [Fault.UNWITNESSED]


def test_that_an_archive_has_a_record_is_no_proof_that_the_stream_could_have_it(read):
    """Compaction may have taken it from the log in between."""
    doubt = read.doubt(read.offsets(), lost=1)
    archived(read)
    read.topics.trim(read.name, 0, doubt.range.next)
    assert [one.fault for one in read.judged(doubt, backup=DUE_AT_ONCE)] == [Fault.UNWITNESSED]


@pytest.mark.full  # the cleaner rests 15 s
def test_what_compaction_took_before_the_stream_came_is_witnessed_by_the_log(topics):
    settings = {"cleanup_policy": "compact", "segment_ms": str(HOUR_MS // 2), "min_cleanable_dirty_ratio": "0.001"}
    read = Read(topics, topics.make(partitions=1, **settings))
    for wave in range(1, 4):  # each begins a new segment: the cleaner leaves the last one alone
        for key in [b"a", b"b", b"c"] * 4:
            topics.produce(read.name, 0, [b"%d" % wave], key=key, timestamp=BEGAN_MS + wave * HOUR_MS)
    given = eventually(
        lambda: offsets if len(offsets := read.offsets()) < 36 - 12 else None,
        within=Deadline.SESSION,
        what="two waves of records to be compacted",
    )
    assert read.judged(read.doubt(given)) == ()
    [found] = read.judged(read.doubt(given, lost=1))
    assert found.fault is Fault.UNREAD
