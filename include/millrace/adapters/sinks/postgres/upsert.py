"""A table in PostgreSQL of one row a key, the last one: the sink, and the statements of its merge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import LiteralString

import pyarrow as pa
import structlog
from psycopg import sql

from millrace.adapters.postgres.connection import REFUSED_CLASSES
from millrace.adapters.postgres.locks import LockedError
from millrace.adapters.postgres.schema import SHARD
from millrace.adapters.sinks.postgres.merge import TRIED_TOGETHER, Merge
from millrace.adapters.sinks.postgres.sink import PostgresSink, Views
from millrace.adapters.sinks.postgres.tables import BY_THE_KEY, METADATA_COLUMNS, Cursor, KeyedTable
from millrace.domain.sinks.batch import Identity
from millrace.domain.topics.offsets import OffsetRange
from millrace.errors import Code, DeclarationError, SinkFailedError
from millrace.settings import PostgresSettings

log = structlog.get_logger()

REPLACED_KEPT = timedelta(days=30)
"""So long what a rewind has replaced is kept."""
_PRUNED_AT_ONCE, _MOST_PRUNED = 100_000, 1_000_000  # rows of a statement, and of a start
_FEW_PARTITIONS = 8  # what was staged is looked for by partition: of more it has an index

# Whether a row of a former timeline will be read again on this: what lies before this timeline's beginning will not.
# What a topic gave that was deleted and made again counts as read again, by the new one.
_TO_COME = """
(_held._timeline < {timeline} AND (EXISTS (
    SELECT FROM millrace.progress AS _begun WHERE _begun.stream = {stream} AND _begun.timeline = {timeline}
        AND _begun.shard = {shard} AND _begun.topic_id = _held._topic_id
        AND _begun.partition = _held._partition AND _begun.first_offset <= _held._offset
) OR (NOT EXISTS (
    SELECT FROM millrace.progress AS _same WHERE _same.stream = {stream} AND _same.timeline = {timeline}
        AND _same.shard = {shard} AND _same.topic_id = _held._topic_id
) AND EXISTS (
    SELECT FROM millrace.progress AS _gone JOIN millrace.progress AS _again USING (stream, topic)
    WHERE stream = {stream} AND _gone.topic_id = _held._topic_id AND _again.timeline = {timeline}
))))
"""
# Of two rows of one key the later is that of the greater offset where both come from one partition, else that of the
# later record; one that will be read again gives way to any that is written meanwhile.
_LATER = """
(_held._timeline <= {timeline} AND CASE
    WHEN {to_come} THEN true
    WHEN _held._topic_id = {new}._topic_id AND _held._partition = {new}._partition
    THEN (_held._offset, _held._ordinal) < ({new}._offset, {new}._ordinal)
    ELSE (_held._timestamp, _held._topic_id, _held._partition)
        < ({new}._timestamp, {new}._topic_id, {new}._partition)
END)
"""
_LAST = """
SELECT DISTINCT ON ({key}) * FROM (
    SELECT DISTINCT ON ({key}, _topic_id, _partition) * FROM {staging} WHERE _attempt = ANY(%(attempts)s)
    ORDER BY {key}, _topic_id, _partition, _offset DESC, _ordinal DESC
) AS _of_partition ORDER BY {key}, _timestamp DESC, _topic_id DESC, _partition DESC
"""
# What a rewind replaces, the first time that it does: a key without a row too, which has none again when it is undone.
# What no former timeline has come to is no rewind's, but where it takes the place of what is yet to be read again.
_SAVED = """
INSERT INTO millrace.replaced (stream, timeline, target, key_hash, key, former)
SELECT %(stream)s, %(timeline)s, %(target)s, sha256(jsonb_send(_named.key)), _named.key, _named.former
FROM (
    SELECT _last._topic_id, _last._partition, _last._offset, jsonb_build_object({named}) AS key,
        CASE WHEN _held._timeline IS NOT NULL THEN to_jsonb(_held) END AS former, {to_come} AS _to_come
    FROM _last LEFT JOIN {target} AS _held ON {same}
    WHERE _held._timeline IS NULL OR (_held._timeline < %(timeline)s AND {later})
) AS _named
WHERE _named._to_come OR EXISTS (
    SELECT FROM millrace.progress AS _former
    WHERE _former.stream = %(stream)s AND _former.timeline < %(timeline)s AND _former.topic_id = _named._topic_id
        AND _former.partition = _named._partition AND _named._offset < _former.next_offset
)
ON CONFLICT (stream, timeline, target, key_hash) DO NOTHING
"""
_UPSERT = """
WITH _last AS MATERIALIZED ({last}), {saved} _done AS (
    INSERT INTO {target} AS _held ({fields}, _timeline) SELECT {fields}, %(timeline)s FROM _last
    ON CONFLICT ({key}) DO UPDATE SET {changes} WHERE {later}
    RETURNING 1
)
SELECT (SELECT count(*) FROM {staging} WHERE _attempt = ANY(%(attempts)s)), (SELECT count(*) FROM _last),
    (SELECT count(*) FROM _done)
