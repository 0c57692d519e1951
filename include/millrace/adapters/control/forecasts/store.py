"""What topics were day by day, what was expected of them, and how far that was off.

Writes are upserts of a thousand rows a statement, in the order of the topics: two writers wait for each other, and
neither for ever. Days are those of UTC.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, distinct_on, insert

from millrace.adapters.control.database.connection import translated
from millrace.adapters.control.forecasts import tables
from millrace.adapters.control.forecasts.rows import body_of, forecast_of, look_of
from millrace.domain.retention.forecasts.errors import Comparison
from millrace.domain.retention.forecasts.estimates import HORIZONS
from millrace.domain.retention.forecasts.history import (
    DAYS_KEPT,
    FORECASTS_KEPT,
    DueEstimate,
    MadeForecast,
    TopicLook,
)
from millrace.settings import PostgresSettings

_ROWS_TOGETHER = 1_000
_JUDGED_WITHIN = 3  # days: an estimate that nobody has judged by then is left
_ERRORS_OVER = timedelta(days=30)

# The last row at or before each look, from the whole snapshot on that the look goes on from: so it was at that look.
_LOOKS = sa.text("""
with looks as (
    select distinct on (date_bin('1 hour', at, timestamptz '2000-01-01 00:00:00+00')) at, base
    from snapshot where connection = :connection and at between :since and :until
    order by date_bin('1 hour', at, timestamptz '2000-01-01 00:00:00+00'), at
)
select wanted.topic, looks.at, seen.topic_id, cardinality(seen.ends) as partitions,
    (select sum(value) from unnest(seen.starts) value) as starts,
    (select sum(value) from unnest(seen.ends) value) as ends,
    (select sum(value) from unnest(seen.sizes) value) as size_bytes
from looks cross join unnest(:topics) wanted(topic) cross join lateral (
    select s.topic_id, s.starts, s.ends, s.sizes from snapshot_topic s
    where s.connection = :connection and s.topic = wanted.topic and s.at between looks.base and looks.at
    order by s.at desc limit 1
) seen
where seen.topic_id is not null and cardinality(seen.ends) > 0 and array_position(seen.starts, null) is null
    and array_position(seen.ends, null) is null and array_position(seen.sizes, null) is null
