"""Hosts in the control database: which one a stream belongs to, and the signs of life that hosts and apps give."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from millrace.adapters.control import log as control_log
from millrace.adapters.control.database import tables
from millrace.adapters.control.database.connection import translated
from millrace.domain.alarms.outage import LastSeen
from millrace.domain.streams.control import DesiredStream
from millrace.domain.streams.hosts import HOST_LOST_OUTCOME, Heartbeat, Host, HostSign
from millrace.domain.streams.supervision import DesiredState, Phase
from millrace.settings import PostgresSettings


class HostTables:
    """Owners of streams, heartbeats of apps, signs of hosts. Times and ages are by the database's clock."""

    def __init__(self, engine: sa.Engine, settings: PostgresSettings) -> None:
        self._engine = engine
        self._settings = settings

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        with translated(self._settings), self._engine.begin() as connection:
            yield connection

    # Signs of life

    def give_sign(self, host: Host) -> None:
        """Note that this host is there now."""
        with self._transaction() as connection:
            _give_sign(connection, host)

    def sign(self, identity: str) -> HostSign | None:
        """Return the newest sign of a host; None where it never gave one."""
        table = tables.host
        query = sa.select(table.c.name, _age(table.c.seen_at)).where(table.c.id == identity)
        with self._transaction() as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else HostSign(row.name, row.age)

    def beat(self, stream: str, epoch: int, instance: str, host: Host, *, phase: str, step: str) -> bool:
        """Keep an app's heartbeat, unless an app of a newer epoch has given one.

        Returns:
            Whether the app may live on: it is the newest, its stream belongs to this host and is not to stop.
        """
        table = tables.app_heartbeat
        statement = insert(table).values(
            stream=stream,
            epoch=epoch,
            instance=instance,
            host=host.identity,
            namespace=host.namespace,
            phase=phase,
            step=step,
            at=sa.func.now(),
        )
        values = {column.name: statement.excluded[column.name] for column in table.c if not column.primary_key}
        newer = statement.on_conflict_do_update(
            index_elements=[table.c.stream], set_=values, where=table.c.epoch <= statement.excluded.epoch
        )
        wanted = tables.desired_state.c
        wish = sa.select(wanted.host, wanted.state).where(wanted.stream == stream)
        with self._transaction() as connection:
            is_newest = connection.execute(newer.returning(table.c.epoch)).first() is not None
            row = connection.execute(wish).one_or_none()
        is_here = row is None or row.host in (None, host.identity)
        return is_newest and is_here and (row is None or row.state == DesiredState.RUNNING.value)

    def heartbeat(self, stream: str) -> Heartbeat | None:
        """Return the heartbeat of a stream's newest app; None where none was ever given."""
        table = tables.app_heartbeat
        with self._transaction() as connection:
            row = connection.execute(_HEARTBEATS.where(table.c.stream == stream)).one_or_none()
        return None if row is None else Heartbeat(**row._mapping)

    def newest_of_twin(self, host: Host) -> Heartbeat | None:
        """Return the newest heartbeat that bears this host's identity from another boot or process namespace.

        An app's last one, which it gives as it ends, does not count.
        """
        table = tables.app_heartbeat
        others = _HEARTBEATS.where(
            table.c.host == host.identity, table.c.namespace != host.namespace, table.c.phase != Phase.ENDED.value
        )
        with self._transaction() as connection:
            row = connection.execute(others.order_by(table.c.at.desc()).limit(1)).one_or_none()
        return None if row is None else Heartbeat(**row._mapping)

    def last_seen(self, most: int) -> tuple[int, tuple[LastSeen, ...]]:
        """Return how many streams are wanted running, and how the first `most` of them by name were last seen."""
        wanted, look, beat, host = tables.desired_state, tables.stream_look, tables.app_heartbeat, tables.host
        running = wanted.c.state == DesiredState.RUNNING.value
        joined = (
            wanted.outerjoin(look, look.c.stream == wanted.c.stream)
            .outerjoin(beat, beat.c.stream == wanted.c.stream)
            .outerjoin(host, host.c.id == wanted.c.host)
        )
        columns = (
            wanted.c.stream,
            sa.func.coalesce(look.c.state, "").label("state"),
            look.c.epoch,
            sa.func.coalesce(host.c.name, "").label("host"),
            _age(look.c.at).label("look_age"),
            _age(beat.c.at).label("heartbeat_age"),
        )
        query = sa.select(*columns).select_from(joined).where(running).order_by(wanted.c.stream).limit(most)
        with self._transaction() as connection:
            count = connection.scalar(sa.select(sa.func.count()).select_from(wanted).where(running)) or 0
            return count, tuple(LastSeen(**row._mapping) for row in connection.execute(query))

    # Owners

    def take(self, stream: str, host: Host, *, was: str | None, epoch: int = 0) -> bool:
        """Have a stream belong to this host if it still belongs to `was` (None: to none); False where it does not.

        Args:
            stream: the qualified name.
            host: this host.
            was: the identity of the former one.
            epoch: of its app that lives here; the stream's own is raised to it.
        """
        table = tables.desired_state
        mine = table.update().where(table.c.stream == stream, table.c.host.is_not_distinct_from(was))
        values = mine.values(host=host.identity, epoch=sa.func.greatest(table.c.epoch, epoch))
        with self._transaction() as connection:
            return connection.execute(values).rowcount == 1

    def adopt(
        self,
        seen: DesiredStream,
        host: Host,
        *,
        lost_after: timedelta | None,
        actor: str,
        reason: str,
        names: tuple[str, str],
    ) -> bool:
        """Take a stream over for good: its open attempts end as `host lost` and count no more; the action log says so.

        Args:
            seen: the stream as it was when the adoption was decided.
            host: this host.
            lost_after: how long its former host and its app must have been silent; None: it must have no open attempt.
            actor: the person who wants it.
            reason: why.
            names: of the former and of this host, for the log.

        Returns:
            True if it was done; False if the stream has changed since, or its former host is there again.
        """
        stream, table, attempts = seen.stream, tables.desired_state, tables.attempt
        is_open = sa.and_(attempts.c.stream == stream, attempts.c.ended_at.is_(None))
        unchanged = sa.and_(
            table.c.stream == stream,
            table.c.host.is_not_distinct_from(seen.host),
            table.c.epoch == seen.epoch,
            table.c.changed_at == seen.changed_at,
        )
        is_there = sa.exists().where(is_open) if lost_after is None else _gave_a_sign(seen, lost_after)
        mine = table.update().where(unchanged, ~is_there)
        over = attempts.update().where(is_open)
        former, present = names
        with self._transaction() as connection:
            if connection.execute(mine.values(host=host.identity, backoff_reset_at=sa.func.now())).rowcount != 1:
                return False
            connection.execute(
                over.values(ended_at=sa.func.now(), outcome=HOST_LOST_OUTCOME, detail=f"adopted from {former}")
            )
            control_log.append(
                connection,
                actor=actor,
                action="stream.adopt",
                subject=stream,
                reason=reason,
                before={"host": former},
                after={"host": present},
                outcome="done",
            )
        return True