"""
# Those whose key had a later row before; and of these, a row that this record of work cannot have written.
_SUPERSEDED = """
WITH _last AS MATERIALIZED ({last})
SELECT count(*), count(*) FILTER (WHERE _held._timeline > %(timeline)s OR (
    _held._timeline = %(timeline)s AND EXISTS (
        SELECT FROM millrace.progress AS _now WHERE _now.stream = %(stream)s AND _now.timeline = %(timeline)s
            AND _now.shard = {shard} AND _now.topic_id = _held._topic_id AND _now.partition = _held._partition
            AND _now.next_offset <= _held._offset
    )
))
FROM _last JOIN {target} AS _held ON {same} WHERE _held.xmin <> pg_current_xact_id()::xid AND NOT {later}
"""
# Whether a partition has yet to come to where former timelines ended: only then does a rewind replace anything.
_REWINDING = """
SELECT EXISTS (
    SELECT FROM millrace.progress AS _now JOIN millrace.progress AS _former USING (stream, shard, topic_id, partition)
    WHERE stream = %(stream)s AND _now.timeline = %(timeline)s AND _former.timeline < %(timeline)s
        AND _now.next_offset < _former.next_offset
)
"""
# Rows of a table whose stream has done nothing yet are another's.
_HAS_DONE = "SELECT EXISTS (SELECT FROM millrace.progress WHERE stream = %s AND next_offset > first_offset)"
# Of each key the last row is tried, many keys at once, and of each alone only where those are refused; where it is
# refused the one before it is, until one is taken.
_SEARCH = """
CREATE FUNCTION {search} (_among tid[])
RETURNS TABLE (_refused_topic_id text, _refused_partition int, _refused_offset bigint, _places tid[], _why text)
LANGUAGE plpgsql AS $search$
DECLARE
    _many record;
    _chain text;
    _place tid;
BEGIN
    FOR _many IN
        SELECT array_agg(_of_key[1]) AS _all, array_agg(_of_key::text) AS _chains FROM (
            SELECT _of_key, (row_number() OVER () - 1) / {together} AS _number FROM (
                SELECT array_agg(ctid ORDER BY _timestamp DESC, _topic_id DESC, _partition DESC, _offset DESC,
                    _ordinal DESC) AS _of_key
                FROM {staging} WHERE _attempt = ANY({attempts}) AND (_among IS NULL OR ctid = ANY(_among))
                GROUP BY {key}
            ) AS _by_key
        ) AS _numbered GROUP BY _number ORDER BY _number
    LOOP
        BEGIN
            {insert} WHERE ctid = ANY(_many._all) {conflict};
            CONTINUE;
        EXCEPTION WHEN OTHERS OR ASSERT_FAILURE THEN
            IF left(SQLSTATE, 2) <> ALL ({classes}) THEN
                RAISE;
            END IF;
        END;
        FOREACH _chain IN ARRAY _many._chains LOOP
            FOREACH _place IN ARRAY _chain::tid[] LOOP
                BEGIN
                    {insert} WHERE ctid = _place {conflict};
                    EXIT;
                EXCEPTION WHEN OTHERS OR ASSERT_FAILURE THEN
                    IF left(SQLSTATE, 2) <> ALL ({classes}) THEN
                        RAISE;
                    END IF;
                    _why := SQLERRM;
                END;
                SELECT _topic_id, _partition, _offset, ARRAY[_place]
                INTO _refused_topic_id, _refused_partition, _refused_offset, _places
                FROM {staging} WHERE ctid = _place;
                RETURN NEXT;
            END LOOP;
        END LOOP;
    END LOOP;
