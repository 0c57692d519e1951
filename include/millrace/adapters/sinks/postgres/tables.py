"""The table a stream writes in its sink database: made, grown, or refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from millrace.errors import Code, DeclarationError

Cursor = psycopg.Cursor[tuple[Any, ...]]

STAGING_SCHEMA = "millrace_staging"
# For a transaction that looks for ranges of sources. A young table has no statistics yet; ranges are always found by
# the key. A plan that is made for any range opens, and waits for, every part of a partitioned table.
BY_THE_KEY = "SET LOCAL enable_seqscan = off; SET LOCAL plan_cache_mode = force_custom_plan; SET LOCAL jit = off"
# What identifies a row: its source, and its place among the rows of one record.
SOURCE_COLUMNS = (
    ("_topic_id", 'text COLLATE "C"'),
    ("_partition", "int"),
    ("_offset", "bigint"),
    ("_ordinal", "int"),
)

# What else a row of a table with a key has: when its record was written, and whether the key is deleted.
METADATA_COLUMNS = (("_timestamp", "timestamptz"), ("_deleted", "boolean"))

QUARANTINE_COLUMNS = (
    ("topic", "text"),
    ("timestamp", "timestamptz"),
    ("timestamp_ms", "bigint"),  # since 1970, where `timestamp` cannot hold it
    ("key", "bytea"),
    ("value", "bytea"),
    ("headers", "jsonb"),
    ("rule", "text"),
    ("error", "text"),
)


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """A column of the transform's output, with the PostgreSQL type it is stored as."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class TargetTable:
    """The table a stream writes."""

    schema: str
    name: str

    @classmethod
    def parse(cls, text: str) -> TargetTable:
        """From `schema.table`."""
        schema, _, name = text.partition(".")
        return cls(schema, name)

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def identifier(self) -> sql.Identifier:
        """The quoted name."""
        return sql.Identifier(self.schema, self.name)

    @property
    def primary_key(self) -> str:
        """The name of its key, where Millrace makes it and it is free."""
        return f"{self.name[:48]}_source"

    @property
    def own_columns(self) -> tuple[tuple[str, str], ...]:
        """What Millrace itself keeps with each row: names, and types that are never null."""
        return (*SOURCE_COLUMNS, ("_timeline", "int"))

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns of which no two rows have the same values; here one row a source and ordinal."""
        return tuple(name for name, _ in SOURCE_COLUMNS)

    @property
    def _key_told(self) -> str:
        return "its source columns"

    @property
    def _in_order(self) -> bool:
        """Whether a key has to have its columns in order: ranges of sources are looked for by it."""
        return True

    def ensure(self, cursor: Cursor, columns: Sequence[TargetColumn]) -> str:
        """Make the table, or add the columns it lacks; nothing is ever dropped or retyped.

        Returns:
            the name of its key, as PostgreSQL calls it in an error.

        Raises:
            DeclarationError: the table cannot take these columns: another type, a column of its own that must be
                filled, no source columns at all (it is somebody else's table, or none), no key on them; or a crash of
                the server would empty it.
        """
        cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"millrace:{self}",))
        kind = "SELECT relkind::text, relpersistence::text FROM pg_class WHERE oid = to_regclass(%s)"
        cursor.execute(kind, (self._quoted(cursor),))
        found = cursor.fetchone()
        if found is None:
            self._create(cursor, columns)
            return self._key(cursor)
        if found[0] not in _TABLES:
            raise self._unfit(f"it is {_OTHERS.get(found[0], 'no table')}", "name another table; Millrace creates it")
        if found[1] == _UNLOGGED:
            raise self._unfit(
                "it is unlogged: a crash of the server empties it, but the record of work stays",
                f"stop the stream, then run: ALTER TABLE {self._quoted(cursor)} SET LOGGED",
            )
        if unfit := self._unfit_partitions(cursor):
            raise self._unfit(
                f"its partition {', '.join(unfit)} is unlogged or foreign: a crash may delete its rows, but the record "
                "of work stays",
                "stop the stream, then run: ALTER TABLE PARTITION SET LOGGED, or detach it",
            )
        present = self._present(cursor)
        self._check(present, columns)
        for column in columns:
            if column.name not in present:
                cursor.execute(
                    sql.SQL("ALTER TABLE {} ADD COLUMN {} {}").format(
                        self.identifier, sql.Identifier(column.name), sql.SQL(column.type)
                    )
                )
        return self._key(cursor)

    def _check(self, present: Mapping[str, tuple[str, bool]], columns: Sequence[TargetColumn]) -> None:
        own = [name for name, _ in self.own_columns]
        if missing := [name for name in own if name not in present]:
            raise self._unfit(
                f"it exists and lacks {', '.join(missing)}: Millrace did not create it", "name another table"
            )
        wanted = {column.name: canonical(column.type) for column in columns}
        for name, type_ in wanted.items():
            if name in present and present[name][0] != type_:
                raise self._unfit(
                    f"column {name} is {present[name][0]}, but the transform now returns {type_}",
                    f"cast it in the transform; or stop the stream, drop the views that use the column, "
                    f"and run: {self.retyping(name, present[name][0], type_)}",
                )
        for name, (_, must_be_given) in present.items():
            if must_be_given and name not in wanted and name not in own:
                raise self._unfit(
                    f"column {name} is NOT NULL without a default, but the transform does not return it",
                    f"allow nulls: ALTER TABLE {self} ALTER COLUMN {name} DROP NOT NULL",
                )

    def retyping(self, name: str, present: str, wanted: str) -> str:
        """Return the statement that gives a column another type, with its values cast where the kinds differ."""
        column = sql.Identifier(name)
        statement = sql.SQL("ALTER TABLE {} ALTER COLUMN {} TYPE {}").format(self.identifier, column, sql.SQL(wanted))
        if present.partition("(")[0] != wanted.partition("(")[0]:
            statement += sql.SQL(" USING {}::{}").format(column, sql.SQL(wanted))
        return statement.as_string()

    def must_take(self, cursor: Cursor, columns: Sequence[TargetColumn]) -> None:
        """See that the table takes these columns as it is: nothing is made or added.

        Raises:
            DeclarationError: it does not.
        """
        present = self._present(cursor)
        if not present:
            raise self._unfit("it does not exist", "start the stream, which creates it")
        self._check(present, columns)
        if lacking := [column.name for column in columns if column.name not in present]:
            raise self._unfit(
                f"it lacks {', '.join(lacking)}, which the app returns", "start the stream, which adds them"
            )
        self._key(cursor)

    def find_key(self, cursor: Cursor) -> str | None:
        """The unique index on its key columns, by its name; None where there is none."""
        return next((name for name, _, fits in self._indexes(cursor) if fits), None)

    def _indexes(self, cursor: Cursor) -> list[tuple[str, bool, bool]]:
        """The table's indexes: the name, whether it is the primary key, whether it is a key on the key columns.

        Its first columns count, not those that it only includes; in another collation it finds nothing.
        """
        cursor.execute(
            "SELECT index.relname, indisprimary, indisunique AND indisvalid AND indimmediate AND indpred IS NULL "
            "AND indnkeyatts = %s AND %s::name[] = ARRAY("
            "SELECT attname FROM unnest(indkey, indcollation) WITH ORDINALITY AS part (at, collation_, nr) "
            "JOIN pg_attribute ON attrelid = indrelid AND attnum = at AND attcollation = collation_ "
            f"WHERE nr <= indnkeyatts ORDER BY {'nr' if self._in_order else 'attname'}) "
            "FROM pg_index JOIN pg_class AS index ON index.oid = indexrelid WHERE indrelid = to_regclass(%s)",
            (
                len(self.key_columns),
                list(self.key_columns if self._in_order else sorted(self.key_columns)),
                self._quoted(cursor),
            ),
        )
        return [(str(name), bool(primary), bool(fits)) for name, primary, fits in cursor.fetchall()]

    def _key(self, cursor: Cursor) -> str:
        """The key on the key columns: without it every batch would read the whole table."""
        found = self._indexes(cursor)
        for name, _, fits in found:
            if fits:
                return name
        what = f"it has no key on {self._key_told}, so a row may exist twice"
        if self._is_partitioned_otherwise(cursor):
            raise self._unfit(
                f"{what}. It cannot have one: it is partitioned by another column",
                f"partition it by {self._key_told}, or name another table",
            )
        kind = "UNIQUE" if any(primary for _, primary, _ in found) else "PRIMARY KEY"
        statement = sql.SQL("ALTER TABLE {} ADD {}").format(self.identifier, self._constraint(cursor, kind))
        raise self._unfit(what, f"stop the stream, then run: {statement.as_string(cursor)}")

    def _unfit_partitions(self, cursor: Cursor) -> list[str]:
        """The first partitions that a crash empties, or that are another server's."""
        cursor.execute(
            "SELECT relid::text FROM pg_partition_tree(to_regclass(%s)) JOIN pg_class ON oid = relid "
            "WHERE relpersistence = %s OR relkind = 'f' ORDER BY 1 LIMIT 5",
            (self._quoted(cursor), _UNLOGGED),
        )
        return [str(name) for (name,) in cursor.fetchall()]

    def _is_partitioned_otherwise(self, cursor: Cursor) -> bool:
        """Whether it is partitioned by what is no key column: PostgreSQL wants those in every key."""
        cursor.execute(
            "SELECT EXISTS (SELECT FROM pg_partitioned_table, unnest(partattrs) AS part (at) "
            "LEFT JOIN pg_attribute ON attrelid = to_regclass(%s) AND attnum = at "
            "WHERE partrelid = to_regclass(%s) AND (attname = ANY(%s::name[])) IS NOT TRUE)",
            (self._quoted(cursor), self._quoted(cursor), list(self.key_columns)),
        )
        return cursor.fetchone() == (True,)

    def _constraint(self, cursor: Cursor, kind: str) -> sql.Composed:
        """The key as part of a statement; where its name is taken PostgreSQL finds it another."""
        cursor.execute(
            "SELECT EXISTS (SELECT FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace "
            "WHERE nspname = %s AND relname = %s) "
            "OR EXISTS (SELECT FROM pg_constraint WHERE conrelid = to_regclass(%s) AND conname = %s)",
            (self.schema, self.primary_key, self._quoted(cursor), self.primary_key),
        )
        key = sql.SQL("{} ({})").format(sql.SQL(kind), sql.SQL(", ").join(map(sql.Identifier, self.key_columns)))
        if cursor.fetchone() == (True,):
            return key
        return sql.SQL("CONSTRAINT {} {}").format(sql.Identifier(self.primary_key), key)

    def _quoted(self, cursor: Cursor) -> str:
        return self.identifier.as_string(cursor)

    def _present(self, cursor: Cursor) -> dict[str, tuple[str, bool]]:
        cursor.execute(
            "SELECT attname, format_type(atttypid, atttypmod), attnotnull AND NOT atthasdef AND attidentity = '' "
            "FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
            (self._quoted(cursor),),
        )
        return {str(name): (str(type_), bool(needed)) for name, type_, needed in cursor.fetchall()}

    def _create(self, cursor: Cursor, columns: Sequence[TargetColumn]) -> None:
        cursor.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(self.schema)))
        body: list[sql.Composable] = [sql.SQL("{} {}").format(sql.Identifier(c.name), sql.SQL(c.type)) for c in columns]
        body += [sql.SQL("{} {} NOT NULL").format(sql.Identifier(n), sql.SQL(t)) for n, t in self.own_columns]
        body.append(self._constraint(cursor, "PRIMARY KEY"))
        cursor.execute(sql.SQL("CREATE TABLE {} ({})").format(self.identifier, sql.SQL(", ").join(body)))

    def _unfit(self, what: str, next_step: str) -> DeclarationError:
        return DeclarationError(
            f"the table does not fit: {what}", where=f"table {self}", next_step=next_step, code=Code.WRONG_TABLE
        )


