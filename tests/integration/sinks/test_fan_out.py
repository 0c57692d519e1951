"""The example of docs/guide/fan-out.md as it is shipped: to a compacted topic, to a table, and enriched in place."""

from __future__ import annotations

import json
import re
import shutil
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from millrace import declarations
from millrace.adapters.kafka.log import KafkaLog
from millrace.adapters.kafka.reader import TopicReader
from millrace.adapters.postgres.connection import connect
from millrace.domain.declaration.pipeline import Topic
from millrace.domain.sinks.origin import Origin
from millrace.domain.topics.sources import TopicRecord
from millrace.embedded.stack import Stack
from millrace.reader import Deduplicator
from millrace.settings import open_settings
from support.streams.apps import Driven
from support.streams.project import reset_by_stock_tool
from support.waiting import Deadline, eventually, result_of

REPOSITORY = Path(__file__).resolve().parents[3]
EXAMPLE = REPOSITORY / "docs" / "examples" / "fan-out"
SHIPPED = ("dags", "include/pipelines", "include/environments", "include/quality", "sources", "spark_apps")
FIRST_DAY = datetime(1997, 1, 1, tzinfo=UTC)
CUSTOMERS, PURCHASES = 10, 200
PARTITIONS = 4


@dataclass(frozen=True)
class Purchase:
    """What the shop says of one."""

    customer_id: str
    purchased_on: str
    quantity: int
    amount: Decimal

    @classmethod
    def of(cls, number: int) -> Purchase:
        """The one of this number: a day after the former; some of nothing, which have no amount per unit."""
        day = FIRST_DAY + timedelta(days=number)
        amount = Decimal(1000 + 37 * number) / 100
        return cls(f"c{number * 7 % CUSTOMERS}", day.date().isoformat(), number % 6, amount)

    @property
    def unit_amount(self) -> Decimal | None:
        if not self.quantity:
            return None
        return (self.amount / self.quantity).quantize(Decimal("0.0001"), ROUND_HALF_UP)

    def plain(self) -> dict[str, Any]:
        """The record's value."""
        return asdict(self)

    def latest(self) -> dict[str, Any]:
        """What `latest` makes of it."""
        return {**self.plain(), "unit_amount": None}

    def enriched(self) -> dict[str, Any]:
        """What `enriched` makes of that, and what stays in `customers.last`."""
        return {**self.plain(), "unit_amount": self.unit_amount}


def last_of_each(given: Iterable[Purchase]) -> dict[str, Purchase]:
    return {purchase.customer_id: purchase for purchase in given}


