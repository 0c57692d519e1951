"""One moment of a sink database, looked at by Great Expectations within a deadline.

Every transaction sees the same snapshot, may only read, and gets what is left of the time of those who asked. The
connections are made here, so that no password reaches the library.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import great_expectations  # noqa: TID253  loaded by checks alone
import psycopg
import sqlalchemy as sa
from great_expectations.datasource.fluent.interfaces import Batch, TestConnectionError  # noqa: TID253
from great_expectations.execution_engine.sqlalchemy_batch_data import SqlAlchemyBatchData  # noqa: TID253
from great_expectations.validator.validator import Validator  # noqa: TID253

from millrace.adapters.postgres.connection import Fault, connect, connect_error, fault_of, sink_error
from millrace.errors import MillraceError, UnreachableError
from millrace.settings import PostgresSettings

LONGEST_STATEMENT = timedelta(minutes=2)
LONGEST_LOCK = timedelta(seconds=10)
_NAME = "millrace quality"
# The transaction that holds the snapshot idles while others count, and each of them lasts as long as its rules: a
# server's own bounds on that would end every check. The second is there from PostgreSQL 17 on.
_PATIENT = (
    "SELECT set_config(name, '0', true) FROM pg_settings "
    "WHERE name IN ('idle_in_transaction_session_timeout', 'transaction_timeout')"
)
# The library gives the address of its PostgreSQL data source to nobody: connections come from `creator`.
_ADDRESS = "postgresql+psycopg://nobody@nowhere/nothing"


class OutOfTimeError(MillraceError):
    """The time of a rule, or of a whole check, is over."""


@dataclass
class Session:
    """What a check works with while it looks.

    Attributes:
        settings: the database.
        snapshot: the moment that every transaction sees, by PostgreSQL's name for it.
        statement: how long one statement may take.
        errors: what the database said no to, since they were last taken.
    """

    settings: PostgresSettings
    anchor: psycopg.Connection[tuple[Any, ...]]
    snapshot: str
    statement: timedelta
    errors: list[BaseException] = field(default_factory=list)
    _until: float = float("inf")
    _validators: dict[str, Validator] = field(default_factory=dict)
    _source: Any = None

    @contextmanager
    def within(self, longest: timedelta) -> Iterator[None]:
        """Let what is asked in this block take so long, all together; what comes after that is refused."""
        before, self._until = self._until, min(self._until, time.monotonic() + longest.total_seconds())
        try:
            yield
        finally:
            self._until = before

    def validator(self, table: str, condition: str) -> Validator:
        """What holds expectations against the rows of a table that meet a condition; the same one for the same rows.

        The library makes batches of whole tables, or of a query: of that it fetches every row, to learn the names of
        the columns. So the rows are put in place of a query's.

        Args:
            table: `schema.table`.
            condition: SQL.
        """
        if condition not in self._validators:
            source = self._opened()
            schema, _, name = table.partition(".")
            asset = source.add_query_asset(f"rows_{len(self._validators)}", query="SELECT 1")
            empty = asset.add_batch_definition_whole_table("rows").get_batch()
            query = sa.select(sa.text("*")).select_from(sa.table(name, schema=schema))
            data = SqlAlchemyBatchData(
                execution_engine=source.get_execution_engine(),
                selectable=query.where(sa.literal_column(condition, sa.Boolean)),
                create_temp_table=False,
                source_table_name=name,
                source_schema_name=schema,
            )
            rows = Batch(
                datasource=source,
                data_asset=asset,
                batch_request=empty.batch_request,
                data=data,
                metadata=empty.metadata,
                batch_markers=empty.batch_markers,
                batch_spec=empty.batch_spec,
                batch_definition=empty.batch_definition,
            )
            self._validators[condition] = Validator(
                execution_engine=source.get_execution_engine(), data_context=source.data_context, batches=[rows]
            )
        return self._validators[condition]

    def rows(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        """What a query of our own finds at this moment."""
        self._hurry()
        with self.translated(), self.anchor.transaction():  # a savepoint: one that fails must not end the snapshot
            self.anchor.execute(f"SET LOCAL statement_timeout = {self._limit_ms()}")
            return self.anchor.execute(query, parameters or None).fetchall()

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Errors of the database as ours."""
        try:
            yield
        except psycopg.Error as error:
            raise sink_error(self.settings, error, "look at the table") from error

    def taken_errors(self) -> list[BaseException]:
        """The errors since the last time, which are forgotten then."""
        found, self.errors = self.errors, []
        return found

    def _opened(self) -> Any:
        if self._source is None:
            context = great_expectations.get_context(mode="ephemeral")
            context.enable_analytics(enable=False)
            context.variables.progress_bars = {"globally": False}
            arguments = {"creator": self._connect, "hide_parameters": True, "pool_size": 1, "max_overflow": 0}
            try:
                self._source = context.data_sources.add_postgres(
                    "sink", connection_string=_ADDRESS, kwargs=arguments, create_temp_table=False
                )
            except TestConnectionError as error:  # it tries the connection, and wraps what we said of it
                raise _cause(error) from error
            engine = self._source.get_execution_engine().engine
            sa.event.listen(engine, "begin", self._began)
            sa.event.listen(engine, "handle_error", self._failed)
        return self._source

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        connection = connect(self.settings, _NAME)
        connection.read_only = True
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        return connection

    def _began(self, connection: sa.Connection) -> None:
        self._hurry()
        connection.exec_driver_sql(f"SET TRANSACTION SNAPSHOT '{self.snapshot}'")
        for setting in _patience():
            connection.exec_driver_sql(setting)
        connection.exec_driver_sql(f"SET LOCAL statement_timeout = {self._limit_ms()}")

    def _failed(self, context: sa.ExceptionContext) -> None:
        self.errors.append(context.original_exception)

    def _hurry(self) -> None:
        if time.monotonic() >= self._until:
            error = OutOfTimeError(
                "the check took too long and was ended", next_step="check fewer rows at once, or review the rules"
            )
            self.errors.append(error)
            raise error

    def _limit_ms(self) -> int:
        left = timedelta(seconds=self._until - time.monotonic()) if self._until < float("inf") else self.statement
        return max(1, min(left, self.statement) // timedelta(milliseconds=1))

    def close(self) -> None:
        """Give the connections back."""
        if self._source is not None:
            self._source.get_execution_engine().close()
            self._source.get_engine().dispose()  # of its trial of the connection


@contextmanager
def open_session(settings: PostgresSettings, *, statement: timedelta = LONGEST_STATEMENT) -> Iterator[Session]:
    """A moment of a sink database; the library says nothing while it is open, as it would say values of rows.

    Raises:
        UnreachableError: the database does not answer, or went away meanwhile.
    """
    logger = logging.getLogger("great_expectations")
    level = logger.level
    with connect(settings, _NAME) as anchor:
        anchor.read_only = True
        anchor.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        try:
            for setting in _patience():
                anchor.execute(setting)
            [(snapshot,)] = anchor.execute("SELECT pg_export_snapshot()").fetchall()
        except psycopg.Error as error:
            raise sink_error(settings, error, "export a snapshot") from error
        session = Session(settings, anchor, str(snapshot), statement)
        logger.setLevel(logging.CRITICAL + 1)
        try:
            yield session
        finally:
            logger.setLevel(level)
            session.close()


def _cause(error: BaseException) -> BaseException:
    """The error of ours that an error of the library comes from; itself where there is none."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MillraceError):
            return cause
        cause = cause.__cause__
    return error


def _patience() -> tuple[str, str]:
    """The settings of every transaction of a check: it may idle, from its start; how long it waits for a lock."""
    return _PATIENT, f"SET LOCAL lock_timeout = {LONGEST_LOCK // timedelta(milliseconds=1)}"


def said(error: BaseException) -> str:
    """What an error comes to, without any value of a row.

    The database's own words only where they are about the statement as it was read, at a place in it (class 42, with a
    position): its other messages quote values, also in that class, as of a text that is cast to a table's name.
    """
    if isinstance(error, OutOfTimeError):
        return error.what
    if isinstance(error, psycopg.errors.QueryCanceled):
        return "it took too long, and was ended"
    if isinstance(error, psycopg.errors.LockNotAvailable):
        return "somebody else has locked a table for longer than it waits"
    if isinstance(error, psycopg.Error) and error.sqlstate:
        if error.sqlstate.startswith("42") and error.diag.statement_position and error.diag.message_primary:
            return f"{error.diag.message_primary} (SQLSTATE {error.sqlstate})"
        return f"the database refused it: {type(error).__name__} (SQLSTATE {error.sqlstate})"
    return f"it failed: {type(error).__name__}"


def is_gone(error: BaseException) -> bool:
    """Whether an error says that the connection, or the server, is gone: then nothing can be told of any rule."""
    if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):  # of a rule that tries to write: we asked for it
        return False
    if isinstance(error, OutOfTimeError):
        return False
    return isinstance(error, MillraceError) or (isinstance(error, psycopg.Error) and fault_of(error) is Fault.GONE)


def unreachable(settings: PostgresSettings, error: BaseException) -> MillraceError:
    """The error to raise for a server that is gone."""
    if isinstance(error, psycopg.Error):
        return connect_error(settings, error)
    return error if isinstance(error, MillraceError) else UnreachableError(str(error))
