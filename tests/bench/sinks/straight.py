"""Batches copied straight into their table: what staging was held against (docs/adr/0017-append-stays-staged.md).

One transaction a source partition, by a task: remove the range, copy, look at the fence, book, move the record of work.
No sink is built of this: quarantine, refused rows and topic ids are left out, which all cost something more.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.csv
from psycopg import sql

from millrace.adapters.postgres.connection import connect
from millrace.adapters.postgres.schema import SHARD
from millrace.adapters.sinks.postgres.copy import as_text
from millrace.adapters.sinks.postgres.ledger import Ledger
from millrace.adapters.sinks.postgres.tables import BY_THE_KEY, TargetTable
from millrace.domain.sinks.batch import Identity
from millrace.domain.topics.offsets import OffsetRange
from millrace.settings import PostgresSettings

_CSV = pa.csv.WriteOptions(include_header=False, quoting_style="needed", batch_size=20_000)


def copied_straight(
    settings: PostgresSettings,
    identity: Identity,
    target: TargetTable,
    entry: OffsetRange,
    names: Iterable[str],
    chunks: Iterable[memoryview | bytes],
    *,
    form: str = "csv",
) -> None:
    """Put a range on record, its rows with it.

    Args:
        settings: the sink's database.
        identity: who holds the fence.
        target: the table.
        entry: the range; each offset has a record.
        names: of the columns that are copied.
        chunks: what is sent, in order.
        form: of COPY: `csv`, `text` or `binary`.
    """
    partition = entry.partition
    source = (partition.topic_id, partition.partition)
    with connect(settings, identity.application_name) as connection, connection.cursor() as cursor:
        cursor.execute(BY_THE_KEY)
        cursor.execute(
            sql.SQL(
                "DELETE FROM {} WHERE _topic_id = %s AND _partition = %s AND _offset >= %s AND _offset < %s"
            ).format(target.identifier),
            (*source, entry.first, entry.next),
        )
        copy_in(cursor, target.identifier, names, chunks, form)
        asked = "SELECT epoch, instance FROM millrace.fence WHERE stream = %s FOR SHARE"
        assert cursor.execute(asked, (identity.stream,)).fetchone() == (identity.epoch, identity.instance)
        booked = Ledger(identity.stream, target).book(
            cursor, [entry], timeline=1, epoch=identity.epoch, records=[entry.next - entry.first]
        )
        assert booked == entry.next - entry.first
        cursor.execute(
            "UPDATE millrace.progress SET next_offset = %s, epoch = %s, updated_at = now() WHERE stream = %s "
            "AND timeline = 1 AND shard = %s AND topic_id = %s AND partition = %s AND next_offset = %s",
            (entry.next, identity.epoch, identity.stream, SHARD, *source, entry.first),
        )
        assert cursor.rowcount == 1


def copy_in(
    cursor: psycopg.Cursor[Any],
    table: sql.Identifier,
    names: Iterable[str],
    chunks: Iterable[memoryview | bytes],
    form: str,
) -> None:
    """One COPY of all chunks."""
    fields = sql.SQL(", ").join(map(sql.Identifier, names))
    statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT {})").format(table, fields, sql.SQL(form))
    with cursor.copy(statement) as copy:
        for chunk in chunks:
            copy.write(chunk)


def as_csv(blocks: Iterable[pa.RecordBatch], timeline: int) -> Iterator[memoryview]:
    """Blocks of rows as the product's tasks send them, with the timeline as the last column."""
    for block in blocks:
        columns = [*(as_text(column) for column in block.columns), pa.array([timeline] * len(block), pa.int32())]
        text = io.BytesIO()
        pa.csv.write_csv(pa.table(columns, names=[*block.schema.names, "_timeline"]), text, _CSV)
        yield text.getbuffer()
