"""Records in quarantine put through again: rows in and entries out in one transaction, below the record of work.

It works beside the stream. Each transaction holds the fence row FOR SHARE, so that no timeline is opened meanwhile, and
touches only what lies below the record of work, which no batch touches any more. A lock keeps the jobs of one stream
apart. What is on its way lies in temporary tables, which end with the connection.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import psycopg
from psycopg import sql

from millrace.adapters.postgres.connection import Fault, connect, fault_of, sink_error
from millrace.adapters.postgres.locks import BOUNDS, LockedError, bounds, is_locked
from millrace.adapters.postgres.schema import READ_RECORD, SHARD, ensure_schema, index_quarantine_by_rule, work_record
from millrace.adapters.sinks.postgres.ledger import Ledger
from millrace.adapters.sinks.postgres.merge import Merge
from millrace.adapters.sinks.postgres.staging import Staging
from millrace.adapters.sinks.postgres.tables import BY_THE_KEY, SOURCE_COLUMNS, Cursor, TargetColumn, TargetTable
from millrace.domain.archive.proof.spans import Spans
from millrace.domain.quarantine.redrive import Fate, Selection
from millrace.domain.quarantine.rules import Broken, Rule
from millrace.domain.topics.offsets import OffsetRange, Source, SourceAt, TopicPartition
from millrace.errors import Code, DeclarationError, MillraceError, SinkFailedError
from millrace.settings import PostgresSettings

MOST_RECORDS = 1_000
MOST_BYTES = 16 * 1024 * 1024
"""A part is no larger, so that its transaction is short."""
_MOST_FORMER = 20  # fates that an entry remembers: the first, and the newest
_ROUNDS = 5
# Whoever stops in the midst of a transaction holds the fence no longer than a takeover waits for it.
_LONGEST = timedelta(seconds=5)
_SESSION = "SET statement_timeout = '2min'; SET lock_timeout = '10s'; SET idle_session_timeout = 0"
_NEVER_IDLE = "SET LOCAL idle_in_transaction_session_timeout = '5s'"
_WAITING = f"{_NEVER_IDLE}; SET LOCAL lock_timeout = '1min'"  # for another job of the stream, without the fence
_SHORT = bounds(timedelta(seconds=2), _LONGEST)
_FIRST: Source = ("", -1, -1)

_IN_TIME = """
stream = %(stream)s AND quarantined_at < %(upto)s AND (%(since)s::timestamptz IS NULL OR quarantined_at >= %(since)s)
"""
_CHOSEN = f"{_IN_TIME} AND (%(rule)s = '' OR rule = %(rule)s)"
_KEYS = f"""
SELECT topic_id, partition, "offset" FROM millrace.quarantine
WHERE {_CHOSEN} AND (topic_id, partition, "offset") > (%(id)s, %(number)s, %(at)s)
ORDER BY topic_id, partition, "offset" LIMIT {MOST_RECORDS}
"""
_KEYS_OF_PLACE = f"""
SELECT topic_id, partition, "offset" FROM millrace.quarantine
WHERE {_CHOSEN} AND topic_id = %(id)s AND partition = %(number)s AND "offset" > %(at)s AND "offset" < %(next)s
ORDER BY "offset" LIMIT {MOST_RECORDS}
"""
# Said with `=`, the planner drops the rule from the order, and may walk through all rules by the primary key instead.
_OF_RULE = f"""
SELECT topic_id, partition, "offset" FROM millrace.quarantine
WHERE {_IN_TIME} AND (rule, topic_id, partition, "offset") > (%(rule)s, %(id)s, %(number)s, %(at)s) AND {{end}}
ORDER BY rule, topic_id, partition, "offset" LIMIT {MOST_RECORDS}
"""
_KEYS_OF_RULE = _OF_RULE.format(end="rule <= %(rule)s")
_KEYS_OF_RULE_AND_PLACE = _OF_RULE.format(
    end='(rule, topic_id, partition, "offset") < (%(rule)s, %(id)s, %(number)s, %(next)s)'
)
# A young table has no statistics yet: it would be sorted anew for each part. What is asked by keys must not do without.
_IN_ITS_ORDER = f"{BY_THE_KEY}; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_sort = off"
_AS_ASKED = "SET LOCAL enable_bitmapscan = on; SET LOCAL enable_sort = on"
_TOPIC_IDS = """
WITH RECURSIVE present AS (
    (SELECT topic_id, topic FROM millrace.quarantine WHERE stream = %(stream)s ORDER BY topic_id LIMIT 1)
    UNION ALL
    SELECT following.* FROM present, LATERAL (
        SELECT topic_id, topic FROM millrace.quarantine
        WHERE stream = %(stream)s AND topic_id > present.topic_id ORDER BY topic_id LIMIT 1
    ) AS following
)
SELECT topic_id FROM present WHERE topic = %(topic)s
"""
_SIZES = """
SELECT topic_id, partition, "offset",
    coalesce(octet_length(key), 0) + coalesce(octet_length(value), 0) + octet_length(headers::text)
