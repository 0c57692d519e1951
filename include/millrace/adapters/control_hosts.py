"""Hosts in the control database: which one a stream belongs to, and the signs of life that hosts and apps give."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from millrace.adapters import control_log
from millrace.adapters import control_tables as tables
from millrace.adapters.control_connection import translated
from millrace.domain.hosts import Heartbeat, Host, HostSign
from millrace.domain.outage import LastSeen
from millrace.domain.streams import DesiredState, Phase
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
        """Keep an app's heartbeat; False where an app of a newer epoch has given one."""
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
        with self._transaction() as connection:
            _give_sign(connection, host)
            return connection.execute(newer.returning(table.c.epoch)).first() is not None

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

    def take(self, stream: str, host: Host, *, was: str | None) -> bool:
        """Have a stream belong to this host if it still belongs to `was` (None: to none); False where it does not."""
        table = tables.desired_state
        mine = table.update().where(table.c.stream == stream, table.c.host.is_not_distinct_from(was))
        with self._transaction() as connection:
            return connection.execute(mine.values(host=host.identity)).rowcount == 1

    def adopt(
        self, stream: str, host: Host, *, was: str | None, actor: str, reason: str, names: tuple[str, str]
    ) -> bool:
        """Take a stream over for good: its open attempts end as `host lost` and count no more; the action log says so.

        Args:
            stream: the qualified name.
            host: this host.
            was: the identity of the former one.
            actor: who wants it.
            reason: why.
            names: of the former and of this host, for the log.

        Returns:
            Whether it was done; not where the stream no longer belongs to `was`.
        """
        table, attempts = tables.desired_state, tables.attempt
        mine = table.update().where(table.c.stream == stream, table.c.host.is_not_distinct_from(was))
        over = attempts.update().where(attempts.c.stream == stream, attempts.c.ended_at.is_(None))
        former, present = names
        with self._transaction() as connection:
            if connection.execute(mine.values(host=host.identity, backoff_reset_at=sa.func.now())).rowcount != 1:
                return False
            connection.execute(
                over.values(ended_at=sa.func.now(), outcome="host lost", detail=f"adopted from {former}")
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
