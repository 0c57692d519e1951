"""Streams in the control database: what is wanted of them, who may run an epoch, what came of it, how far they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import Insert, insert

from millrace.adapters.control import log as control_log
from millrace.adapters.control.database import tables
from millrace.adapters.control.database.connection import translated
from millrace.adapters.control.database.locks import transaction_lock
from millrace.adapters.control.database.rows import desired_of, look_of, progress_of, progress_values
from millrace.domain.streams.control import Attempt, BatchSecond, Claim, DesiredStream, StreamLook, StreamProgress
from millrace.domain.streams.supervision import DesiredState
from millrace.settings import PostgresSettings


class StreamTables:
    """Desired state, claims, attempts and progress. `stream` is always the qualified name, PIPELINE.STREAM."""

    def __init__(self, engine: sa.Engine, settings: PostgresSettings) -> None:
        self._engine = engine
        self._settings = settings

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        with translated(self._settings), self._engine.begin() as connection:
            yield connection

    def supervising(self, stream: str) -> AbstractContextManager[bool]:
        """Hold the right to supervise a stream: the block gets False at once where somebody else does.

        It only saves wasted starts: the claim is what keeps one epoch to one instance.
        """
        return transaction_lock(self._engine, self._settings, f"supervise:{stream}")

    # What people want

    def desired(self, stream: str) -> DesiredStream | None:
        """What is wanted of a stream; None where nobody ever said (treat it as stopped)."""
        with self._transaction() as connection:
            return _desired(connection, stream)

    def all_desired(self) -> tuple[DesiredStream, ...]:
        """What is wanted of every stream anybody ever said something about, by name."""
        query = sa.select(tables.desired_state).order_by(tables.desired_state.c.stream)
        with self._transaction() as connection:
            return tuple(desired_of(row) for row in connection.execute(query))

    def set_desired(
        self,
        stream: str,
        *,
        actor: str,
        reason: str,
        state: DesiredState | None = None,
        accept_recreated: bool | None = None,
        reset_backoff: bool = False,
        end_now: bool = False,
    ) -> DesiredStream:
        """Say what is wanted, and write that to the action log in the same transaction.

        Args:
            stream: the qualified name.
            actor: who wants it.
            reason: why.
            state: running or stopped; None leaves it (stopped, for a stream that is new here).
            accept_recreated: whether the next start may take topics of the same name but another id.
            reset_backoff: whether attempts made until now no longer count against the stream.
            end_now: whether a stop does not wait for the batch in flight; each later `state` says it anew.
        """
        desired_state = tables.desired_state
        values: dict[str, object] = {"changed_at": sa.func.now(), "changed_by": actor, "reason": reason}
        if accept_recreated is not None:
            values["accept_recreated"] = accept_recreated
        if reset_backoff:
            values["backoff_reset_at"] = sa.func.now()
        with self._transaction() as connection:
            known = insert(desired_state).values(
                stream=stream, state=DesiredState.STOPPED.value, changed_by=actor, reason=reason
            )
            made = known.on_conflict_do_nothing().returning(desired_state.c.stream)
            is_new = connection.execute(made).first() is not None
            locked = sa.select(desired_state).where(desired_state.c.stream == stream).with_for_update()
            before = desired_of(connection.execute(locked).one())
            if state is not None:
                values |= {"state": state.value, "end_now": end_now}
            changed = desired_state.update().where(desired_state.c.stream == stream).values(values)
            after = desired_of(connection.execute(changed.returning(desired_state)).one())
            control_log.append(
                connection,
                actor=actor,
                action=f"stream.{_verb(state, accept_recreated)}",
                subject=stream,
                reason=reason,
                before={} if is_new else _facts(before),
                after=_facts(after),
                outcome="done",
            )
        return after

    def raise_epoch(self, stream: str, expected: int, *, host: str, above: int = 0) -> int | None:
        """Begin a start on this host: the new epoch, which is `expected` + 1, or `above` + 1 where that is more.

        The first start has the stream belong to the host. None where another start was first, the stream belongs to
        another host, or it is no longer wanted running: look again.
        """
        table = tables.desired_state
        is_expected = sa.and_(table.c.epoch == expected, table.c.state == DesiredState.RUNNING.value)
        statement = (
            table.update()
            .where(table.c.stream == stream, is_expected, _belongs_to(host))
            .values(epoch=sa.func.greatest(table.c.epoch, above) + 1, host=host)
            .returning(table.c.epoch)
        )
        with self._transaction() as connection:
            row = connection.execute(statement).one_or_none()
            return None if row is None else row.epoch

    def consume_acceptance(self, stream: str) -> bool:
        """Take back `accept_recreated` once a start has made use of it; whether it was set."""
        table = tables.desired_state
        statement = (
            table.update()
            .where(table.c.stream == stream, table.c.accept_recreated.is_(True))
            .values(accept_recreated=False)
        )
        with self._transaction() as connection:
            return connection.execute(statement).rowcount == 1

    # Who may run an epoch

    def claim(self, stream: str, epoch: int, instance: str, host: str) -> bool:
        """Claim an epoch for an instance: True for the first to ask, and for the same instance asking again.

        False, and no claim, where the stream belongs to another host: it was adopted since the start.
        """
        statement = insert(tables.claim).values(stream=stream, epoch=epoch, instance=instance, host=host)
        with self._transaction() as connection:
            owner = sa.select(tables.desired_state.c.host).where(tables.desired_state.c.stream == stream)
            if connection.scalar(owner.with_for_update(read=True)) not in (None, host):  # no adoption comes between
                return False
            first = statement.on_conflict_do_nothing().returning(tables.claim.c.epoch)
            if connection.execute(first).first() is not None:
                return True
            holder = _claim(connection, stream, epoch)
            return holder is not None and holder.instance == instance

    def claimed(self, stream: str, epoch: int) -> Claim | None:
        """Who claimed an epoch."""
        with self._transaction() as connection:
            return _claim(connection, stream, epoch)

    # What came of it

    def record_submitted(
        self, stream: str, epoch: int, *, runner: str, instance: str | None = None, handle: str | None = None
    ) -> None:
        """Note that an epoch is being submitted. Call it before the submit, and again with what the runner answered."""
        table = tables.attempt
        statement = insert(table).values(stream=stream, epoch=epoch, runner=runner, instance=instance, handle=handle)
        known = statement.on_conflict_do_update(
            index_elements=[table.c.stream, table.c.epoch],
            set_={
                "instance": sa.func.coalesce(statement.excluded.instance, table.c.instance),
                "handle": sa.func.coalesce(statement.excluded.handle, table.c.handle),
            },
        )
        with self._transaction() as connection:
            connection.execute(known)

    def record_ended(
        self,
        stream: str,
        epoch: int,
        *,
        outcome: str,
        exit_code: int | None = None,
        detail: str | None = None,
        at: datetime | None = None,
    ) -> bool:
        """Note how an epoch ended; False where that was noted before. `at` None: now."""
        table = tables.attempt
        statement = (
            table.update()
            .where(table.c.stream == stream, table.c.epoch == epoch, table.c.ended_at.is_(None))
            .values(ended_at=at or sa.func.now(), outcome=outcome, exit_code=exit_code, detail=detail)
        )
        with self._transaction() as connection:
            return connection.execute(statement).rowcount == 1

    def attempts(self, stream: str, *, last: int = 20) -> tuple[Attempt, ...]:
        """The last attempts of a stream, newest epoch first."""
        table = tables.attempt
        query = sa.select(table).where(table.c.stream == stream).order_by(table.c.epoch.desc()).limit(last)
        with self._transaction() as connection:
            return tuple(Attempt(**row._mapping) for row in connection.execute(query))

    # How far it is

    def save_progress(self, progress: StreamProgress, history: Sequence[BatchSecond] = ()) -> bool:
        """Keep a stream's latest progress; False, and nothing kept, where a newer epoch has already written.

        Args:
            progress: the latest.
            history: seconds of its batches, each with all that is known of it: saved again, it takes its own place.
        """
        table = tables.stream_progress
        statement = insert(table).values(progress_values(progress))
        newer = statement.on_conflict_do_update(
            index_elements=[table.c.stream],
            set_=_all_but_keys(table, statement),
            where=table.c.epoch <= statement.excluded.epoch,
        )
        with self._transaction() as connection:
            kept = connection.execute(newer.returning(table.c.epoch)).first() is not None
            if kept and history:
                seconds = _seconds(history)
                again = _all_but_keys(tables.batch_second, seconds)
                again["lag"] = sa.func.coalesce(seconds.excluded.lag, tables.batch_second.c.lag)
                keys = list(tables.batch_second.primary_key)
                connection.execute(seconds.on_conflict_do_update(index_elements=keys, set_=again))
            return kept

    def forget_history(self, before: datetime, *, at_most: int = 50_000) -> int:
        """Delete seconds of history that are older, the oldest first; how many that were.

        About `at_most`, so that after a long pause no statement is long: call it again until nothing is left.
        """
        table = tables.batch_second
        old = sa.select(table.c.at).where(table.c.at < before).order_by(table.c.at)
        with self._transaction() as connection:
            # asked for first: of a bound that it does not know PostgreSQL thinks a third of the table lies before it
            last = connection.scalar(old.offset(at_most - 1).limit(1))
            gone = table.c.at < before if last is None else table.c.at <= last  # more may be of that very second
            return connection.execute(table.delete().where(gone)).rowcount

    def save_look(self, look: StreamLook) -> None:
        """Keep how a stream was when it was last supervised; an older look of the same host changes nothing.

        Looks of two hosts, and those that know of different wishes, are kept in the order in which they come: a clock
        may differ, or be set back.
        """
        table = tables.stream_look
        statement = insert(table).values({column.name: getattr(look, column.name) for column in table.c})
        later = statement.on_conflict_do_update(
            index_elements=[table.c.stream],
            set_=_all_but_keys(table, statement),
            where=sa.or_(
                table.c.at <= statement.excluded.at,
                table.c.host.is_distinct_from(statement.excluded.host),
                table.c.wished_at.is_distinct_from(statement.excluded.wished_at),
            ),
        )
        with self._transaction() as connection:
            connection.execute(later)

    def forget_looks(self, before: datetime) -> int:
        """Delete looks that are older, of streams that nobody ever wanted anything of; how many that were."""
        looks, wanted = tables.stream_look, tables.desired_state
        unwanted = ~sa.exists().where(wanted.c.stream == looks.c.stream)
        with self._transaction() as connection:
            return connection.execute(looks.delete().where(looks.c.at < before, unwanted)).rowcount

    def look(self, stream: str) -> StreamLook | None:
        """How a stream was when it was last supervised."""
        query = sa.select(tables.stream_look).where(tables.stream_look.c.stream == stream)
        with self._transaction() as connection:
            row = connection.execute(query).one_or_none()
            return None if row is None else look_of(row)

    def progress(self, stream: str) -> StreamProgress | None:
        """A stream's latest progress."""
        query = sa.select(tables.stream_progress).where(tables.stream_progress.c.stream == stream)
        with self._transaction() as connection:
            row = connection.execute(query).one_or_none()
            return None if row is None else progress_of(row)

    def all_progress(self) -> tuple[StreamProgress, ...]:
        """The latest progress of every stream that ever ran, by name."""
        query = sa.select(tables.stream_progress).order_by(tables.stream_progress.c.stream)
        with self._transaction() as connection:
            return tuple(map(progress_of, connection.execute(query)))