@dataclass(frozen=True, slots=True)
class KeyedTable(TargetTable):
    """A table of one row a key, the last one; a row says by itself where it comes from, and whether it is deleted.

    Attributes:
        key: the columns that tell one row from another.
    """

    key: tuple[str, ...]

    @classmethod
    def of(cls, text: str, key: tuple[str, ...]) -> KeyedTable:
        """From `schema.table`."""
        table = TargetTable.parse(text)
        return cls(table.schema, table.name, key)

    @property
    def primary_key(self) -> str:
        """The name of its key, where Millrace makes it and it is free."""
        return f"{self.name[:48]}_key"

    @property
    def own_columns(self) -> tuple[tuple[str, str], ...]:
        """What Millrace itself keeps with each row: names, and types that are never null."""
        return (*SOURCE_COLUMNS, ("_timeline", "int"), *METADATA_COLUMNS)

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns of which no two rows have the same values."""
        return self.key

    @property
    def _key_told(self) -> str:
        return ", ".join(self.key)

    @property
    def _in_order(self) -> bool:
        return False

    def _key(self, cursor: Cursor) -> str:
        cursor.execute(
            "SELECT attname FROM pg_attribute JOIN pg_collation ON pg_collation.oid = attcollation "
            "WHERE attrelid = to_regclass(%s) AND attname = ANY(%s) AND NOT collisdeterministic LIMIT 1",
            (self._quoted(cursor), list(self.key)),
        )
        if loose := cursor.fetchone():
            raise self._unfit(
                f"its key column {loose[0]} has a collation that treats different texts as equal, but batches do not",
                "name another table, or give the column a deterministic collation",
            )
        return TargetTable._key(self, cursor)

    def _check(self, present: Mapping[str, tuple[str, bool]], columns: Sequence[TargetColumn]) -> None:
        given = {column.name for column in columns}
        if missing := [name for name in self.key if name not in given]:
            raise self._unfit(
                f"its key is {self._key_told}, but the app does not return {', '.join(missing)}",
                "add the column in the transform, or declare another `key`",
            )
        TargetTable._check(self, present, columns)
        for name, type_ in self.own_columns:
            if present[name] != (wanted := canonical(type_.partition(" ")[0]), True):
                raise self._unfit(
                    f"Millrace's own column {name} is not {wanted} NOT NULL, or has a default", "name another table"
                )
        if nullable := [name for name in self.key if name in present and not present[name][1]]:
            raise self._unfit(
                f"its key column {nullable[0]} may be null or has a default: rows without a key would look alike",
                f"stop the stream, then run: ALTER TABLE {self} ALTER COLUMN {nullable[0]} SET NOT NULL, ALTER COLUMN "
                f"{nullable[0]} DROP DEFAULT",
            )


# What pg_class.relkind calls a table, partitioned ones too, and some of the rest.
_TABLES = frozenset("rp")
_UNLOGGED = "u"  # pg_class.relpersistence
_OTHERS = {"v": "a view", "m": "a materialized view", "f": "a foreign table", "S": "a sequence"}

# PostgreSQL's own spelling of the types the runtime asks for.
_CANONICAL = {"int": "integer", "timestamptz": "timestamp with time zone", "timestamp": "timestamp without time zone"}


def canonical(type_: str) -> str:
    """A type as `format_type` spells it."""
    return _CANONICAL.get(type_, type_)
