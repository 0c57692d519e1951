"""Sinks with books: rows, quarantine, a record of work and the ledger of it, made as batches make them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from millrace.adapters.postgres.schema import ensure_schema
from millrace.adapters.sinks.postgres.books import SinkBooks
from millrace.adapters.sinks.postgres.ledger import Ledger
from millrace.adapters.sinks.postgres.tables import TargetTable
from millrace.domain.quality.ranges import Work
from millrace.domain.topics.offsets import OffsetRange, TopicPartition
from support.quality.sinks import Sink
from support.sinks.table_columns import OWN_WITH_KEY

TOPIC, TOPIC_ID = "shop.purchases", "booksbooksbooksbooks12"
STREAM, TABLE = "shop.purchases", "shop.purchases"
_PLACE = {"stream": STREAM, "topic": TOPIC}


@dataclass
class Made:
    """A sink that one stream has written to; its batches are made by SQL, and booked by the product's own ledger.

    Of the offsets every tenth is dropped, every hundredth and first is in quarantine, and where `gaps` are given every
    one that these divide held no record.
    """

    sink: Sink
    epoch: int = 1

    def __post_init__(self) -> None:
        connection = self.sink.connection
        with connection.cursor() as cursor:
            ensure_schema(cursor)
        connection.execute("DROP SCHEMA IF EXISTS shop CASCADE")
        connection.execute("CREATE SCHEMA shop")
        connection.execute(f"CREATE TABLE {TABLE} (customer text, {OWN_WITH_KEY})")
        connection.execute("TRUNCATE millrace.progress, millrace.quarantine, millrace.ledger")

    @property
    def books(self) -> SinkBooks:
        """What reads them, as the role that may only read."""
        return SinkBooks(self.sink.database.working)

    def batch(
        self,
        first: int,
        next_: int,
        *,
        partition: int = 0,
        topic_id: str = TOPIC_ID,
        timeline: int = 1,
        gaps: int = 0,
        ordinals: int = 1,
    ) -> None:
        """What a batch of these offsets leaves behind."""
        connection = self.sink.connection
        place = {**_PLACE, "id": topic_id, "partition": partition, "timeline": timeline, "epoch": self.epoch}
        place |= {"first": first, "next": next_, "gaps": gaps, "ordinals": ordinals}
        hole = "(%(gaps)s > 0 AND n %% nullif(%(gaps)s, 0) = 0)"
        with connection.transaction(), connection.cursor() as cursor:
            for table, prefix in ((TABLE, "_"), ("millrace.quarantine", "")):
                cursor.execute(
                    f"DELETE FROM {table} WHERE {prefix}topic_id = %(id)s AND {prefix}partition = %(partition)s "
                    f'AND "{prefix}offset" >= %(first)s AND "{prefix}offset" < %(next)s',
                    place,
                )
            cursor.execute(
                f"INSERT INTO {TABLE} SELECT 'c' || n %% 1000, %(id)s, %(partition)s, n, ordinal, %(timeline)s "
                f"FROM generate_series(%(first)s::bigint, %(next)s::bigint - 1) AS n, "
                f"generate_series(0, %(ordinals)s - 1) AS ordinal WHERE n %% 10 <> 0 AND n %% 100 <> 1 AND NOT {hole}",
                place,
            )
            cursor.execute(
                'INSERT INTO millrace.quarantine (stream, timeline, topic, topic_id, partition, "offset", headers, '
                "rule, error, epoch) SELECT %(stream)s, %(timeline)s, %(topic)s, %(id)s, %(partition)s, n, '[]', "
                "'not_json', 'why', %(epoch)s FROM generate_series(%(first)s::bigint, %(next)s::bigint - 1) AS n "
                f"WHERE n %% 100 = 1 AND NOT {hole}",
                place,
            )
            cursor.execute(
                "INSERT INTO millrace.progress AS held VALUES (%(stream)s, %(timeline)s, 0, %(topic)s, %(id)s, "
                "%(partition)s, %(first)s, %(next)s, %(epoch)s) ON CONFLICT (stream, timeline, shard, topic_id, "
                "partition) DO UPDATE SET next_offset = excluded.next_offset",
                place,
            )
            read = next_ - first - (len(range(-(-first // gaps) * gaps, next_, gaps)) if gaps else 0)
            Ledger(STREAM, TargetTable.parse(TABLE)).book(
                cursor,
                [OffsetRange(TopicPartition(TOPIC, topic_id, partition), first, next_)],
                timeline=timeline,
                epoch=self.epoch,
                records=[read],
            )

    def batches(self, first: int, next_: int, *, each: int, partitions: Sequence[int] = (0,), **how: int) -> None:
        """Several of them, of the same size, that do not share an entry of the ledger."""
        for partition in partitions:
            for at in range(first, next_, each):
                self.epoch += 1
                self.batch(at, min(at + each, next_), partition=partition, **how)

    def work(self) -> tuple[Work, ...]:
        """The stream's record of work."""
        return self.books.work(STREAM)[0]

    def execute(self, statement: str, *arguments: object) -> None:
        """Damage something."""
        self.sink.connection.execute(statement, arguments or None)