FROM millrace.quarantine JOIN unnest(%(ids)s::text[], %(numbers)s::int[], %(offsets)s::bigint[])
    AS asked (topic_id, partition, "offset") USING (topic_id, partition, "offset")
WHERE stream = %(stream)s ORDER BY topic_id, partition, "offset"
"""
_CONTENT = """
SELECT topic, topic_id, partition, "offset", bad.xmin::text, rule, key, value, headers,
    coalesce(timestamp_ms, round(extract(epoch FROM "timestamp") * 1000)::bigint)
FROM millrace.quarantine AS bad JOIN unnest(%(ids)s::text[], %(numbers)s::int[], %(offsets)s::bigint[])
    AS asked (topic_id, partition, "offset") USING (topic_id, partition, "offset")
WHERE stream = %(stream)s ORDER BY topic_id, partition, "offset"
"""
_AMONG = """
unnest(%(ids)s::text[], %(numbers)s::int[], %(offsets)s::bigint[], %(firsts)s::text[], %(seconds)s::text[])
    AS asked (t, p, o, first, second)
"""
_IS_IT = 'bad.stream = %(stream)s AND bad.topic_id = t AND bad.partition = p AND bad."offset" = o'
# What was read is still the same: nobody has replaced, changed or taken it.
_HOLD = f"""
SELECT bad.topic_id, bad.partition, bad."offset" FROM millrace.quarantine AS bad, {_AMONG}
WHERE {_IS_IT} AND bad.xmin::text = first ORDER BY 1, 2, 3 FOR UPDATE OF bad
"""
_TAKE = f"""
WITH gone AS (
    DELETE FROM millrace.quarantine AS bad USING {_AMONG} WHERE {_IS_IT} RETURNING bad.*, first::int AS rows_out
)
INSERT INTO millrace.redrives (stream, plan, topic, topic_id, partition, "offset", rows_out, rule, error, former, epoch,
    quarantined_at)
SELECT stream, %(plan)s, topic, topic_id, partition, "offset", rows_out, rule, error, former, epoch, quarantined_at
FROM gone
"""
_KEEP = f"""
UPDATE millrace.quarantine AS bad SET rule = first, error = second,
    former = CASE WHEN jsonb_array_length(former) < {_MOST_FORMER} THEN former ELSE former - 1 END
        || jsonb_build_object('rule', rule, 'error', error, 'until', now(), 'plan', %(plan)s::text)
