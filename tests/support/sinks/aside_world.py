"""What the worlds of sinks have in common whose quarantine lies in the control database, beside them."""

from __future__ import annotations

from typing import Any

import psycopg

from millrace.adapters.postgres.connection import connect
from millrace.domain.sinks.batch import Identity
from millrace.domain.topics.offsets import Source
from millrace.settings import PostgresSettings
from support.stack.faults import hang_up


class AsideWorld:
    """One stream with something in the control database.

    Attributes:
        control: that database.
        stream: PIPELINE.STREAM.
    """

    aside = True
    control: PostgresSettings
    stream: str

    def identity(self, epoch: int, instance: str = "") -> Identity:
        return Identity(self.stream, epoch, instance or f"instance{epoch}")

    def quarantined(self) -> dict[Source, str]:
        asked = 'SELECT topic_id, partition, "offset", rule FROM millrace.quarantine WHERE stream = %s'
        return {(topic_id, number, offset): rule for topic_id, number, offset, rule in self.query(asked, self.stream)}

    def query(self, statement: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """What the control database says."""
        with connect(self.control, "test") as connection:
            return psycopg.Cursor(connection).execute(statement.encode(), arguments).fetchall()

    def left_behind(self) -> list[str]:
        asked = "SELECT tablename FROM pg_tables WHERE schemaname = 'millrace_staging' AND tablename LIKE %s"
        return [name for (name,) in self.query(asked, f"{self.stream}#%")]

    def hang_up(self, sink: Any) -> None:
        if sink._aside._connection is not None:
            hang_up(sink._aside._connection)
