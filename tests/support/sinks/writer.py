"""A writer at the sink's contract: one epoch of a stream that stages rows the way Spark's tasks do."""

from __future__ import annotations

import psycopg
import pyarrow as pa

from millrace.adapters.postgres.connection import connect
from millrace.adapters.sinks.postgres.sink import PostgresAppend
from millrace.domain.sinks.batch import Identity, Written
from millrace.domain.topics.offsets import OffsetRange, TopicPartition
from millrace.settings import PostgresSettings
from support.sinks.table_columns import SOURCE

P0 = TopicPartition("t", "id-one", 0)
COLUMNS = pa.schema([("name", pa.string()), ("amount", pa.decimal128(12, 2))])


class Writer:
    """One epoch of a stream, staging rows the way Spark's tasks do."""

    def __init__(self, database: PostgresSettings, name: str, epoch: int) -> None:
        self.identity = Identity(f"{name}.s", epoch, f"instance{epoch}")
        self.sink = PostgresAppend(database, self.identity, f"{name}.rows")
        self.database = database

    def ready(self, columns=COLUMNS) -> Writer:
        self.sink.take_over()
        if not self.sink.read_record().next_offsets:
            self.sink.open_positions(1, {P0: 0})
        self.sink.prepare(columns)
        return self

    def stage(self, offsets, *, attempt=1, value="x", ordinal=0) -> None:
        statement = f"INSERT INTO {{}} (_attempt, {SOURCE}, name, amount) "
        with connect(self.database, "stage") as connection:
            for offset in offsets:
                connection.execute(
                    psycopg.sql.SQL(statement + "VALUES (%s, %s, 0, %s, %s, %s, %s)").format(self.sink.staging.rows),
                    (attempt, P0.topic_id, offset, ordinal, value, offset),
                )

    def commit(self, first: int, end: int, *, refused=None, value="x"):
        self.sink.begin_batch()
        self.stage(range(first, end), value=value)
        return self.merge(first, end, rows=end - first, refused=refused or {})

    def merge(self, first: int, end: int, **staged):
        """The batch's transaction, for what was staged by attempt 1."""
        return self.merge_ranges([OffsetRange(P0, first, end)], **staged)

    def merge_ranges(self, ranges, *, rows: int, attempts=(1,), bad_records=0, refused=None, timeline=1, records=None):
        """The same for ranges of any partitions."""
        written = Written(attempts, rows, bad_records, refused or {}, records)
        return self.sink.commit_batch(timeline, ranges, written)