FROM {_AMONG} WHERE {_IS_IT} AND (rule, error) IS DISTINCT FROM (first, second)
"""
_NOW = """
SELECT least(clock_timestamp(), min(xact_start)) FROM pg_stat_activity
WHERE datname = current_database() AND split_part(application_name, '#', 1) = %(stream)s AND pid <> pg_backend_pid()
"""
_OF_SOURCE = "_topic_id = t AND _partition = p AND _offset = o"
_PLACES = "unnest(%(ids)s::text[], %(numbers)s::int[], %(offsets)s::bigint[]) AS asked (t, p, o)"
_SOURCES = "_topic_id, _partition, _offset"


@dataclass(frozen=True, slots=True)
class Held:
    """One record in quarantine, whole.

    Attributes:
        version: of its entry: another one once anybody has written it.
        headers: as the entry has them: `key`, and `value` in hexadecimal.
    """

    topic: str
    topic_id: str
    partition: int
    offset: int
    version: str
    rule: str
    key: bytes | None
    value: bytes | None
    headers: Sequence[Mapping[str, str | None]]
    timestamp_ms: int | None

    @property
    def source(self) -> Source:
        """Where it lies, as a key."""
        return (self.topic_id, self.partition, self.offset)

    @property
    def at(self) -> SourceAt:
        """Where it lies, for people."""
        return SourceAt(self.topic, self.partition, self.offset)


@dataclass(frozen=True, slots=True)
class Put:
    """What became of one record: its fate, the rule that it breaks now, and how many rows it is."""

    fate: Fate
    now: str = ""
    rows: int = 0


class TooLongError(MillraceError):
    """A transaction would hold the fence for too long."""


@dataclass(frozen=True, slots=True)
class _Temporary(Staging):
    """Staging of one connection alone."""

    table: str = ""

    @property
    def rows(self) -> sql.Identifier:
        return sql.Identifier("pg_temp", self.table)


class QuarantineRedrive:
    """One connection that puts a stream's records through, or tries it.

    Guarantees: each record leaves quarantine once, in the transaction that writes its rows and moves it in the ledger;
    its entry is then in `millrace.redrives`. Killed anywhere, nothing is in between.

    Args:
        connection: in autocommit.
        stream: PIPELINE.STREAM.
        table: `schema.table`.
        plan: in whose name it is done.
    """

    def __init__(self, connection: psycopg.Connection[tuple[Any, ...]], stream: str, table: str, plan: str) -> None:
        self.connection = connection
        self._stream = stream
        self._plan = plan
        self._target = TargetTable.parse(table)
        self._ledger = Ledger(stream, self._target)
        self._staging = _Temporary(f"{stream}#redrive", table=f"millrace_{uuid.uuid4().hex}")
        self._merge = Merge(self._target, self._staging, ())
        self._until = math.inf

    @property
    def rows(self) -> sql.Identifier:
        """The temporary table that takes rows."""
        return self._staging.rows

    def prepare(self, columns: Sequence[TargetColumn]) -> None:
        """Make the temporary table for rows of these columns.

        Raises:
            DeclarationError: the stream's table does not take them, or this role may make no temporary table.
        """
        self._merge = Merge(self._target, self._staging, tuple(columns))
        with self.connection.transaction(), self.connection.cursor() as cursor:
            cursor.execute(f"{_NEVER_IDLE}; {BOUNDS}")
            ensure_schema(cursor)
            self._target.must_take(cursor, columns)
        fields = [*SOURCE_COLUMNS, *((column.name, column.type) for column in columns)]
        body = sql.SQL(", ").join(sql.SQL("{} {}").format(sql.Identifier(n), sql.SQL(t)) for n, t in fields)
        try:
            self.connection.execute(
                sql.SQL("CREATE TEMPORARY TABLE {} (_attempt bigint NOT NULL DEFAULT 0, {})").format(
                    sql.Identifier(self._staging.table), body
                )
            )
        except psycopg.errors.InsufficientPrivilege as error:
            raise DeclarationError(
                "this role may not create temporary tables",
                where=f"table {self._target}",
                next_step=f"run GRANT TEMPORARY ON DATABASE {self.connection.info.dbname} "
                f"TO {self.connection.info.user}",
                code=Code.MISSING_RIGHT,
            ) from error

    def now(self) -> datetime:
        """A moment of the database's clock: whatever came to quarantine before it can be seen.

        An entry's moment is that when its batch's transaction began.
        """
        [(moment,)] = self.connection.execute(_NOW, {"stream": self._stream}).fetchall()
        assert isinstance(moment, datetime)
        return moment

    def parts(
        self, selection: Selection, upto: datetime, after: Source = _FIRST
    ) -> Iterator[tuple[Source, list[Held]]]:
        """What is selected, in parts of one topic each, by topic id, partition and offset; each with where it ends.

        Args:
            selection: which records.
            upto: what came to quarantine at this moment or later is left out.
            after: what comes up to here is left out.
        """
        asked = {"stream": self._stream, "upto": upto, "rule": selection.rule, "since": selection.since}
        by_rule = bool(selection.rule) and index_quarantine_by_rule(self.connection)
        if not selection.places:
            yield from self._parts(_KEYS_OF_RULE if by_rule else _KEYS, asked, after)
        of_place = _KEYS_OF_RULE_AND_PLACE if by_rule else _KEYS_OF_PLACE
        for id_, number, first, next_ in self._scopes(selection):
            if (id_, number, next_ - 1) > after:
                begin = max(first - 1, after[2] if after[:2] == (id_, number) else first - 1)
                yield from self._parts(of_place, {**asked, "next": next_}, (id_, number, begin))

    def _parts(self, statement: str, asked: Mapping[str, object], after: Source) -> Iterator[tuple[Source, list[Held]]]:
        while True:
            id_, number, at = after
            with self.connection.transaction(), self.connection.cursor() as cursor:
                cursor.execute(_IN_ITS_ORDER)
                keys = cursor.execute(statement, {**asked, "id": id_, "number": number, "at": at}).fetchall()
                if not keys:
                    return
                cursor.execute(_AS_ASKED)
                by_key = {"stream": self._stream}
                sizes = cursor.execute(_SIZES, {**by_key, **_columns([(*key,) for key in keys])}).fetchall()
                chosen = _fitting(sizes)
                found = cursor.execute(_CONTENT, {**by_key, **_columns(chosen)}).fetchall() if chosen else []
            after = chosen[-1] if chosen else tuple(keys[-1])
            yield after, [Held(*row) for row in found]

    def _scopes(self, selection: Selection) -> list[tuple[str, int, int, int]]:
        """The selected places by topic id, in their order; none overlaps another."""
        of_each: dict[tuple[str, int], list[tuple[int, int]]] = {}
        ids: dict[str, list[str]] = {}
        for place in selection.places:
            if place.topic not in ids:
                found = self.connection.execute(_TOPIC_IDS, {"stream": self._stream, "topic": place.topic}).fetchall()
                ids[place.topic] = [str(topic_id) for (topic_id,) in found]
            for topic_id in ids[place.topic]:
                of_each.setdefault((topic_id, place.partition), []).append((place.first, place.next))
        return [(*key, first, next_) for key in sorted(of_each) for first, next_ in Spans(of_each[key])]

    def empty(self) -> None:
        """Make room for the rows of another part."""
        self.connection.execute(sql.SQL("TRUNCATE {}").format(self.rows))

    def stranger(self, held: Sequence[Held]) -> SourceAt | None:
        """A source that there are rows of, and that is none of these; None: there is none."""
        found = self.connection.execute(
            sql.SQL("SELECT {} FROM {} WHERE NOT EXISTS (SELECT FROM {} WHERE {}) LIMIT 1").format(
                sql.SQL(_SOURCES), self.rows, sql.SQL(_PLACES), sql.SQL(_OF_SOURCE)
            ),
            _columns([one.source for one in held]),
        ).fetchall()
        return next((SourceAt(*row) for row in found), None)

    def put_through(
        self, held: Sequence[Held], bad: Mapping[Source, Broken], *, rows: int, keep: bool
    ) -> dict[Source, Put]:
        """Write the rows that were made of these records, and take those records out of quarantine.

        Args:
            held: the records.
            bad: those of them that are bad, also because the database does not hold a value of their rows.
            rows: how many rows were copied.
            keep: whether it stays so; else all is as it was before, and this says what would have become of them.

        Raises:
            TooLongError: it would hold the stream's fence for too long; less at once may do.
            DeclarationError: the app makes a row twice, or the table refuses rows together and none alone.
            SinkFailedError: the database refuses a statement, or its triggers drop rows.
            LockedError, SinkUnreachableError, SinkRolledBackError, SinkExhaustedError: the same may be tried again.
        """
        with self.connection.transaction(force_rollback=not keep), self.connection.cursor() as cursor:
            cursor.execute(_WAITING)
            cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"millrace:jobs:{self._stream}",))
            cursor.execute(_SHORT)
            cursor.execute(BY_THE_KEY)
            self._until = time.monotonic() + _LONGEST.total_seconds()
            cursor.execute("SELECT epoch FROM millrace.fence WHERE stream = %s FOR SHARE", (self._stream,))
            cursor.execute(READ_RECORD, {"stream": self._stream, "shard": SHARD})
            record = work_record(cursor.fetchall())
            done = {(where.topic_id, where.partition): at for where, at in record.next_offsets.items()}
            ahead = {one.source for one in held if one.offset >= done.get(one.source[:2], one.offset + 1)}
            there = self._hold(cursor, [one for one in held if one.source not in ahead])
            put: dict[Source, Put] = {}
            for one in held:
                if one.source in ahead:
                    put[one.source] = Put(Fate.AHEAD)
                elif one.source not in there:
                    put[one.source] = Put(Fate.MOVED)
                elif broken := bad.get(one.source):
                    put[one.source] = Put(Fate.BAD, broken.rule)
            wanted = [one.source for one in held if one.source not in put]
            self._must_be_all(cursor, rows)
            refused = self._write(cursor, wanted, record.timeline)
            put |= {source: Put(Fate.BAD, Rule.SINK_REFUSED) for source in refused}
            of_each = self._rows_of_each(cursor)
            for source in wanted:
                if source not in refused:
                    count = of_each.get(source, 0)
                    put[source] = Put(Fate.ROW if count else Fate.DROPPED, rows=count)
            by_sink = {source: Broken(Rule.SINK_REFUSED, why) for source, why in refused.items()}
            self._settle(cursor, put, {**bad, **by_sink})
            self._must_be_short()
            return put

    def _must_be_short(self) -> None:
        if time.monotonic() > self._until:
            raise TooLongError(
                f"the redrive takes the database longer than {_LONGEST.total_seconds():.0f} s",
                where=f"stream {self._stream}, table {self._target}",
                next_step="check the table's triggers and constraints; nothing was written",
            )

    def _must_be_all(self, cursor: Cursor, rows: int) -> None:
        """What was copied is there: a record without a row would be taken for one that the transform leaves out."""
        cursor.execute(sql.SQL("SELECT count(*) FROM {}").format(self.rows))
        [(there,)] = cursor.fetchall()
        if there != rows:
            raise SinkFailedError(
                f"{rows} rows were copied, but {there} arrived",
                where=f"stream {self._stream}",
                next_step="check whether a pooler before the database changes connections",
            )

    def _hold(self, cursor: Cursor, held: Sequence[Held]) -> set[Source]:
        """Keep these entries as they were read; which of them still are."""
        versions = [one.version for one in held]
        cursor.execute(_HOLD, {"stream": self._stream, **_columns([one.source for one in held], versions)})
        return {(str(topic_id), int(number), int(offset)) for topic_id, number, offset in cursor.fetchall()}

    def _write(self, cursor: Cursor, wanted: Sequence[Source], timeline: int) -> dict[Source, str]:
        """Insert the rows of these records, and of no other; those whose rows the table refuses, with its reasons."""
        cursor.execute(
            sql.SQL("DELETE FROM {} WHERE NOT EXISTS (SELECT FROM {} WHERE {})").format(
                self.rows, sql.SQL(_PLACES), sql.SQL(_OF_SOURCE)
            ),
            _columns(wanted),
        )
        self._must_be_once(cursor)
        refused: dict[Source, str] = {}
        ranges = [OffsetRange(TopicPartition("", id_, number), at, at + 1) for id_, number, at in wanted]
        doubted = False
        for _ in range(_ROUNDS):
            self._must_be_short()
            self._merge.unstage(cursor, refused, [0])
            try:
                with self.connection.transaction():
                    self._replace(cursor, [source for source in wanted if source not in refused], timeline)
                return refused
            except psycopg.Error as error:
                if fault_of(error) is not Fault.REFUSED:
                    raise
                reason = error.diag.message_primary or str(error)
            with self.connection.transaction(force_rollback=True):
                found = self._merge.find_refused(cursor, ranges, timeline, [0], deferred=True)
            self._must_be_short()
            if not found and not doubted:
                doubted = True  # what was in the way may have gone meanwhile
                continue
            if not found:
                raise DeclarationError(
                    f"the table refuses these rows together, but accepts each of them alone: {reason}",
                    where=f"stream {self._stream}, table {self._target}",
                    next_step="check its constraints: one row may need another row",
                    code=Code.WRONG_TABLE,
                )
            refused |= found
        raise MillraceError(
            f"the table still refuses rows after {_ROUNDS} rounds: its constraints seem to change",
            where=str(self._target),
            code=Code.WRONG_TABLE,
        )

    def _must_be_once(self, cursor: Cursor) -> None:
        cursor.execute(
            sql.SQL("SELECT {0}, _ordinal FROM {1} GROUP BY {0}, _ordinal HAVING count(*) > 1 LIMIT 1").format(
                sql.SQL(_SOURCES), self.rows
            )
        )
        if twice := cursor.fetchone():
            raise DeclarationError(
                f"the transform returns several rows of one record: offset {twice[2]} of partition {twice[1]}",
                where=f"stream {self._stream}",
                next_step="add an integer column `_ordinal` that numbers the rows of one record",
                code=Code.WRONG_TRANSFORM,
            )

    def _replace(self, cursor: Cursor, sources: Sequence[Source], timeline: int) -> None:
        """Insert the staged rows in the place of what may be there of the same records."""
        for id_, number, first, next_ in _runs(sources):
            self._merge.delete_rows(cursor, OffsetRange(TopicPartition("", id_, number), first, next_))
        cursor.execute(sql.SQL("SELECT count(*) FROM {}").format(self.rows))
        [(staged,)] = cursor.fetchall()
        inserted = self._merge.insert_rows(cursor, timeline, [0])
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        if inserted != staged:
            raise SinkFailedError(
                f"{staged} rows were staged, but {inserted} arrived: a trigger or rule of the table drops rows",
                where=f"stream {self._stream}, table {self._target}",
                next_step="check the table's triggers and rules; nothing was written",
                code=Code.WRONG_TABLE,
            )

    def _rows_of_each(self, cursor: Cursor) -> dict[Source, int]:
        cursor.execute(sql.SQL("SELECT {0}, count(*) FROM {1} GROUP BY {0}").format(sql.SQL(_SOURCES), self.rows))
        return {(str(id_), int(number), int(at)): int(count) for id_, number, at, count in cursor.fetchall()}

    def _settle(self, cursor: Cursor, put: Mapping[Source, Put], why: Mapping[Source, Broken]) -> None:
        """Take out of quarantine what has become rows or is dropped, and write why the rest stays."""
        gone = {source: one.rows for source, one in put.items() if one.fate in (Fate.ROW, Fate.DROPPED)}
        bad = [source for source, one in put.items() if one.fate is Fate.BAD]
        place = {"stream": self._stream, "plan": self._plan}
        if gone:
            cursor.execute(_TAKE, {**place, **_columns(list(gone), list(map(str, gone.values())))})
            if cursor.rowcount != len(gone):
                raise SinkFailedError(
                    f"{len(gone)} records should leave quarantine, but {cursor.rowcount} did",
                    where=f"stream {self._stream}, table millrace.quarantine",
                    next_step="check whether a trigger or rule of that table keeps them; nothing was written",
                )
            self._ledger.move(cursor, gone)
        if bad:
            errors = [why[source].error for source in bad]
            cursor.execute(_KEEP, {**place, **_columns(bad, [why[source].rule.value for source in bad], errors)})


def _fitting(sizes: Sequence[tuple[Any, ...]]) -> list[Source]:
    """The first so many that are of one topic id and together not too large; at least one, where there is any."""
    chosen: list[Source] = []
    size = 0
    for topic_id, number, offset, bytes_ in sizes:
        size += bytes_
        if chosen and (topic_id != chosen[0][0] or size > MOST_BYTES):
            break
        chosen.append((topic_id, number, offset))
    return chosen


def _runs(sources: Sequence[Source]) -> Iterator[tuple[str, int, int, int]]:
    """Sources in their order as ranges: topic id, partition, first and next offset."""
    begun: tuple[str, int, int, int] | None = None
    for id_, number, at in sources:
        if begun is not None and begun[:2] == (id_, number) and begun[3] == at:
            begun = (*begun[:3], at + 1)
            continue
        if begun is not None:
            yield begun
        begun = (id_, number, at, at + 1)
    if begun is not None:
        yield begun


def _columns(
    sources: Collection[Source], firsts: Sequence[str] = (), seconds: Sequence[str] = ()
) -> dict[str, list[Any]]:
    """Sources as arrays, with up to two texts each."""
    ids, numbers, offsets = ([source[at] for source in sources] for at in range(3))
    return {"ids": ids, "numbers": numbers, "offsets": offsets, "firsts": list(firsts), "seconds": list(seconds)}


@contextmanager
def open_redrive(settings: PostgresSettings, stream: str, table: str, plan: str) -> Iterator[QuarantineRedrive]:
    """A redrive on a connection of its own.

    Raises:
        LockedError: somebody holds a lock for too long.
        SinkUnreachableError, SinkRolledBackError, SinkExhaustedError, SinkFailedError: by SQLSTATE.
    """
    with connect(settings, f"{stream}#redrive") as connection:
        connection.autocommit = True
        try:
            connection.execute(_SESSION)
            yield QuarantineRedrive(connection, stream, table, plan)
        except psycopg.Error as error:
            failure = sink_error(settings, error, "put records in quarantine through")
            failure.__cause__ = error
            if is_locked(failure):
                raise LockedError(failure.what, where=failure.where, next_step=failure.next_step) from error
            raise failure from error