def _gave_a_sign(seen: DesiredStream, within: timedelta) -> sa.ColumnElement[bool]:
    """Return the condition that a stream's host, or the stream's app there, gave a sign of life in this time."""
    host, beat = tables.host.c, tables.app_heartbeat.c
    since = sa.func.clock_timestamp() - within
    supervised = sa.exists().where(host.id == seen.host, host.seen_at > since)
    alive = sa.exists().where(
        beat.stream == seen.stream, beat.host == seen.host, beat.phase != Phase.ENDED.value, beat.at > since
    )
    return sa.or_(supervised, alive)


def _give_sign(connection: sa.Connection, host: Host) -> None:
    statement = insert(tables.host).values(id=host.identity, name=host.name, seen_at=sa.func.now())
    known = statement.on_conflict_do_update(
        index_elements=[tables.host.c.id], set_={"name": host.name, "seen_at": sa.func.now()}
    )
    connection.execute(known)


def _age(moment: sa.ColumnElement[object]) -> sa.Label[timedelta]:
    return sa.type_coerce(sa.func.clock_timestamp() - moment, sa.Interval()).label("age")


_HEARTBEATS = sa.select(
    *(column for column in tables.app_heartbeat.c if column.name != "at"), _age(tables.app_heartbeat.c.at)
)