def _seconds(history: Sequence[BatchSecond]) -> Insert:
    table = tables.batch_second
    rows = [
        {column.name: getattr(second, column.name) for column in table.c} | {"steps": dict(second.steps)}
        for second in history
    ]
    return insert(table).values(rows)


def _all_but_keys(table: sa.Table, statement: Insert) -> dict[str, object]:
    return {column.name: statement.excluded[column.name] for column in table.c if not column.primary_key}


def _desired(connection: sa.Connection, stream: str) -> DesiredStream | None:
    query = sa.select(tables.desired_state).where(tables.desired_state.c.stream == stream)
    row = connection.execute(query).one_or_none()
    return None if row is None else desired_of(row)


def _claim(connection: sa.Connection, stream: str, epoch: int) -> Claim | None:
    table = tables.claim
    row = connection.execute(sa.select(table).where(table.c.stream == stream, table.c.epoch == epoch)).one_or_none()
    return None if row is None else Claim(**row._mapping)


def _belongs_to(host: str) -> sa.ColumnElement[bool]:
    """Return the condition that a stream belongs to this host, or to none yet."""
    owner = tables.desired_state.c.host
    return sa.or_(owner.is_(None), owner == host)


def _facts(desired: DesiredStream) -> dict[str, str]:
    facts = {
        "state": desired.state.value,
        "epoch": str(desired.epoch),
        "accept_recreated": str(desired.accept_recreated).lower(),
    }
    return facts | ({"end_now": "true"} if desired.end_now else {})


def _verb(state: DesiredState | None, accept_recreated: bool | None) -> str:
    if accept_recreated:
        return "accept_recreated"
    return {DesiredState.RUNNING: "start", DesiredState.STOPPED: "stop", None: "change"}[state]
