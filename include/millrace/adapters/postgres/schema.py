"""Millrace's own tables in a sink database, and the record of work that is kept there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
import structlog
from psycopg import sql

from millrace.adapters.postgres.connection import Fault, fault_of
from millrace.adapters.sinks.postgres.tables import Cursor
from millrace.domain.streams.position import WorkRecord
from millrace.domain.topics.offsets import TopicPartition
from millrace.errors import Code, DeclarationError, RefusedError

log = structlog.get_logger()

SCHEMA_VERSION = 6
_SCHEMA_LOCK = 7_305_001  # advisory lock: CREATE ... IF NOT EXISTS by two sessions at once can fail

_SCHEMAS = ("millrace", "millrace_staging")
_OWN_TABLES = """
CREATE TABLE IF NOT EXISTS millrace.version (version int PRIMARY KEY);
CREATE TABLE IF NOT EXISTS millrace.fence (
    stream text PRIMARY KEY,
    epoch bigint NOT NULL,
    instance text NOT NULL,
    raised_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE IF NOT EXISTS millrace.progress (
    stream text NOT NULL,
    timeline int NOT NULL,
    shard int NOT NULL,
    topic text NOT NULL,
    topic_id text NOT NULL,
    partition int NOT NULL,
    first_offset bigint NOT NULL,
    next_offset bigint NOT NULL CHECK (next_offset >= first_offset),
    epoch bigint NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (stream, timeline, shard, topic_id, partition)
) WITH (fillfactor = 50);
CREATE TABLE IF NOT EXISTS millrace.quarantine (
    stream text NOT NULL,
    timeline int NOT NULL,
    topic text NOT NULL,
    topic_id text NOT NULL,
    partition int NOT NULL,
    "offset" bigint NOT NULL,
    "timestamp" timestamptz,
    timestamp_ms bigint,
    key bytea,
    value bytea,
    headers jsonb NOT NULL,
    rule text NOT NULL,
    error text NOT NULL,
    epoch bigint NOT NULL,
    quarantined_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (stream, topic_id, partition, "offset")
);
CREATE TABLE IF NOT EXISTS millrace.ledger (  -- since version 3
    stream text NOT NULL,
    timeline int NOT NULL,
    topic text NOT NULL,
    topic_id text NOT NULL,
    partition int NOT NULL,
    first_offset bigint NOT NULL,
    next_offset bigint NOT NULL CHECK (next_offset > first_offset),
    batches int,
    records bigint,
    sources bigint,
    rows_out bigint,
    quarantined bigint,
    dropped bigint,
    absent int8multirange NOT NULL,
    epoch bigint NOT NULL,
    began_at timestamptz NOT NULL DEFAULT now(),
    booked_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (stream, topic_id, partition, first_offset)
) WITH (fillfactor = 50);
CREATE TABLE IF NOT EXISTS millrace.redrives (  -- since version 4
    stream text NOT NULL,
    plan text NOT NULL,
    topic text NOT NULL,
    topic_id text NOT NULL,
    partition int NOT NULL,
    "offset" bigint NOT NULL,
    rows_out int NOT NULL,
    rule text NOT NULL,
    error text NOT NULL,
    former jsonb NOT NULL,
    epoch bigint NOT NULL,
    quarantined_at timestamptz NOT NULL,
    redriven_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (stream, plan, topic_id, partition, "offset")
);
CREATE TABLE IF NOT EXISTS millrace.replaced (  -- since version 5
    stream text NOT NULL,
    timeline int NOT NULL,
    target text NOT NULL,
    key_hash bytea NOT NULL,
    key jsonb NOT NULL,
    former jsonb,
    replaced_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (stream, timeline, target, key_hash)
);
CREATE TABLE IF NOT EXISTS millrace.timelines (  -- since version 6
    stream text NOT NULL,
    timeline int NOT NULL,
    topic text NOT NULL,
    topic_id text NOT NULL,
    partition int NOT NULL,
    first_offset bigint NOT NULL,
    next_offset bigint NOT NULL CHECK (next_offset >= first_offset),
    begun boolean NOT NULL DEFAULT false,
    epoch bigint NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (stream, timeline, topic_id, partition)
);
"""

# IF NOT EXISTS would wait for whoever writes to the table, and then find the index.
_INDEX_THERE = "SELECT to_regclass('millrace.replaced_by_age') IS NOT NULL"
_INDEX = "CREATE INDEX replaced_by_age ON millrace.replaced (stream, replaced_at)"

# A redrive of one rule goes by it. On a table that was there before it, it is made by the first such redrive: here it
# would keep batches waiting, and a million rows take five of the thirty seconds that a start has.
_BY_RULE = 'quarantine_by_rule ON millrace.quarantine (stream, rule, topic_id, partition, "offset")'
_BY_RULE_IS_WHOLE = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('millrace.quarantine_by_rule')"
_INDEX_LOCK = 7_305_002  # advisory lock: two sessions that make it would wait for each other
_INDEX_BOUND = "30min"

# Whoever may use a table that was there may use those that come later and hold the like, whoever makes them.
_COMES_LATER = {
    "ledger": (3, "progress"),
    "redrives": (4, "progress"),
    "replaced": (5, "quarantine"),
    "timelines": (6, "progress"),
}
_GRANTS = """
DO $grants$
DECLARE one record; of_table text; like_table text;
BEGIN
    FOR of_table, like_table IN SELECT * FROM unnest({made}::text[], {like}::text[]) LOOP FOR one IN
        SELECT CASE grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END AS role, privilege_type
        FROM pg_class, aclexplode(coalesce(relacl, acldefault('r', relowner)))
        WHERE oid = format('millrace.%I', like_table)::regclass AND grantee <> (
            SELECT relowner FROM pg_class WHERE oid = format('millrace.%I', of_table)::regclass
        ) AND privilege_type IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE')
    LOOP
        EXECUTE format('GRANT %s ON millrace.%I TO %s', one.privilege_type, of_table, one.role);
    END LOOP; END LOOP;
END
$grants$
"""
_OLDEST_SERVER = 140_000  # multiranges

# Columns that the quarantine of an older version lacks. To add one waits for whoever reads it, a backup say, so none
# is added that is there.
_SINCE = {"timestamp_ms": "bigint", "former": "jsonb NOT NULL DEFAULT '[]'"}
_THERE = "SELECT attname FROM pg_attribute WHERE attrelid = 'millrace.quarantine'::regclass AND NOT attisdropped"

# The record of work on a stream's newest timeline.
READ_RECORD = (
    "SELECT timeline, topic, topic_id, partition, next_offset, first_offset FROM millrace.progress "
    "WHERE stream = %(stream)s AND shard = %(shard)s "
    "AND timeline = (SELECT max(timeline) FROM millrace.progress WHERE stream = %(stream)s)"
)
SHARD = 0  # an unsharded sink is one shard


def work_record(rows: Sequence[tuple[Any, ...]]) -> WorkRecord:
    """The record of work in what `READ_RECORD` found."""
    partitions = [TopicPartition(*row[1:4]) for row in rows]
    return WorkRecord(
        rows[0][0] if rows else 0,
        {partition: row[4] for partition, row in zip(partitions, rows, strict=True)},
        {partition: row[5] for partition, row in zip(partitions, rows, strict=True)},
    )


def ensure_schema(cursor: Cursor) -> None:
    """Make Millrace's own tables where they are missing, and bring those of an older version up to date.

    An older Millrace that runs meanwhile goes on writing; started again, it says that it is the older one.

    Raises:
        DeclarationError: a newer Millrace has made them.
    """
    if _version(cursor) == SCHEMA_VERSION:
        return
    if cursor.connection.info.server_version < _OLDEST_SERVER:
        raise DeclarationError(
            f"the server is PostgreSQL {cursor.connection.info.server_version // 10_000}, but Millrace needs "
            "version 14 or newer",
            where="schema millrace",
            next_step="upgrade the server",
            code=Code.UNSUPPORTED,
        )
    cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_SCHEMA_LOCK,))
    found = _known_version(cursor)
    if found < SCHEMA_VERSION:
        for schema in _SCHEMAS:
            # IF NOT EXISTS asks for the right to make one, also where it is there: made by hand, say.
            if cursor.execute("SELECT to_regnamespace(%s) IS NULL", (schema,)).fetchone() == (True,):
                cursor.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}".encode())
        is_new = cursor.execute("SELECT to_regclass('millrace.quarantine') IS NULL").fetchone() == (True,)
        cursor.execute(_OWN_TABLES)
        if is_new:
            cursor.execute(f"CREATE INDEX {_BY_RULE}".encode())
        if cursor.execute(_INDEX_THERE).fetchone() != (True,):
            cursor.execute(_INDEX)
        there = {name for (name,) in cursor.execute(_THERE).fetchall()}
        for name, type_ in _SINCE.items():
            if name not in there:
                cursor.execute(f"ALTER TABLE millrace.quarantine ADD COLUMN {name} {type_}".encode())
        made = {table: like for table, (since, like) in _COMES_LATER.items() if since > found}
        grants = sql.SQL(_GRANTS).format(made=sql.Literal(list(made)), like=sql.Literal(list(made.values())))
        cursor.execute(grants)
        cursor.execute("INSERT INTO millrace.version VALUES (%s) ON CONFLICT DO NOTHING", (SCHEMA_VERSION,))


def index_quarantine_by_rule(connection: psycopg.Connection[Any]) -> bool:
    """Make the index of quarantine by rule where an older Millrace made the table, while batches go on writing.

    Args:
        connection: in autocommit, with a lock timeout.

    Returns:
        Whether it is there. Without it a redrive is right, and walks further. It is missing where this role does not
        own the table, another session is making it, a transaction that stays open is in the way, or the disk is full.

    Raises:
        psycopg.Error: the server is away.
    """
    if _is_whole(connection):
        return True
    if connection.execute("SELECT pg_try_advisory_lock(%s)", (_INDEX_LOCK,)).fetchone() != (True,):
        return False
    [(bound,)] = connection.execute("SHOW statement_timeout").fetchall()
    connection.execute("SELECT set_config('statement_timeout', %s, false)", (_INDEX_BOUND,))
    try:
        if _is_whole(connection) is False:  # whoever made it did not come to the end
            connection.execute("DROP INDEX CONCURRENTLY millrace.quarantine_by_rule")
        connection.execute(f"CREATE INDEX CONCURRENTLY IF NOT EXISTS {_BY_RULE}".encode())
    except psycopg.Error as no:
        if fault_of(no) is Fault.GONE:
            raise
        log.warning("index_not_made", index="millrace.quarantine_by_rule", error=str(no.diag.message_primary))
    finally:
        connection.execute("SELECT set_config('statement_timeout', %s, false)", (bound,))
        connection.execute("SELECT pg_advisory_unlock(%s)", (_INDEX_LOCK,))
    return _is_whole(connection) is True


def _is_whole(connection: psycopg.Connection[Any]) -> bool | None:
    """Whether the index is of use; None: there is none."""
    found = connection.execute(_BY_RULE_IS_WHOLE).fetchone()
    return None if found is None else bool(found[0])


def must_be_current(cursor: Cursor) -> None:
    """See that Millrace's own tables are there in this version, where somebody else makes them.

    Raises:
        RefusedError: they are missing, or of an older version.
        DeclarationError: a newer Millrace has made them.
    """
    if (found := _known_version(cursor)) < SCHEMA_VERSION:
        raise RefusedError(
            f"the tables of schema millrace have version {found}, but this Millrace needs {SCHEMA_VERSION}"
            if found
            else "schema millrace has no tables of Millrace",
            where="schema millrace",
            next_step="run `millrace control upgrade`",
            code=Code.CONTROL_VERSION,
        )


def _known_version(cursor: Cursor) -> int:
    if (found := _version(cursor)) > SCHEMA_VERSION:
        raise DeclarationError(
            f"the tables of schema millrace have version {found}; this Millrace supports {SCHEMA_VERSION}",
            where="schema millrace",
            next_step="run the Millrace that created them, or a newer one",
            code=Code.CONTROL_VERSION,
        )
    return found


def _version(cursor: Cursor) -> int:
    """The newest version that the tables were made for; 0 where there are none."""
    cursor.execute("SELECT to_regclass('millrace.version') IS NOT NULL")
    if cursor.fetchone() != (True,):
        return 0
    cursor.execute("SELECT coalesce(max(version), 0) FROM millrace.version")
    row = cursor.fetchone()
    return int(row[0]) if row else 0
