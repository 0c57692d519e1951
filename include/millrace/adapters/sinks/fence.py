"""A connection of one writer to its sink database, and the fence that keeps older writers out.

Every write transaction holds the fence row FOR SHARE; a takeover raises it. What the database says no to is told by
SQLSTATE, and with the name of the statement.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
from psycopg import sql

from millrace.adapters.postgres.connection import Fault, address, connect, connect_error, fault_of, sink_error
from millrace.adapters.postgres.locks import BOUNDS, Answer, Blocker, blockers_of, in_turns, is_locked
from millrace.adapters.postgres.schema import ensure_schema
from millrace.adapters.sinks.postgres.tables import Cursor
from millrace.domain.sinks.batch import Identity
from millrace.domain.topics.offsets import TopicPartition
from millrace.errors import (
    Code,
    FencedError,
    MillraceError,
    SinkExhaustedError,
    SinkFailedError,
    SinkUnreachableError,
    UnreachableError,
)
from millrace.settings import PostgresSettings

COMMIT = "commit"
_TAKE_OVER_WITHIN = timedelta(seconds=25)
_LOOK_WITHIN = timedelta(seconds=5)


class FencedConnection:
    """One instance's connection to a sink database.

    Guarantees: an older epoch writes nothing after `take_over` has returned, if each of its transactions begins with
    `_hold_fence`.

    Args:
        settings: the sink's database.
        identity: who writes.
    """

    def __init__(self, settings: PostgresSettings, identity: Identity) -> None:
        self.settings = settings
        self.identity = identity
        self._doing = ""
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._lost = False

    def take_over(self) -> None:
        """End the backends of older epochs and of jobs, and raise the fence to this epoch.

        A stopped writer may hold the fence row, and no timeout of the server ends it; ending its backend does. A
        writer that is alive may connect again at once, so this is tried until the fence is raised.

        Raises:
            FencedError: a newer epoch holds the fence.
            UnreachableError: the server does not answer, or the fence could not be raised in time.
        """
        self._provide_tables()
        deadline = time.monotonic() + _TAKE_OVER_WITHIN.total_seconds()
        while not self._try_raise_fence():
            if time.monotonic() > deadline:
                raise UnreachableError(
                    f"an older instance held the lock on the fence row for {_TAKE_OVER_WITHIN.total_seconds():.0f} s",
                    where=f"millrace.fence, stream {self.identity.stream}",
                    next_step="find the backends named after the stream in pg_stat_activity, and end them",
                    code=Code.DATABASE_LOCKED,
                )

    def check_fence(self) -> None:
        """Learn whether this instance may still write.

        Raises:
            FencedError: a newer epoch has taken over.
            UnreachableError: the server does not answer.
        """
        self._bounded("look at the fence", self._hold_fence)

    def waits_for(self) -> str:
        """Whose locks this instance's backends wait for now, for people; empty where for nobody's.

        Over a connection of its own, so that another thread may ask.
        """
        found = self._blockers()
        return "a lock of " + "; ".join(map(str, found)) if found else ""

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def end_left_behind(self, cursor: Cursor) -> None:
        """End this instance's other backends that are in the midst of something.

        Where a connection breaks the server may not hear of it: the backend goes on, keeps its locks, and this
        instance would wait for itself. To be called where nobody else writes for it, in a transaction's beginning.
        """
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
            "AND usename = current_user AND application_name = %s AND state <> 'idle' AND pid <> pg_backend_pid()",
            (self.identity.application_name,),
        )

    def _provide_tables(self) -> None:
        """Make Millrace's own tables where they are missing, and bring those of an older version up to date."""
        self._bounded("make Millrace's own tables", ensure_schema)

    def _try_raise_fence(self) -> bool:
        try:
            with self._transaction("end older epochs' backends") as cursor:
                cursor.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
                    "AND usename = current_user AND split_part(application_name, '#', 1) = %s "
                    "AND CASE WHEN split_part(application_name, '#', 2) ~ '^[0-9]+$' "
                    "THEN split_part(application_name, '#', 2)::bigint < %s "
                    "ELSE split_part(application_name, '#', 2) <> '' END",  # a job's: it begins its part anew
                    (self.identity.stream, self.identity.epoch),
                )
            with self._transaction("raise the fence") as cursor:
                cursor.execute(BOUNDS)
                cursor.execute(
                    "INSERT INTO millrace.fence AS held (stream, epoch, instance) VALUES (%s, %s, %s) "
                    "ON CONFLICT (stream) DO UPDATE SET epoch = excluded.epoch, instance = excluded.instance, "
                    "raised_at = now() WHERE held.epoch < excluded.epoch "
                    "OR (held.epoch = excluded.epoch AND held.instance = excluded.instance)",
                    (self.identity.stream, self.identity.epoch, self.identity.instance),
                )
                if cursor.rowcount == 0:
                    raise self._fenced("a newer instance holds the fence")
            return True
        except SinkFailedError as error:
            if is_locked(error):
                return False
            raise

    def _hold_fence(self, cursor: Cursor, *, alone: bool = False) -> None:
        """Keep the fence where it is until this transaction ends, or learn that it was raised.

        Args:
            cursor: of a transaction that did nothing else.
            alone: wait until no job holds it, and keep them all out.
        """
        how = "UPDATE" if alone else "SHARE"
        cursor.execute(
            f"SELECT epoch, instance FROM millrace.fence WHERE stream = %s FOR {how}", (self.identity.stream,)
        )
        if cursor.fetchone() != (self.identity.epoch, self.identity.instance):
            raise self._fenced("a newer instance has raised the fence")

    def _put_on_record(
        self, table: str, timeline: int, positions: Mapping[TopicPartition, int], **key: int
    ) -> Callable[[Cursor], None]:
        """Return what puts the beginning of partitions on a timeline on record, under the fence; twice is once.

        Args:
            table: the one in schema `millrace` that has it.
            timeline: theirs.
            positions: the first offset of each partition.
            key: further columns of the table's key, with their values.

        Raises:
            FencedError: a newer epoch has taken over.
            SinkFailedError: one of them is on record already, and begins or stands elsewhere.
        """
        stream, epoch = self.identity.stream, self.identity.epoch
        target = sql.Identifier("millrace", table)
        keys = [*map(sql.Identifier, ["stream", "timeline", *key, "topic_id", "partition"])]
        others = [*map(sql.Identifier, ["topic", "first_offset", "next_offset", "epoch"])]
        statement = sql.SQL(
            "INSERT INTO {} AS held ({}) VALUES ({}) ON CONFLICT ({}) DO UPDATE SET epoch = excluded.epoch "
            "WHERE held.first_offset = excluded.first_offset AND held.next_offset = excluded.next_offset"
        ).format(
            target,
            sql.SQL(", ").join([*keys, *others]),
            sql.SQL(", ").join([sql.Placeholder()] * (len(keys) + len(others))),
            sql.SQL(", ").join(keys),
        )

        def write(cursor: Cursor) -> None:
            self._hold_fence(cursor, alone=True)
            cursor.executemany(
                statement,
                [
                    (stream, timeline, *key.values(), p.topic_id, p.partition, p.topic, offset, offset, epoch)
                    for p, offset in positions.items()
                ],
            )
            if cursor.rowcount != len(positions):
                raise SinkFailedError(
                    f"{len(positions) - cursor.rowcount} partitions have other offsets on timeline {timeline} already",
                    where=f"stream {stream}, table millrace.{table}",
                    next_step="wait for the next start: it reads these partitions again",
                )

        return write

    def _fenced(self, what: str) -> FencedError:
        return FencedError(
            what,
            where=f"stream {self.identity.stream}, epoch {self.identity.epoch}",
            next_step=f"run `streams show {self.identity.stream}` to find the instance that runs",
        )

    def _bounded(self, doing: str, act: Callable[[Cursor], Answer]) -> Answer:
        """One transaction that is no batch's: it keeps nobody waiting for long, and says who keeps it waiting.

        Raises:
            LockedError: a lock was not had in time.
            FencedError, SinkUnreachableError, SinkRolledBackError, SinkExhaustedError, SinkFailedError: as
                `_transaction`; also a statement that took too long.
        """

        def attempt() -> Answer:
            with self._transaction(doing) as cursor:
                cursor.execute(BOUNDS)
                return act(cursor)

        return in_turns(attempt, self._blockers, doing=doing, where=address(self.settings))

    def _blockers(self) -> Sequence[Blocker]:
        with connect(self.settings, f"millrace watch {self.identity.stream}") as connection:
            return blockers_of(connection, self.identity.application_name)

    @contextmanager
    def _transaction(self, doing: str) -> Iterator[Cursor]:
        """One transaction; `doing` is the name of its statements, which may change on the way.

        Raises:
            FencedError: the connection is gone, ended by a newer epoch.
            SinkUnreachableError, SinkRolledBackError, SinkExhaustedError, SinkFailedError: by SQLSTATE.
        """
        if self._connection is None or self._connection.closed:
            self._connection = connect(self.settings, self.identity.application_name, transactions_bounded=False)
        self._doing = doing
        try:
            with self._connection.transaction():
                with self._connection.cursor() as cursor:
                    if self._lost:
                        self.end_left_behind(cursor)
                        self._lost = False
                    yield cursor
                self._doing = COMMIT
        except psycopg.Error as error:
            raise self._translated(error) from error

    def _translated(self, error: psycopg.Error) -> MillraceError:
        if fault_of(error) is not Fault.GONE:
            return sink_error(self.settings, error, self._doing)
        self.close()
        self._lost = True
        return self._why_gone(error)

    def _why_gone(self, error: psycopg.Error) -> MillraceError:
        """A connection that broke: a newer epoch ended it, or the server is away."""
        try:
            with connect(self.settings, self.identity.application_name) as connection:
                row = connection.execute(
                    "SELECT epoch FROM millrace.fence WHERE stream = %s", (self.identity.stream,)
                ).fetchone()
        except (SinkUnreachableError, SinkExhaustedError, psycopg.Error):
            return connect_error(self.settings, error)
        if row is not None and row[0] > self.identity.epoch:
            return self._fenced(f"epoch {row[0]} took over and ended this instance's connection")
        return connect_error(self.settings, error)


class FenceReader:
    """Reads the fences of one sink database; holds and changes none.

    Args:
        settings: the sink's database.
    """

    def __init__(self, settings: PostgresSettings) -> None:
        self._settings = settings

    def epoch(self, stream: str) -> int:
        """The epoch that holds a stream's fence; 0 where there is none.

        Raises:
            UnreachableError: the server does not answer.
            SinkExhaustedError: it has no room for another connection.
            SinkFailedError: it does not show its fences to this role, or not in time.
        """
        try:
            with connect(self._settings, "millrace epochs", within=_LOOK_WITHIN) as connection:
                connection.execute(f"SET statement_timeout = {_LOOK_WITHIN // timedelta(milliseconds=1)}")
                if connection.execute("SELECT to_regclass('millrace.fence')").fetchone() == (None,):
                    return 0
                held = connection.execute("SELECT epoch FROM millrace.fence WHERE stream = %s", (stream,)).fetchone()
        except psycopg.Error as error:
            raise sink_error(self._settings, error, "read the fence") from error
        return int(held[0]) if held else 0