def laid_over_shipped(root: Path) -> Path:
    """What the guide's `cp` makes of a project as it is shipped."""
    for folder in SHIPPED:
        shutil.copytree(REPOSITORY / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(EXAMPLE, root, dirs_exist_ok=True)
    return root


class FanOut:
    """The example's files under names of its own, in the run's project.

    `shop.purchases` is a topic of the same pipeline here: the run's own belongs to other tests.
    """

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self.root = stack.root
        self.settings = open_settings(stack.root)
        self.name = f"f{uuid.uuid4().hex[:8]}"
        self._admin = AdminClient(dict(self.settings.kafka().librdkafka))
        self._reader = TopicReader(self.settings.kafka())
        self._log = KafkaLog(self.settings.kafka(), client_id="test")
        self.source, self.last = f"{self.name}.purchases", f"{self.name}.last"
        self._write()
        self._make_topics()
        self.producer = Producer(
            {**self.settings.kafka().librdkafka, "partitioner": "murmur2_random", "enable.idempotence": True}
        )
        self.latest, self.table, self.enriched = (self._driven(name) for name in ("latest", "table", "enriched"))

    def _driven(self, stream: str) -> Driven:
        return Driven(self.root, f"{self.name}.{stream}")

    def _renamed(self, text: str) -> str:
        text = text.replace("shop.purchases", self.source).replace("customers.last", self.last)
        text = text.replace("pipeline: customers\n", f"pipeline: {self.name}\n")
        for app in ("last", "enriched"):
            text = text.replace(f"customers_{app}", f"{self.name}_{app}")
        return text

    def _write(self) -> None:
        for app in ("last", "enriched"):
            folder = self.root / "spark_apps" / f"{self.name}_{app}"
            folder.mkdir()
            shipped = EXAMPLE / "spark_apps" / f"customers_{app}" / "transform.py"
            (folder / "transform.py").write_text(self._renamed(shipped.read_text()))
        shop = (REPOSITORY / "include" / "pipelines" / "shop.yaml").read_text()
        [columns] = re.findall(r"schema: (\".*\")", shop)
        source = (
            f"  {self.source}:\n    partitions: {PARTITIONS}\n    key: {{field: customer_id, partitioner: murmur2}}\n"
            f"    value: {{format: json, schema: {columns}}}\n"
        )
        declared = self._renamed((EXAMPLE / "include" / "pipelines" / "customers.yaml").read_text())
        declared = declared.replace("topics:\n", f"topics:\n{source}").replace("trigger: 2s", "trigger: 100ms")
        (self.root / "include" / "pipelines" / f"{self.name}.yaml").write_text(declared)

    def _make_topics(self) -> None:
        """As declared; what the source does not say is as `App` has it: any timestamp, for ever."""
        for topic in declarations.load_pipeline(self.root, self.name, "embedded").topics:
            config = _config(topic) if topic.cleanup else {"retention.ms": "-1", "segment.ms": str(2**63 - 1)}
            new = NewTopic(topic.name, topic.partitions or 0, topic.replication or 0, config=config)
            result_of(self._admin.create_topics([new])[topic.name], what="the new topic")

    def put(self, first: int, end: int) -> None:
        """Produce these purchases by their numbers, each with its day's timestamp."""
        for number in range(first, end):
            made = Purchase.of(number)
            self._produce(self.source, made.customer_id, text_of(made.plain()), FIRST_DAY + timedelta(days=number))
        assert self.producer.flush(Deadline.METADATA.seconds) == 0

    def put_bad(self) -> None:
        self._produce(self.source, "c1", b"not json", FIRST_DAY)
        assert self.producer.flush(Deadline.METADATA.seconds) == 0

    def put_by_others(self, key: str, *values: Mapping[str, Any] | None) -> None:
        """What a program of another team writes to `customers.last`; None: the customer is no more."""
        for value in values:
            self._produce(self.last, key, None if value is None else text_of(value), FIRST_DAY)
        assert self.producer.flush(Deadline.METADATA.seconds) == 0

    def _produce(self, topic: str, key: str, value: bytes | None, at: datetime) -> None:
        self.producer.produce(topic, value, key=key, timestamp=int(at.timestamp() * 1000))

    @contextmanager
    def running(self, *drivers: Driven) -> Iterator[None]:
        """All at once; each ends in order."""
        with ExitStack() as all_of_them:
            for driver in drivers:
                all_of_them.enter_context(driver.running())
            yield

    def at_rest(self) -> None:
        """Wait until `latest` has written all there is and `enriched` has read all there is, its own records too."""
        self.enriched.until(self._is_at_rest, "the topic to be enriched")

    def _is_at_rest(self) -> bool:
        """Asked from the source on: who has read all that was there has, before, written what follows from it."""
        return self._has_read(self.latest, self.source) and self._has_read(self.enriched, self.last)

    def table_is_done(self) -> None:
        self.table.until(lambda: self._has_read(self.table, self.source), "the table")

    def _has_read(self, driver: Driven, topic: str) -> bool:
        """Whether it has done all that the topic held when this was asked."""
        ends = self._reader.ends(topic)
        found = self._log.committed(f"millrace.{driver.stream}", self._log.partitions([topic]))
        done = {partition: made.offset for (_, partition), made in found.items()}
        return all(done.get(partition, 0) >= end for partition, end in ends.items())

    def reset(self, driver: Driven, *where: str) -> None:
        """Reset the group of a stream that reads the source by Kafka's own tool."""
        reset_by_stock_tool(self._stack, f"millrace.{driver.stream}", self.source, *where)

    def records(self) -> list[TopicRecord]:
        return list(self._reader.committed(self.last))

    def last_values(self) -> dict[str, Any]:
        """What compaction would leave of each key, None where it is deleted."""
        found: dict[str, Any] = {}
        for record in sorted(self.records(), key=lambda each: (each.partition, each.offset)):
            assert record.key is not None
            found[record.key.decode()] = value_of(record)
        return found

    def written_by(self, driver: Driven) -> list[tuple[TopicRecord, Origin]]:
        """What the stream has written, each row once."""
        rows, found = Deduplicator(), []
        for record in self.records():
            origin = Origin.of(record.headers)
            if rows.is_new(self.last, record.partition, record.headers) and origin and origin.stream == driver.stream:
                found.append((record, origin))
        return found

    def rows(self) -> list[tuple[Any, ...]]:
        columns = "customer_id, purchased_on::text, quantity, amount, unit_amount"
        return self._query("millrace_sink", f"SELECT {columns} FROM {self.last} WHERE NOT _deleted ORDER BY 1")

    def quarantine(self, driver: Driven, connection: str) -> list[tuple[Any, ...]]:
        query = f"SELECT rule, timeline FROM millrace.quarantine WHERE stream = '{driver.stream}'"
        return self._query(connection, query)

    def _query(self, connection: str, query: str) -> list[tuple[Any, ...]]:
        with connect(self.settings.postgres(connection), "test") as database:
            return database.execute(query).fetchall()


def _config(topic: Topic) -> dict[str, str]:
    assert topic.cleanup is not None
    return {"cleanup.policy": topic.cleanup.value, **dict(topic.config)}


def text_of(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, default=float).encode()


def value_of(record: TopicRecord) -> Any:
    return None if record.value is None else json.loads(record.value, parse_float=Decimal)


def place_of(record: TopicRecord) -> tuple[int, int]:
    return record.partition, record.offset


@pytest.fixture
def example(kafka: Stack, postgres: Stack) -> FanOut:
    return FanOut(postgres)


def must_be_enriched_once(example: FanOut) -> None:
    """Each record of others was posted back exactly once, by the reader's count, and no other record was."""
    own = example.written_by(example.enriched)
    of_others = [
        place_of(record)
        for record in example.records()
        if (origin := Origin.of(record.headers)) is None or origin.stream != example.enriched.stream
    ]
    assert Counter(origin.source[1:] for _, origin in own) == Counter(of_others)
    assert all(origin.in_order for _, origin in own)


def must_be_written_once(example: FanOut, purchases: Sequence[Purchase]) -> None:
    """`latest` wrote each purchase plain, and nothing of the bad record."""
    found = [value_of(record) for record, _ in example.written_by(example.latest)]
    assert sorted(found, key=itemgetter("purchased_on")) == [purchase.latest() for purchase in purchases]


@pytest.mark.full
def test_each_customer_ends_with_the_last_purchase_enriched_once_and_the_table_has_the_same(example: FanOut) -> None:
    given = [Purchase.of(number) for number in range(PURCHASES)]
    last = last_of_each(given)
    assert len(last) == CUSTOMERS
    assert {purchase.unit_amount is None for purchase in last.values()} == {True, False}
    # What `enriched` makes of the first of each comes behind the second: left out, that would not be the last.
    older, newer = (replace(Purchase.of(number), customer_id="other") for number in (1, 2))
    filled = {**newer.plain(), "unit_amount": Decimal("9.5")}
    example.put_by_others("other", older.latest(), filled)
    largest = replace(Purchase.of(1), customer_id="largest", quantity=1, amount=Decimal("9999999999.99"))
    example.put_by_others("largest", largest.latest())
    example.put_by_others("gone", replace(older, customer_id="gone").latest(), None)

    example.put(0, PURCHASES // 2)
    example.put_bad()
    with example.running(example.latest, example.table, example.enriched):
        example.at_rest()
        example.put(PURCHASES // 2, PURCHASES)
        example.table_is_done()
        example.at_rest()

    expected = {key: purchase.enriched() for key, purchase in last.items()} | {"other": filled, "gone": None}
    expected["largest"] = largest.enriched()
    assert example.last_values() == expected
    must_be_written_once(example, given)
    must_be_enriched_once(example)
    assert example.rows() == [(*purchase.plain().values(), None) for _, purchase in sorted(last.items())]
    for driver, connection in ((example.latest, "millrace_control"), (example.table, "millrace_sink")):
        assert example.quarantine(driver, connection) == [("not_json", 1)]


@pytest.mark.full
def test_a_reset_of_latest_to_the_beginning_ends_the_same_by_key(example: FanOut) -> None:
    given = [Purchase.of(number) for number in range(PURCHASES)]
    example.put(0, PURCHASES)
    example.put_bad()
    with example.running(example.latest, example.table, example.enriched):
        example.table_is_done()
        example.at_rest()
    before, table = example.last_values(), example.rows()
    assert before == {key: purchase.enriched() for key, purchase in last_of_each(given).items()}
    example.reset(example.latest, "--to-earliest")
    with example.running(example.latest, example.enriched):
        example.at_rest()
    assert example.last_values() == before
    assert example.rows() == table
    must_be_enriched_once(example)
    timelines = Counter(origin.timeline for _, origin in example.written_by(example.latest))
    assert timelines == {1: PURCHASES, 2: PURCHASES}
    assert example.quarantine(example.latest, "millrace_control") == [("not_json", 2)]


@pytest.mark.full
def test_only_by_the_brokers_time_does_a_lag_keep_a_purchase_from_being_compacted_away(
    kafka: Stack, tmp_path: Path
) -> None:
    """What the guide warns of: the newer purchase waits to be read, and the older one comes back behind it."""
    settings = open_settings(kafka.root)
    reader, producer = TopicReader(settings.kafka()), Producer(dict(settings.kafka().librdkafka))
    admin = AdminClient(dict(settings.kafka().librdkafka))
    config = dict(declarations.load_pipeline(laid_over_shipped(tmp_path), "customers", "embedded").topics[0].config)
    small = {"cleanup.policy": "compact", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0"}
    declared, dated = (f"f{uuid.uuid4().hex[:8]}.{name}" for name in ("declared", "dated"))
    kept = {declared: config, dated: {**config, "message.timestamp.type": "CreateTime"}}
    for name, settled in kept.items():
        new = NewTopic(name, 1, 1, config={**settled, **small})
        result_of(admin.create_topics([new])[name], what="the new topic")
    at = int(FIRST_DAY.timestamp() * 1000)

    def put(name: str) -> None:
        for value in (b"1", b"2", b"1 again"):
            producer.produce(name, value, key=b"c1", timestamp=at)
        for number in range(30):  # three segments
            producer.produce(name, bytes(100_000), key=b"f%d" % number, timestamp=at)
        assert producer.flush(Deadline.METADATA.seconds) == 0

    def of(name: str) -> list[bytes | None]:
        return [record.value for record in reader.committed(name) if record.key == b"c1"]

    put(declared)
    for _ in range(2):  # before the second time it would have been the other's turn, of which nothing is clean yet
        put(dated)
        eventually(lambda: of(dated) == [b"1 again"], within=Deadline.SERVER, what="the cleaner")
    assert of(declared) == [b"1", b"2", b"1 again"]
