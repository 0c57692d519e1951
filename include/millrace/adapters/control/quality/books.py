"""Runs over the books of streams, and up to where those of each are proven."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB, insert

from millrace.adapters.control.database.connection import translated
from millrace.adapters.control.database.tables import METADATA, TIMESTAMP
from millrace.adapters.control.quality.marks import (
    Marks,
    forget_old,
    mark_body,
    mark_of,
    mark_table,
    partition_body,
)
from millrace.domain.quality.books import Fault, Finding, Reconciliation, Sums
from millrace.domain.quality.ranges import Mark
from millrace.domain.topics.offsets import TopicPartition
from millrace.settings import PostgresSettings

VERSION = 1

books_run = sa.Table(
    "books_run",
    METADATA,
    sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=True),
    sa.Column("stream", sa.Text, nullable=False),
    sa.Column("began", TIMESTAMP, nullable=False),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("balance", sa.Text, nullable=False),
    sa.Column("body", JSONB, nullable=False),
    sa.Index("books_run_stream_began_idx", "stream", "began", "actor", unique=True),
)
books_mark = mark_table("books_mark")
_MARKS = Marks(books_mark)


class BooksTable:
    """Runs by stream, and the mark up to where the books of each are proven."""

    def __init__(self, engine: sa.Engine, settings: PostgresSettings) -> None:
        self._engine = engine
        self._settings = settings

    def mark(self, stream: str) -> Mark:
        """Up to where a stream's books are proven; nothing is where nobody has looked."""
        with translated(self._settings), self._engine.begin() as connection:
            return _MARKS.get(connection, stream)

    def store(self, run: Reconciliation, *, seen: Mark, stops: Mapping[TopicPartition, int]) -> Reconciliation:
        """Store a run and move the mark to where it has proven the books; both or neither. Twice is once.

        Args:
            run: what was found.
            seen: the mark as it was when the run began. Where another one has moved it since, it goes only back, to the
                first that this one found wrong.
            stops: where that is, by partition.

        Returns:
            The run with its identity.
        """
        values = {
            "stream": run.stream,
            "began": run.began,
            "actor": run.actor,
            "balance": run.balance.value,
            "body": _body_of(run),
        }
        table = books_run
        with translated(self._settings), self._engine.begin() as connection:
            _MARKS.lock(connection, run.stream)
            made = insert(table).values(values).on_conflict_do_nothing().returning(table)
            row = connection.execute(made).one_or_none()
            if row is None:
                same = (table.c.stream == run.stream, table.c.began == run.began, table.c.actor == run.actor)
                return _run_of(connection.execute(table.select().where(*same)).one())
            held = _MARKS.get(connection, run.stream)
            back = {partition: min(at, stops.get(partition, at)) for partition, at in held.offsets.items()}
            _MARKS.move(connection, run.stream, run.upto if held == seen else replace(held, offsets=back))
            return _run_of(row)

    def latest(self, stream: str) -> Reconciliation | None:
        """The run over a stream's books that was stored last; None where there was none."""
        with translated(self._settings), self._engine.begin() as connection:
            row = connection.execute(_newest(stream)).one_or_none()
        return None if row is None else _run_of(row)

    def accept(self, run: Reconciliation, *, actor: str, reason: str) -> bool:
        """Move the mark over all that a run has looked at; here and in the action log, or neither.

        Returns:
            False where a newer run was stored meanwhile.
        """
        with translated(self._settings), self._engine.begin() as connection:
            _MARKS.lock(connection, run.stream)
            newest = connection.execute(_newest(run.stream)).one_or_none()
            if newest is None or newest.id != run.identity:
                return False
            _MARKS.accept(
                connection,
                run.stream,
                run.ends,
                actor=actor,
                reason=reason,
                action="quality.books_accept",
                run=str(run.identity),
                found=str(run),
            )
            return True

    def tidy(self, now: datetime) -> None:
        """Forget runs that are old, but never the newest ones of a stream."""
        with translated(self._settings), self._engine.begin() as connection:
            forget_old(connection, books_run, now)


def _newest(stream: str) -> sa.Select[tuple[object, ...]]:
    table = books_run
    return sa.select(table).where(table.c.stream == stream).order_by(table.c.id.desc()).limit(1)


def _body_of(run: Reconciliation) -> dict[str, Any]:
    sums = run.sums
    return {
        "version": VERSION,
        "ended": run.ended.astimezone(UTC).isoformat(),
        "reached": mark_body(run.reached),
        "upto": mark_body(run.upto),
        "ends": mark_body(run.ends),
        "sums": [sums.offsets, sums.rows, sums.quarantined, sums.dropped, sums.gaps, sums.absent],
        "findings": [
            {
                "fault": one.fault.value,
                "partition": None if one.partition is None else partition_body(one.partition),
                "spans": one.spans,
                "offsets": one.offsets,
                "ranges": one.ranges,
                "detail": one.detail,
            }
            for one in run.findings
        ],
        "deep": run.deep,
        "problem": run.problem,
    }


def _run_of(row: Any) -> Reconciliation:
    body = row.body
    return Reconciliation(
        stream=row.stream,
        began=row.began.astimezone(UTC),
        ended=datetime.fromisoformat(body["ended"]),
        reached=mark_of(body["reached"]),
        upto=mark_of(body["upto"]),
        ends=mark_of(body["ends"]),
        sums=Sums(*body["sums"]),
        findings=tuple(_finding(one) for one in body["findings"]),
        deep=body["deep"],
        problem=body["problem"],
        actor=row.actor,
        identity=row.id,
    )


def _finding(body: Any) -> Finding:
    return Finding(
        Fault(body["fault"]),
        None if body["partition"] is None else TopicPartition(*body["partition"]),
        tuple((first, next_) for first, next_ in body["spans"]),
        body["offsets"],
        body["ranges"],
        body["detail"],
    )