END
$search$
"""
_TWICE = """
SELECT _partition, _offset FROM {staging} WHERE _attempt = ANY(%(attempts)s) AND {key_given}
GROUP BY {key}, _topic_id, _partition, _offset, _ordinal HAVING count(*) > 1 LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class Upsert(Merge):
    """The statements of batches whose rows take the place of their key's, where they are later."""

    target: KeyedTable
    stream: str

    in_rounds = True

    def delete_rows(self, cursor: Cursor, entry: OffsetRange) -> None:
        """Nothing: rows go with their key, on whichever timeline that is read again."""

    def insert_rows(self, cursor: Cursor, timeline: int, attempts: Sequence[int]) -> int:
        """Let the last row of each key take its place; how many rows came there, or were superseded.

        Raises:
            DeclarationError: two rows of one record have the same key, and nothing says which is the later.
        """
        asked = {
            "stream": self.stream,
            "timeline": timeline,
            "attempts": list(attempts),
            "target": str(self.target),
        }
        self._must_be_told_apart(cursor, asked)
        [(rewinding,)] = cursor.execute(_REWINDING, asked).fetchall()
        [(staged, last, done)] = cursor.execute(self._upsert(saving=rewinding), asked).fetchall()
        if done < last:
            [(superseded, strange)] = cursor.execute(self._superseded, asked).fetchall()
            if strange:
                raise self._strange()
            done += superseded
        return int(staged - (last - done))

    def rows_to_book(self, attempts: Sequence[int]) -> sql.Composable:
        """The staged rows: in the table a later one has the place of an earlier."""
        return sql.SQL("(SELECT * FROM {} WHERE _attempt = ANY({}))").format(
            self.staging.rows, sql.Literal(list(attempts))
        )

    def _must_be_told_apart(self, cursor: Cursor, asked: dict[str, object]) -> None:
        given = sql.SQL(" AND ").join(
            sql.SQL("{} IS NOT NULL").format(sql.Identifier(name)) for name in self.target.key
        )
        twice = sql.SQL(_TWICE).format(key=self._key, key_given=given, staging=self.staging.rows)
        if found := cursor.execute(twice, asked).fetchone():
            raise DeclarationError(
                f"the transform returns several rows of one record for one key: partition {found[0]}, "
                f"offset {found[1]}",
                where=f"stream {self.stream}, table {self.target}",
                next_step="add an integer column `_ordinal` that shows which of them is the last",
                code=Code.WRONG_TRANSFORM,
            )

    def _strange(self) -> DeclarationError:
        return DeclarationError(
            "the table has rows beyond the stream's record of work",
            where=f"stream {self.stream}, table {self.target}",
            next_step="name another table, or empty this one and rewind the stream to its beginning. The rows belong "
            "to another stream, or schema millrace was restored without them",
            code=Code.WRONG_TABLE,
        )

    @property
    def _key(self) -> sql.Composed:
        return sql.SQL(", ").join(map(sql.Identifier, self.target.key))

    @property
    def _same_key(self) -> sql.Composed:
        pairs = [sql.SQL("_held.{0} = _last.{0}").format(sql.Identifier(name)) for name in self.target.key]
        return sql.SQL(" AND ").join(pairs)

    @property
    def _changes(self) -> sql.Composed:
        names = [name for name, _ in self.target.own_columns] + [column.name for column in self.columns]
        changed = [sql.Identifier(name) for name in names if name not in self.target.key]
        return sql.SQL(", ").join(sql.SQL("{0} = excluded.{0}").format(name) for name in changed)

    def _upsert(self, *, saving: bool) -> sql.Composed:
        named = sql.SQL(", ").join(
            sql.SQL("{}, _last.{}").format(sql.Literal(name), sql.Identifier(name)) for name in self.target.key
        )
        saved = sql.SQL(_SAVED).format(
            target=self.target.identifier,
            named=named,
            same=self._same_key,
            later=_later("_last"),
            to_come=_to_come(),
        )
        return sql.SQL(_UPSERT).format(
            last=self._last,
            saved=sql.SQL("_kept AS ({}),").format(saved) if saving else sql.SQL(""),
            target=self.target.identifier,
            staging=self.staging.rows,
            fields=self._fields,
            key=self._key,
            changes=self._changes,
            later=_later("excluded"),
        )

    @property
    def _superseded(self) -> sql.Composed:
        return sql.SQL(_SUPERSEDED).format(
            last=self._last,
            target=self.target.identifier,
            same=self._same_key,
            later=_later("_last"),
            shard=sql.Literal(SHARD),
        )

    @property
    def _last(self) -> sql.Composed:
        return sql.SQL(_LAST).format(key=self._key, staging=self.staging.rows)

    def _search(self, timeline: int, attempts: Sequence[int]) -> sql.Composed:
        later = _later("excluded", self.stream, timeline)
        return sql.SQL(_SEARCH).format(
            search=self.search,
            insert=self._insert(sql.Literal(timeline)),
            conflict=sql.SQL("ON CONFLICT ({}) DO UPDATE SET {} WHERE {}").format(self._key, self._changes, later),
            staging=self.staging.rows,
            key=self._key,
            attempts=sql.Literal(list(attempts)),
            classes=sql.Literal(list(REFUSED_CLASSES)),
            together=sql.Literal(TRIED_TOGETHER),
        )


