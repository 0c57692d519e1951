from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException
from hypothesis import given
from hypothesis import strategies as st

from millrace.adapters.kafka.producers import transactions as kafka_transactions
from millrace.domain.declaration.pipeline import Pipeline, SourceProgram
from millrace.domain.topics.sources import SourceRecord, TopicRecord, loaded, sequence_header, sequence_of
from millrace.errors import DataLossError, DeclarationError, FencedError, UsageError
from millrace.settings import KafkaSettings, Settings
from millrace.usecases.topics import sources
from millrace.usecases.topics.sources import LoadPhase, LoadProgress, find_source, load_program, load_source

KAFKA = '{"conn_type": "kafka", "extra": {"bootstrap.servers": "nowhere:1"}}'
PIPELINE = Pipeline("shop", "team", "millrace_kafka", (), (), (SourceProgram("numbers", "shop", "numbers", "topic"),))
PROGRAM = """
from datetime import UTC, datetime
from millrace.domain.topics.sources import SourceRecord

def records():
    for number in range(25):
        yield SourceRecord(b"k", str(number).encode(), datetime(1997, 1, 1, tzinfo=UTC))
"""


class Topic:
    """A topic in memory whose transactions fail when told to."""

    def __init__(self) -> None:
        self.records: list[TopicRecord] = []
        self.transactions: list[int] = []
        self.fails_after: int | None = None

    def committed(self, progress: Callable[[int], None]) -> Iterator[TopicRecord]:
        progress(len(self.records))
        yield from self.records

    def write(self, records: Iterable[SourceRecord], first_sequence: int) -> None:
        if self.fails_after == len(self.transactions):
            raise FencedError("a newer loader")
        batch = list(records)
        self.transactions.append(len(batch))
        for sequence, record in enumerate(batch, first_sequence):
            header = sequence_header("shop.numbers", sequence)
            self.records.append(TopicRecord(0, len(self.records), record.key, record.value, (header,)))

    @contextmanager
    def open(self, kafka: KafkaSettings, topic: str, source: str) -> Iterator[Topic]:
        assert (kafka.bootstrap_servers, topic, source) == ("nowhere:1", "topic", "shop.numbers")
        yield self

    @property
    def values(self) -> list[int]:
        return [int(record.value or b"") for record in self.records]


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(sources, "TRANSACTION_RECORDS", 10)
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / "numbers.py").write_text(PROGRAM)
    return Settings(tmp_path, lambda _: KAFKA)


def load(settings: Settings, topic: Topic, progress: Callable[[LoadProgress], None] = lambda _: None):
    return load_source(settings, PIPELINE, "numbers", progress, open_topic=topic.open)


def test_a_load_writes_everything_in_transactions(settings: Settings) -> None:
    topic = Topic()
    seen: list[LoadProgress] = []
    report = load(settings, topic, seen.append)
    assert (report.produced, report.already_there, report.total) == (25, 0, 25)
    assert topic.transactions == [10, 10, 5]
    assert topic.values == list(range(25))
    assert [step.records for step in seen if step.phase is LoadPhase.PRODUCING] == [0, 10, 20, 25]


def test_a_second_load_writes_nothing(settings: Settings) -> None:
    topic = Topic()
    load(settings, topic)
    report = load(settings, topic)
    assert (report.produced, report.already_there, report.total) == (0, 25, 25)
    assert topic.values == list(range(25))


@pytest.mark.parametrize("transactions", [0, 1, 2])
def test_a_load_goes_on_where_an_earlier_one_ended(settings: Settings, transactions: int) -> None:
    topic = Topic()
    topic.fails_after = transactions
    with pytest.raises(FencedError):
        load(settings, topic)
    topic.fails_after = None
    report = load(settings, topic)
    assert report.already_there == transactions * 10
    assert topic.values == list(range(25))


def test_what_retention_deleted_is_not_written_again(settings: Settings) -> None:
    topic = Topic()
    load(settings, topic)
    del topic.records[:20]
    assert load(settings, topic).produced == 0


