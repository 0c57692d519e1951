"""A stream that writes to Kafka, from a topic to its topics, also after resets by stock tools, and back to its own."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from millrace.adapters.kafka.log import KafkaLog
from millrace.adapters.kafka.reader import TopicReader
from millrace.domain.sinks.origin import Origin
from millrace.domain.topics.sources import TopicRecord
from millrace.embedded.stack import Stack
from millrace.reader import Deduplicator
from support.streams.apps import App
from support.waiting import Deadline

FIRST_MS = 1_764_000_000_000
SCHEMA = "customer STRING NOT NULL, amount INT NOT NULL, size STRING"
NOT_JSON = b"not json"
Record = tuple[str, int | None]

BY_SIZE = """
    from pyspark.sql import functions as F

    def transform(inputs, tables):
        (frame,) = inputs.values()
        great = F.col("amount") >= 50
        return frame.withColumn("topic", F.when(great, F.lit("{great}")).otherwise(F.lit("{small}")))
"""
POSTED_BACK = """
    from pyspark.sql import functions as F

    def transform(inputs, tables):
        (frame,) = inputs.values()
        return frame.withColumn("size", F.when(F.col("amount") >= 50, "great").otherwise("small"))
"""


class ToTopics(App):
    """A stream whose sink are topics; `also` are those beside the one that it reads.

    Args:
        stack: with Kafka and PostgreSQL.
        also: their names, after the pipeline's.
        writes: the sink, as YAML, with `{own}` for the pipeline's name.
        transform: of the app.
    """

    keeps = "millrace_control"
    key = "customer"

    def __init__(self, stack: Stack, also: Sequence[str], writes: str, transform: str) -> None:
        self._also, self._writes = also, writes
        super().__init__(stack, schema=SCHEMA)
        self.write_transform(transform.format(**{name: f"{self.pipeline}.{name}" for name in also}))

    @property
    def more_topics(self) -> dict[str, int]:
        return {f"{self.pipeline}.{name}": 3 for name in self._also}

    @property
    def writes(self) -> str:
        return self._writes.format(own=self.pipeline)

    def put(self, given: Sequence[Record], first: int) -> None:
        """Produce them, a second apart."""
        for number, (customer, amount) in enumerate(given, first):
            body = None if amount is None else json.dumps({"customer": customer, "amount": amount}).encode()
            self._producer.produce(self.topic, body, key=customer, timestamp=FIRST_MS + 1000 * number)
        assert self._producer.flush(Deadline.METADATA.seconds) == 0

    def put_bad(self, number: int) -> None:
        """Produce what is no JSON, at this second."""
        self._producer.produce(self.topic, NOT_JSON, key="c1", timestamp=FIRST_MS + 1000 * number)
        assert self._producer.flush(Deadline.METADATA.seconds) == 0

    def written(self, name: str) -> list[TopicRecord]:
        return list(TopicReader(self.settings.kafka()).committed(f"{self.pipeline}.{name}"))

    def committed(self) -> int:
        """How many offsets the group has done."""
        log = KafkaLog(self.settings.kafka(), client_id="test")
        found = log.committed(f"millrace.{self.stream}", log.partitions([self.topic]))
        return sum(made.offset for made in found.values())

    def sources(self) -> list[tuple[str, int, int]]:
        return [(r.key.decode(), r.partition, r.offset) for r in self.written("events") if r.key]


def told(record: TopicRecord) -> tuple[int, str, int | None]:
    """Its timeline, key and amount; None: the key is deleted."""
    origin = Origin.of(record.headers)
    assert origin is not None
    assert record.key is not None
    return origin.timeline, record.key.decode(), None if record.value is None else json.loads(record.value)["amount"]


def given_of(first: int, end: int) -> list[Record]:
    return [(f"c{n % 5}", None if n % 7 == 6 else n) for n in range(first, end)]


@pytest.fixture
def app(kafka: Stack, postgres: Stack) -> ToTopics:
    return ToTopics(postgres, ("small", "great"), "{{kafka: {{topics: [{own}.small, {own}.great]}}}}", BY_SIZE)


def must_be(app: ToTopics, expected: Sequence[tuple[int, Record]]) -> None:
    """Read with our reader, both topics together hold these: by timeline, key and amount."""
    seen, found = Deduplicator(), Counter[tuple[int, str, int | None]]()
    for name in ("small", "great"):
        for record in app.written(name):
            if seen.is_new(f"{app.pipeline}.{name}", record.partition, record.headers):
                found[told(record)] += 1
                _, _, amount = told(record)
                assert (name == "great") == (amount is not None and amount >= 50)
    assert found == Counter((timeline, *record) for timeline, record in expected)


def test_rows_reach_the_topic_they_name(app: ToTopics) -> None:
    given = given_of(0, 80)
    app.put(given, 0)
    app.put_bad(80)
    with app.running():
        app.until(lambda: app.committed() == 81, "all records to be done")
    must_be(app, [(1, record) for record in given])
    assert app.quarantine() == [("not_json",)]


@pytest.mark.full
def test_what_is_posted_back_to_the_topic_is_read_by_others_and_never_again_by_its_stream(
    kafka: Stack, postgres: Stack
) -> None:
    app = ToTopics(postgres, (), "{{kafka: {{topic: {own}.events}}}}", POSTED_BACK)
    given = [(f"c{n % 5}", n) for n in range(40, 60)]
    app.put(given, 0)
    with app.running():
        app.until(lambda: app.committed() == 40, "its own records to be passed over")
        app.put([("c9", 99)], 100)
        app.until(lambda: app.committed() == 42, "one more and its echo")
    records = app.written("events")
    own = [record for record in records if Origin.of(record.headers) is not None]
    assert Counter(told(record)[1:] for record in own) == Counter([*given, ("c9", 99)])
    assert len(records) == 2 * len(own) == 42
    assert {json.loads(record.value or b"")["size"] for record in own} == {"great", "small"}


@pytest.mark.full
def test_each_way_of_a_stock_reset_writes_exactly_its_range_again(app: ToTopics) -> None:
    given = given_of(0, 60)
    app.put(given, 0)
    app.put_bad(60)
    with app.running():
        app.until(lambda: app.committed() == 61, "all records to be done")
    must_be(app, [(1, record) for record in given])
    ends = Counter(partition for _, partition, _ in app.sources())
    at = datetime.fromtimestamp((FIRST_MS + 57_000) / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.000")
    places = [(r.partition, r.offset) for r in app.written("events")]
    order = {place: record for place, record in zip(places, app.written("events"), strict=True)}
    expected = [(1, record) for record in given]
    for timeline, (where, first) in enumerate(
        ((("--to-offset", "3"), 3), (("--to-datetime", at), None), (("--to-earliest",), 0)), 2
    ):
        app.reset(*where)
        with app.running():
            app.until(lambda: app.committed() == sum(ends.values()), "the range to be read again")
        again = [
            record
            for (_, offset), record in order.items()
            if (offset >= first if first is not None else (record.timestamp_ms or 0) >= FIRST_MS + 57_000)
        ]
        for record in again:
            assert record.key is not None
            if record.value == NOT_JSON:
                continue
            amount = None if record.value is None else json.loads(record.value)["amount"]
            expected.append((timeline, (record.key.decode(), amount)))
        must_be(app, expected)
        assert app.quarantine("rule, timeline") == [("not_json", timeline)]
