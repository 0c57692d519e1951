"""Up to where something of each stream is proven, each in a table of its own, and how long looks are kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB, insert

from millrace.adapters.control import log as control_log
from millrace.adapters.control.database.tables import METADATA, NOW, TIMESTAMP
from millrace.domain.formats.shortened import shortened
from millrace.domain.quality.ranges import Mark
from millrace.domain.topics.offsets import TopicPartition

KEPT = timedelta(days=100)
"""Long enough for four weeks of the same hour, and a quarter to look back on."""
LEAST_KEPT = 20
_MOST_NAMED = 20


def mark_table(name: str) -> sa.Table:
    """A table of marks by stream."""
    return sa.Table(
        name,
        METADATA,
        sa.Column("stream", sa.Text, primary_key=True),
        sa.Column("timeline", sa.Integer, nullable=False),
        sa.Column("offsets", JSONB, nullable=False),
        sa.Column("moved_at", TIMESTAMP, nullable=False, server_default=NOW),
    )


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks of one table; every method works inside the caller's transaction."""

    table: sa.Table

    def lock(self, connection: sa.Connection, stream: str) -> None:
        """One writer of a stream's mark at a time, until the transaction ends."""
        name = f"{self.table.name}:{stream}"
        connection.execute(sa.text("select pg_advisory_xact_lock(hashtextextended(:name, 0))"), {"name": name})

    def get(self, connection: sa.Connection, stream: str) -> Mark:
        """Up to where a stream is proven; nothing is where nobody has looked."""
        row = connection.execute(self.table.select().where(self.table.c.stream == stream)).one_or_none()
        return Mark() if row is None else mark_of({"timeline": row.timeline, "offsets": row.offsets})

    def move(self, connection: sa.Connection, stream: str, mark: Mark) -> None:
        """Put a stream's mark elsewhere."""
        values = {**mark_body(mark), "moved_at": sa.func.now()}
        statement = insert(self.table).values(stream=stream, **values)
        connection.execute(statement.on_conflict_do_update(index_elements=[self.table.c.stream], set_=values))

    def accept(
        self, connection: sa.Connection, stream: str, mark: Mark, *, actor: str, reason: str, action: str, **facts: str
    ) -> None:
        """Put a stream's mark elsewhere because somebody says so, with an entry of the action log.

        Args:
            connection: the caller's transaction, which holds the mark's lock.
            stream: PIPELINE.STREAM.
            mark: the new one.
            actor: who says so.
            reason: why.
            action: the action's name in the log.
            facts: what was accepted, for the log.
        """
        before = self.get(connection, stream)
        self.move(connection, stream, mark)
        control_log.append(
            connection,
            actor=actor,
            action=action,
            subject=stream,
            reason=reason,
            before=mark_facts(before),
            after={**mark_facts(mark), **facts},
            outcome="done",
        )


def forget_old(connection: sa.Connection, looks: sa.Table, now: datetime) -> None:
    """Forget looks (`id`, `stream`, `began`) that are old, but never the newest of a stream."""
    newer = sa.func.row_number().over(partition_by=looks.c.stream, order_by=looks.c.began.desc())
    ranked = sa.select(looks.c.id, looks.c.began, newer.label("place")).subquery()
    old = sa.select(ranked.c.id).where(ranked.c.place > LEAST_KEPT, ranked.c.began < now - KEPT)
    connection.execute(looks.delete().where(looks.c.id.in_(old)))


def mark_body(mark: Mark) -> dict[str, Any]:
    """A mark as JSON."""
    return {
        "timeline": mark.timeline,
        "offsets": [[*partition_body(p), at, mark.timeline_of(p)] for p, at in sorted(mark.offsets.items())],
    }


def mark_of(body: Mapping[str, Any]) -> Mark:
    """A mark out of JSON."""
    rows = [(TopicPartition(*one[:3]), one[3], one[4]) for one in body["offsets"]]
    older = {partition: timeline for partition, _, timeline in rows if timeline != body["timeline"]}
    return Mark(body["timeline"], {partition: at for partition, at, _ in rows}, older)


def mark_facts(mark: Mark) -> dict[str, str]:
    """A mark for the action log: the offsets of a few partitions, and of how many more."""
    named = [f"{partition}@{at}" for partition, at in sorted(mark.offsets.items())]
    return {"timeline": str(mark.timeline), "proven": shortened(named, _MOST_NAMED)}


def partition_body(partition: TopicPartition) -> tuple[str, str, int]:
    """A partition as JSON."""
    return partition.topic, partition.topic_id, partition.partition