def test_a_large_record_ends_its_transaction(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "TRANSACTION_BYTES", 7)
    topic = Topic()
    load(settings, topic)
    assert max(topic.transactions) == 4
    assert topic.values == list(range(25))


def test_a_doubled_record_is_named(settings: Settings) -> None:
    topic = Topic()
    load(settings, topic)
    topic.records.append(topic.records[7])
    with pytest.raises(DataLossError, match="sequences 7"):
        load(settings, topic)


def test_a_program_that_shrank_is_named(settings: Settings) -> None:
    topic = Topic()
    load(settings, topic)
    program = settings.root / "sources" / "numbers.py"
    # Another size: Python takes the compiled file of a program whose second and size are those of the program before.
    program.write_text(PROGRAM.replace("range(25)", "range(12 * 2)"))
    with pytest.raises(DataLossError, match=r"25 records of source shop\.numbers, but its program yields only 24"):
        load(settings, topic)


def test_an_undeclared_source_names_the_declared_ones() -> None:
    with pytest.raises(UsageError, match="choose one of: numbers"):
        find_source(PIPELINE, "other")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "the source program does not exist"),
        ("x = 1", "has no function `records`"),
        ("import nothing_of_this_name", "cannot be imported: ModuleNotFoundError"),
        ("def records(:", "cannot be imported: SyntaxError"),
    ],
)
def test_a_program_that_cannot_be_used_is_named(tmp_path: Path, text: str | None, message: str) -> None:
    (tmp_path / "sources").mkdir()
    if text is not None:
        (tmp_path / "sources" / "broken.py").write_text(text)
    with pytest.raises(DeclarationError, match=message) as raised:
        load_program(tmp_path, "broken")
    assert raised.value.where == "sources/broken.py"


@given(st.integers(min_value=0), st.sampled_from(["shop.cdnow", "a.b", "shop.cdnow2"]))
def test_a_sequence_is_read_back_by_its_own_source_only(sequence: int, source: str) -> None:
    headers = [("other", b"1"), sequence_header(source, sequence)]
    assert sequence_of(source, headers) == sequence
    assert sequence_of("shop.cdno", headers) is None


@pytest.mark.parametrize("value", [b"", b"shop.cdnow", b"shop.cdnow/", b"shop.cdnow/-1", b"shop.cdnow/x", None])
def test_headers_of_another_form_are_nobodys(value: bytes | None) -> None:
    assert sequence_of("shop.cdnow", [("millrace-sequence", value)]) is None


@given(st.sets(st.integers(min_value=0, max_value=50)))
def test_loaded_is_a_beginning_of_the_source(sequences: set[int]) -> None:
    found = loaded(sorted(sequences))
    assert found.next_sequence == max(sequences, default=-1) + 1
    assert found.present + found.expired == found.next_sequence
    assert not found.doubled


def test_timestamps_are_whole_milliseconds_and_never_zero() -> None:
    assert SourceRecord(None, None, datetime(1997, 1, 1, tzinfo=UTC)).timestamp_milliseconds == 852_076_800_000
    assert SourceRecord(None, None, None).timestamp_milliseconds == -1
    with pytest.raises(ValueError, match="timestamp 0"):
        SourceRecord(None, None, datetime(1970, 1, 1, tzinfo=UTC))
    with pytest.raises(ValueError, match="time zone"):
        SourceRecord(None, None, datetime(1997, 1, 1))


class Client:
    """A Kafka client with records in it that tells its fatal error to the first call, and then lets go of some."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.flushes = 0

    def __len__(self) -> int:
        return self.left

    def purge(self) -> None:
        """What it is asked for."""

    def flush(self, _seconds: float) -> int:
        self.flushes += 1
        if self.flushes == 1:
            raise KafkaException(KafkaError(KafkaError._FATAL))
        return self.left


@pytest.mark.parametrize(("left", "said"), [(0, []), (3, ["3 records are still in the client"])])
def test_a_client_that_keeps_records_when_it_is_closed_is_told(
    left: int, said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    client = Client(left)
    kafka_transactions.drop_waiting_records(client)
    assert client.flushes == 2
    assert [record.getMessage()[: len(line)] for record, line in zip(caplog.records, said, strict=True)] == said
