"""A sink's database with an owner and a role that may only read, and tables of a million rows in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import psycopg

from millrace.domain.quality.holding import Asked, Found
from millrace.domain.quality.rules import Rule
from millrace.domain.topics.offsets import OffsetRange, TopicPartition
from support.sinks.table_columns import OWN_WITH_KEY

if TYPE_CHECKING:
    from support.stack.control_databases import ControlDatabase, Databases

TOPIC, TOPIC_ID = "shop.purchases", "qualityqualityquality1"
PARTITIONS = 4
NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)
COLUMNS = (
    "customer text, amount numeric(12,2), quantity int, score double precision, happened timestamptz, kind text, "
    + OWN_WITH_KEY
)


@dataclass(frozen=True)
class Sink:
    """A database that streams write to."""

    database: ControlDatabase
    connection: psycopg.Connection[Any]

    def make(self, table: str, rows: int, *, analysed: bool = True) -> None:
        """A table of sound rows; row n is offset n / 4 of partition n mod 4."""
        schema = table.partition(".")[0]
        self.connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
        self.connection.execute(f"CREATE SCHEMA {schema}")
        self.connection.execute(f"CREATE TABLE {table} ({COLUMNS})")
        self.connection.execute(
            f"INSERT INTO {table} SELECT 'c' || lpad((n % 1000)::text, 4, '0'), n % 500, n % 10 + 1, n / 7.0, "
            "timestamptz '2026-05-04 12:00:00+00' - n * interval '1 second', (ARRAY['a','b','c'])[n % 3 + 1], "
            f"'{TOPIC_ID}', n % {PARTITIONS}, n / {PARTITIONS}, 0, 1 FROM generate_series(0, {rows - 1}) AS n"
        )
        if analysed:
            self.connection.execute(f"ANALYZE {table}")

    def hold(self, table: str, rules: Sequence[Rule], ranges: Sequence[OffsetRange], **more: Any) -> Found:
        """Hold rules against rows, as the role that may only read."""
        from millrace.adapters.quality.checker import QualityChecker

        asked = Asked(
            table,
            rules,
            ranges,
            more.pop("gained", ()),
            NOW,
            more.pop("known_age", {}),
            more.pop("usual", {}),
        )
        return QualityChecker(self.database.working, **more).hold(asked)


def whole(rows: int) -> tuple[OffsetRange, ...]:
    """All rows of a table of so many."""
    return tuple(
        OffsetRange(TopicPartition(TOPIC, TOPIC_ID, number), 0, -(-(rows - number) // PARTITIONS))
        for number in range(PARTITIONS)
    )


@contextmanager
def open_sink(databases: Databases) -> Iterator[Sink]:
    """A database of its own."""
    made = databases.create()
    reader = made.working.user
    databases.execute(made.owner, f"ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO {reader}")
    databases.execute(made.owner, f"ALTER DEFAULT PRIVILEGES GRANT USAGE ON SCHEMAS TO {reader}")
    with psycopg.connect(**made.owner.keywords(), autocommit=True, options="-c timezone=UTC") as connection:
        yield Sink(made, connection)