""").bindparams(sa.bindparam("topics", type_=ARRAY(sa.Text)))


class ForecastTable:
    """Topics by day and their forecasts, by the Connection of their cluster."""

    def __init__(self, engine: sa.Engine, settings: PostgresSettings) -> None:
        self._engine = engine
        self._settings = settings

    def measure(self, connection: str, looks: Sequence[TopicLook]) -> None:
        """Keep looks at topics, each topic's latest of its day.

        Guarantees: all or none; an earlier look never takes the place of a later one.
        """
        table = tables.topic_day
        rows = {
            (look.topic, _day(look.at)): {
                "connection": connection,
                "topic": look.topic,
                "day": _day(look.at),
                "at": look.at,
                "topic_id": look.topic_id,
                "ends": look.ends,
                "record_bytes": look.record_bytes,
                "size_bytes": look.size_bytes,
                "partitions": look.partitions,
            }
            for look in sorted(looks, key=lambda look: (look.topic, look.at))
        }
        with translated(self._settings), self._engine.begin() as session:
            for some in _some(list(rows.values())):
                statement = insert(table).values(some)
                new = statement.excluded
                own = {column.name: new[column.name] for column in table.columns if not column.primary_key}
                session.execute(
                    statement.on_conflict_do_update(
                        index_elements=list(table.primary_key.columns), set_=own, where=new.at >= table.c.at
                    )
                )

    def points(
        self, connection: str, topics: Collection[str] | None, since: datetime, until: datetime
    ) -> Mapping[str, Sequence[TopicLook]]:
        """A look a day at each topic, oldest first, former topics of its name too.

        Args:
            connection: the cluster's.
            topics: only these; None: all.
            since: the first day counts whole.
            until: what is later is left out, as a clock wrote it that ran ahead.
        """
        table = tables.topic_day
        query = sa.select(table).where(
            table.c.connection == connection, table.c.day >= _day(since), table.c.at <= until
        )
        if topics is not None:
            query = query.where(table.c.topic == sa.any_(sa.literal(sorted(topics), ARRAY(sa.Text))))
        found: dict[str, list[TopicLook]] = defaultdict(list)
        with translated(self._settings), self._engine.begin() as session:
            for row in session.execute(query.order_by(table.c.topic, table.c.day)):
                found[row.topic].append(look_of(row))
        return found

    def hourly(
        self, connection: str, topics: Collection[str], since: datetime, until: datetime
    ) -> Mapping[str, Sequence[TopicLook]]:
        """A look an hour at each of these topics, out of the snapshots, oldest first; those with gaps are left out."""
        found: dict[str, list[TopicLook]] = defaultdict(list)
        if not topics:
            return found
        values = {"connection": connection, "topics": sorted(topics), "since": since, "until": until}
        with translated(self._settings), self._engine.begin() as session:
            for row in session.execute(_LOOKS, values):
                records, size = int(row.ends - row.starts), int(row.size_bytes)
                record_bytes = size / records if records else None
                found[row.topic].append(
                    TopicLook(row.topic, row.topic_id, row.at, int(row.ends), record_bytes, size, row.partitions)
                )
        for looks in found.values():
            looks.sort(key=lambda look: look.at)
        return found

    def add(self, connection: str, forecasts: Sequence[MadeForecast]) -> int:
        """Keep forecasts; how many. One of the same day and topic stays, unless the topic was made again since."""
        table, kept = tables.forecast, 0
        rows = {
            (one.topic, _day(one.forecast.made_at)): {
                "connection": connection,
                "day": _day(one.forecast.made_at),
                "topic": one.topic,
                "topic_id": one.topic_id,
                "made_at": one.forecast.made_at,
                "body": body_of(one.forecast),
            }
            for one in sorted(forecasts, key=lambda one: one.topic)
        }
        with translated(self._settings), self._engine.begin() as session:
            for some in _some(list(rows.values())):
                statement = insert(table).values(some)
                new = statement.excluded
                added = statement.on_conflict_do_update(
                    index_elements=list(table.primary_key.columns),
                    set_={"topic_id": new.topic_id, "made_at": new.made_at, "body": new.body},
                    where=new.topic_id != table.c.topic_id,
                )
                kept += len(session.execute(added.returning(table.c.topic)).all())
        return kept

    def latest(
        self, connection: str, topics: Collection[str] | None = None, day: date | None = None
    ) -> Mapping[str, MadeForecast]:
        """The newest forecast of each topic, without past errors.

        Args:
            connection: the cluster's.
            topics: only these; None: all.
            day: only those of that day; None: of the newest day that the topic has one of.
        """
        table = tables.forecast
        query = sa.select(table).ext(distinct_on(table.c.topic)).where(table.c.connection == connection)
        if topics is not None:
            query = query.where(table.c.topic == sa.any_(sa.literal(sorted(topics), ARRAY(sa.Text))))
        if day is not None:
            query = query.where(table.c.day == day)
        with translated(self._settings), self._engine.begin() as session:
            rows = session.execute(query.order_by(table.c.topic, table.c.day.desc())).all()
        return {row.topic: MadeForecast(row.topic, row.topic_id, forecast_of(row.made_at, row.body)) for row in rows}

    def due(self, connection: str, now: datetime) -> Sequence[DueEstimate]:
        """The estimates whose day has come, or came within three days, and that were not judged."""
        made, seen, past = tables.forecast, tables.topic_day, tables.forecast_outcome
        ahead = sa.values(sa.column("days", sa.Integer), name="ahead").data([(one.days,) for one in HORIZONS])
        judged = sa.exists().where(
            past.c.connection == connection,
            past.c.topic == made.c.topic,
            past.c.day == made.c.day,
            past.c.days == ahead.c.days,
        )
        query = (
            sa.select(
                made.c.topic_id.label("made_of"),
                made.c.made_at,
                made.c.body,
                ahead.c.days,
                *(seen.c[name] for name in ("topic", "topic_id", "at", "ends", "record_bytes", "size_bytes")),
                seen.c.partitions,
            )
            .select_from(ahead)
            .join(made, made.c.day + ahead.c.days <= _day(now))
            .join(seen, (seen.c.topic == made.c.topic) & (seen.c.day == made.c.day + ahead.c.days))
            .where(made.c.connection == connection, seen.c.connection == connection, ~judged)
            .where(made.c.day + ahead.c.days >= _day(now) - timedelta(days=_JUDGED_WITHIN))
            .order_by(made.c.topic, made.c.day, ahead.c.days)
        )
        with translated(self._settings), self._engine.begin() as session:
            rows = session.execute(query).all()
        found = []
        for row in rows:
            told = forecast_of(row.made_at, row.body)
            found += [
                DueEstimate(row.topic, row.made_of, row.made_at, told.limits, one, look_of(row))
                for one in told.estimates
                if one.days == row.days
            ]
        return found

    def judge(self, connection: str, judged: Sequence[tuple[DueEstimate, Comparison]]) -> None:
        """Keep how far estimates were off; of one that was judged before the first time counts."""
        table = tables.forecast_outcome
        rows = {
            (due.topic, _day(due.made_at), found.days): {
                "connection": connection,
                "topic": due.topic,
                "day": _day(due.made_at),
                "days": found.days,
                "topic_id": due.topic_id,
                "error": found.error,
                "within": found.within,
            }
            for due, found in judged
        }
        with translated(self._settings), self._engine.begin() as session:
            for some in _some([rows[key] for key in sorted(rows)]):
                session.execute(insert(table).values(some).on_conflict_do_nothing())

    def errors(
        self, connection: str, now: datetime, topics: Collection[str] | None = None
    ) -> Mapping[tuple[str, str], Sequence[Comparison]]:
        """How far off those forecasts were whose time came in the last 30 days, by topic and its id."""
        table = tables.forecast_outcome
        query = sa.select(table.c.topic, table.c.topic_id, table.c.days, table.c.error, table.c.within).where(
            table.c.connection == connection,
            table.c.day + table.c.days >= _day(now - _ERRORS_OVER),
        )
        if topics is not None:
            query = query.where(table.c.topic == sa.any_(sa.literal(sorted(topics), ARRAY(sa.Text))))
        found: dict[tuple[str, str], list[Comparison]] = defaultdict(list)
        with translated(self._settings), self._engine.begin() as session:
            for row in session.execute(query.order_by(table.c.topic, table.c.day, table.c.days)):
                found[row.topic, row.topic_id].append(Comparison(row.days, row.error, row.within))
        return found

    def tidy(self, now: datetime) -> int:
        """Let go of days that are older than 400 days, and of forecasts older than 200; how many rows."""
        dropped = 0
        with translated(self._settings), self._engine.begin() as session:
            for table, kept in (
                (tables.topic_day, DAYS_KEPT),
                (tables.forecast, FORECASTS_KEPT),
                (tables.forecast_outcome, FORECASTS_KEPT),
            ):
                dropped += session.execute(table.delete().where(table.c.day < _day(now - kept))).rowcount
        return dropped


def _day(at: datetime) -> date:
    return at.astimezone(UTC).date()


def _some(rows: Sequence[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    for first in range(0, len(rows), _ROWS_TOGETHER):
        yield list(rows[first : first + _ROWS_TOGETHER])