def _later(new: LiteralString, stream: str | None = None, timeline: int = 0) -> sql.Composed:
    """Whether a row, by its alias, is later than `_held`; where there is no stream, it and the timeline are asked."""
    return sql.SQL(_LATER).format(
        to_come=_to_come(stream, timeline), timeline=_asked("timeline", stream and timeline), new=sql.SQL(new)
    )


def _to_come(stream: str | None = None, timeline: int = 0) -> sql.Composed:
    return sql.SQL(_TO_COME).format(
        stream=_asked("stream", stream), timeline=_asked("timeline", stream and timeline), shard=sql.Literal(SHARD)
    )


def _asked(name: str, value: str | int | None) -> sql.Composable:
    return sql.Placeholder(name) if value is None else sql.Literal(value)


class PostgresUpsert(PostgresSink):
    """A table in PostgreSQL that has one row a key, the last one that a stream gave (`SinkStore`).

    The later of two rows is that of the greater offset (then ordinal) where both come from one partition, else that of
    the record with the later timestamp (then of the greater partition). A row that will be read again on a newer
    timeline gives way to any of that. A row whose `_deleted` is true takes the place of its key's and stays as a
    marker, so that what is older cannot come back.

    Guarantees: exactly once by offset range, as `PostgresAppend`: rows, quarantine and record of work in one
    transaction under the fence. What a rewind replaces is kept in `millrace.replaced` for 30 days.
    Does not guarantee: an order among partitions where a partition's timestamps go backwards and a key comes from
    several of them (it then depends on the batches); that a row goes which a changed transform no longer gives; that a
    row is refused which a later one of its batch supersedes; that a rewind which is broken off and skipped leaves what
    was there before it.

    Args:
        settings: its database.
        identity: who writes.
        table: `schema.table`.
        key: the columns of its key.
        views: what the app says about the table beside it.
    """

    metadata = tuple(name for name, _ in METADATA_COLUMNS)

    def __init__(
        self,
        settings: PostgresSettings,
        identity: Identity,
        table: str,
        key: tuple[str, ...],
        views: Views | None = None,
    ) -> None:
        self._keyed = KeyedTable.of(table, key)
        super().__init__(settings, identity, self._keyed, views)

    @property
    def statements(self) -> Upsert:
        """Those of its merge."""
        return Upsert(self._keyed, self.staging, self.columns, self.identity.stream)

    def _is_indexed(self) -> bool:
        """The ledger looks for staged rows by partition."""
        return len(self.read_record().next_offsets) > _FEW_PARTITIONS

    def prepare(self, columns: pa.Schema) -> None:
        """As every table's; what was replaced too long ago to be of use is let go of.

        Raises:
            DeclarationError: as every table's; also where it has another stream's rows.
        """
        if self._bounded("look for another stream's rows", self._has_strange_rows):
            raise DeclarationError(
                f"the table has rows of another stream; stream {self.identity.stream} has written nothing",
                where=self.where,
                next_step="name another table, or empty this one",
                code=Code.WRONG_TABLE,
            )
        super().prepare(columns)
        self._prune()

    def _has_strange_rows(self, cursor: Cursor) -> bool:
        if cursor.execute(_HAS_DONE, (self.identity.stream,)).fetchone() == (True,):
            return False
        if cursor.execute("SELECT to_regclass(%s)", (self.target.identifier.as_string(cursor),)).fetchone() == (None,):
            return False
        return bool(cursor.execute(sql.SQL("SELECT FROM {} LIMIT 1").format(self.target.identifier)).fetchall())

    def _prune(self) -> None:
        """Let go of what was replaced long ago, as much as a start has time for; that it cannot ends no start."""
        try:
            pruned = _PRUNED_AT_ONCE
            for _ in range(_MOST_PRUNED // _PRUNED_AT_ONCE):
                if pruned == _PRUNED_AT_ONCE:
                    pruned = self._bounded("let go of what was replaced", self._delete_replaced)
        except (SinkFailedError, LockedError) as error:
            log.warning("replaced_left", error=str(error), why="the next start tries again")

    def _delete_replaced(self, cursor: Cursor) -> int:
        self._hold_fence(cursor)
        cursor.execute(BY_THE_KEY)
        cursor.execute(
            "DELETE FROM millrace.replaced WHERE ctid = ANY(ARRAY(SELECT ctid FROM millrace.replaced "
            "WHERE stream = %s AND replaced_at < now() - %s LIMIT %s))",
            (self.identity.stream, REPLACED_KEPT, _PRUNED_AT_ONCE),
        )
        return cursor.rowcount
