"""Values on their way into PostgreSQL by COPY: the same as by parameters of an INSERT, or refused by name."""

from __future__ import annotations

import math
import random
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

from millrace.adapters.postgres import connection as postgres_connection
from millrace.adapters.postgres.connection import connect
from millrace.adapters.sinks.postgres.copy import RowsCopy, as_text, copy_block
from millrace.adapters.sinks.postgres.types import target_columns
from millrace.domain.declaration.pipeline import Column, ColumnType, ValueFormat, ValueSchema
from millrace.domain.sinks.batch import TaskResult
from millrace.runtime.formats.json.decoder import Decoder
from millrace.settings import PostgresSettings

ROWS = 1_000
EPOCH = datetime(1970, 1, 1)
FIRST, LAST = datetime.min, datetime.max
# In the year 67438, printed as 1902; the first year that cannot be printed; 10000; before 1; the ends of 64 bits
FAR_US = (
    2_066_000_000_000_000_000,
    971_890_963_200_000_000,
    253_402_300_800_000_000,
    -62_135_596_800_000_001,
    (1 << 63) - 1,
    -(1 << 63),
)
FAR_DAYS = (2_932_897, 11_248_738, -719_163, (1 << 31) - 1, -(1 << 31))


@dataclass(frozen=True)
class Kind:
    """A type of column: values of it as Python has them, and as bytes that PostgreSQL gives for them."""

    type: pa.DataType
    edges: tuple[Any, ...]
    any: Callable[[random.Random], Any]
    bytes: str


def moment(chance: random.Random) -> datetime:
    return FIRST + timedelta(microseconds=chance.randrange((LAST - FIRST) // timedelta(microseconds=1)))


def day(chance: random.Random) -> date:
    return date.fromordinal(chance.randint(1, date.max.toordinal()))


def real(chance: random.Random) -> float:
    (found,) = struct.unpack("f", chance.randbytes(4))
    return math.nan if math.isnan(found) else float(found)  # there are many, and a text does not tell them apart


def double(chance: random.Random) -> float:
    (found,) = struct.unpack("d", chance.randbytes(8))
    return math.nan if math.isnan(found) else float(found)


def text(chance: random.Random) -> str:
    return "".join(chance.choices("ab\"\\.,;\n\r\t 'N\x01\x1a\x7fé\u2028😀", k=chance.randrange(12)))


FLOATS = (0.0, -0.0, math.inf, -math.inf, math.nan, 0.1, 1e15, 1e16, 123456789.0)
TEXTS = ("", "NULL", "null", "\\N", "\\.", "a\n\\.\nb", "\n\\.\n", "\r", "\r\n", '"', '""', '"\n', ",", " a ", "\ufeff")
MOMENTS = (FIRST, LAST, EPOCH, datetime(99, 12, 31, 23, 59, 59, 999_999), datetime(1, 2, 3), datetime(12, 11, 10))
KINDS: dict[str, Kind] = {
    "zoned": Kind(pa.timestamp("us", tz="UTC"), MOMENTS, moment, "timestamptz_send({})"),
    "naive": Kind(pa.timestamp("us"), MOMENTS, moment, "timestamp_send({})"),
    "day": Kind(pa.date32(), (date.min, date.max, date(1, 2, 3), date(99, 1, 31)), day, "date_send({})"),
    "real": Kind(pa.float32(), (*FLOATS, 1e-45, 3.4028234663852886e38, 16_777_216.0), real, "float4send({})"),
    "double": Kind(pa.float64(), (*FLOATS, 5e-324, 1.7976931348623157e308), double, "float8send({})"),
    "text": Kind(pa.string(), TEXTS, text, "convert_to({}, 'UTF8')"),
    "raw": Kind(pa.binary(), (b"", b"\0", b"\\x", b"\n"), lambda chance: chance.randbytes(6), "{}"),
    "exact": Kind(
        pa.decimal128(38, 18),
        (Decimal("0E-18"), Decimal("1E-18"), Decimal("-99999999999999999999.999999999999999999")),
        lambda chance: Decimal(chance.randrange(-(10**38) + 1, 10**38)).scaleb(-18),
        "numeric_send({})",
    ),
    "whole": Kind(pa.int64(), (-(1 << 63), (1 << 63) - 1, 0), lambda chance: chance.randrange(1 << 62), "int8send({})"),
    "flag": Kind(pa.bool_(), (True, False), lambda chance: chance.random() < 0.5, "boolsend({})"),
}
COLUMNS = pa.schema([(name, kind.type) for name, kind in KINDS.items()])


def some_values(kind: Kind, chance: random.Random) -> list[Any]:
    edges = [None, *kind.edges]
    return [edges[row] if row < len(edges) else kind.any(chance) for row in range(ROWS)]


def block_of(columns: dict[str, pa.Array]) -> pa.RecordBatch:
    rows = len(next(iter(columns.values())))
    own = {"_topic_id": pa.array(["id"] * rows), "_partition": pa.array([0] * rows, pa.int32())}
    own |= {"_offset": pa.array(range(rows), pa.int64()), "_ordinal": pa.array([0] * rows, pa.int32())}
    return pa.RecordBatch.from_pydict(own | columns)


class Tables:
    """A table that takes rows by COPY, and one that takes the same by parameters."""

    def __init__(self, settings: PostgresSettings, schema: str, columns: pa.Schema) -> None:
        self.settings, self.schema = settings, schema
        fields = [
            sql.SQL("{} {}").format(sql.Identifier(one.name), sql.SQL(one.type)) for one in target_columns(columns, "")
        ]
        body = sql.SQL(", ").join(fields)
        with connect(settings, "test") as connection:
            connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
            for table in (self.copied, self.inserted):
                connection.execute(
                    sql.SQL(
                        "CREATE TABLE {} (_attempt bigint, _topic_id text, _partition int, _offset bigint, "
                        "_ordinal int, {})"
                    ).format(table, body)
                )

    @property
    def copied(self) -> sql.Identifier:
        return sql.Identifier(self.schema, "copied")

    @property
    def inserted(self) -> sql.Identifier:
        return sql.Identifier(self.schema, "inserted")

    def copy(self, block: pa.RecordBatch) -> TaskResult:
        return RowsCopy(self.settings, "test", self.copied)(iter([block]), 7)

    def insert(self, values: dict[str, list[Any]]) -> None:
        """By parameters of psycopg, which sends a moment with its zone."""
        names = [*values]
        marks = sql.SQL(", ").join(sql.SQL("%b") if name == "raw" else sql.SQL("%s") for name in names)
        statement = sql.SQL("INSERT INTO {} (_offset, {}) VALUES (%s, {})").format(
            self.inserted, sql.SQL(", ").join(map(sql.Identifier, names)), marks
        )
        with psycopg.connect(**self.settings.keywords()) as connection:
            connection.execute("SET timezone = 'Asia/Kolkata'")
            rows = zip(*values.values(), strict=True)
            connection.cursor().executemany(statement, [(offset, *row) for offset, row in enumerate(rows)])

    def differing(self, names: list[str]) -> dict[str, list[int]]:
        """The offsets at which the two tables have other bytes, by column."""
        found: dict[str, list[int]] = {}
        with psycopg.connect(**self.settings.keywords()) as connection:
            for name in names:
                both = [sql.SQL(KINDS[name].bytes).format(sql.Identifier(table, name)) for table in ("c", "i")]
                query = sql.SQL(
                    "SELECT coalesce(c._offset, i._offset) FROM {} AS c FULL JOIN {} AS i ON c._offset = i._offset "
                    "WHERE {} IS DISTINCT FROM {} OR c._offset IS NULL OR i._offset IS NULL ORDER BY 1"
                ).format(self.copied, self.inserted, *both)
                found[name] = [offset for (offset,) in connection.execute(query).fetchall()]
        return found


@pytest.fixture(params=["as it is", "of another zone", "behind a pooler"])
def server(request: pytest.FixtureRequest, control_databases: Any, monkeypatch: pytest.MonkeyPatch) -> PostgresSettings:
    """A database, of which role and database may have settings of their own."""
    made = control_databases.create().owner
    if request.param != "as it is":
        control_databases.as_superuser(f"ALTER ROLE {made.user} SET timezone = 'Asia/Kolkata'")
        control_databases.as_superuser(f"ALTER ROLE {made.user} SET datestyle = 'SQL, DMY'")
        control_databases.as_superuser(f"ALTER DATABASE {made.database} SET timezone = 'America/St_Johns'")
    if request.param == "behind a pooler":
        monkeypatch.setattr(postgres_connection, "_OPTIONS", "")  # which it does not hand on
    return made


def test_what_is_copied_is_what_parameters_insert(server: PostgresSettings) -> None:
    chance = random.Random(20261127)
    values = {name: some_values(kind, chance) for name, kind in KINDS.items()}
    tables = Tables(server, "values", COLUMNS)
    columns = {name: pa.array(values[name], kind.type) for name, kind in KINDS.items()}
    assert tables.copy(block_of(columns)) == TaskResult(ROWS)
    zoned = [None if value is None else value.replace(tzinfo=UTC) for value in values["zoned"]]
    tables.insert({**values, "zoned": zoned})
    assert tables.differing([*KINDS]) == {name: [] for name in KINDS}


# FLOAT and DOUBLE

REFERENCE = Path(__file__).resolve().parents[4] / "docs" / "reference" / "sink.md"
ROW = re.compile(r"^\| `([^`]+)` \| `([^`]+)`.* \| `([^`]+)`.* \|$", re.MULTILINE)
PAIR = ValueSchema(ValueFormat.JSON, (Column("real", ColumnType.FLOAT), Column("double", ColumnType.DOUBLE)))


def documented() -> list[tuple[str, str, str]]:
    """A number in a record, what the reference says that a FLOAT is of it, and a DOUBLE."""
    section = REFERENCE.read_text(encoding="utf-8").partition("### FLOAT and DOUBLE")[2].partition("\n#")[0]
    return [(number, real, double) for number, real, double in ROW.findall(section)]


def test_a_table_holds_of_a_float_what_the_reference_says(
    database: PostgresSettings, name: str, admin: psycopg.Connection[Any]
) -> None:
    told = documented()
    assert len(told) == 7
    values = [f'{{"{column}": {row[0]}}}'.encode() for row in told for column in ("real", "double")]
    decoded = Decoder(PAIR, key_required=False).decode(values, [None] * len(values), [0] * len(values))
    tables = Tables(database, name, pa.schema([("real", pa.float32()), ("double", pa.float64())]))
    block = block_of(dict(zip(("real", "double"), decoded.columns, strict=True)))
    assert tables.copy(block) == TaskResult(len(values))
    query = sql.SQL("SELECT real::text, double::text FROM {} ORDER BY _offset").format(tables.copied)
    held = zip(admin.execute(query).fetchall(), decoded.rules, strict=True)
    found = [str(rule or next((text for text in texts if text is not None), None)) for texts, rule in held]
    assert list(zip(found[::2], found[1::2], strict=True)) == [row[1:] for row in told]


# Values that no sink takes


FAR: dict[str, tuple[pa.DataType, tuple[int, ...]]] = {
    "zoned": (pa.int64(), FAR_US),
    "naive": (pa.int64(), FAR_US),
    "day": (pa.int32(), FAR_DAYS),
}


def with_far(column: str) -> pa.RecordBatch:
    """Rows of which the first and the last have a good value."""
    whole, values = FAR[column]
    return block_of({column: pa.array([0, *values, None], whole).cast(KINDS[column].type)})


def offsets(tables: Tables, admin: psycopg.Connection[Any]) -> list[int]:
    found = admin.execute(sql.SQL("SELECT _offset FROM {} ORDER BY 1").format(tables.copied)).fetchall()
    return [int(offset) for (offset,) in found]


@pytest.mark.parametrize("column", FAR)
def test_a_time_that_no_reader_takes_is_refused_and_named(
    database: PostgresSettings, name: str, admin: psycopg.Connection[Any], column: str
) -> None:
    tables = Tables(database, name, pa.schema([(column, KINDS[column].type)]))
    block = with_far(column)
    good = [0, len(block) - 1]
    done = tables.copy(block)
    why = f"`{column}` lies outside the years 1 to 9999"
    assert done == TaskResult(2, {("id", 0, row): why for row in range(len(block)) if row not in good})
    assert offsets(tables, admin) == good


def test_a_redrive_refuses_what_a_batch_does(
    database: PostgresSettings, name: str, admin: psycopg.Connection[Any]
) -> None:
    """It copies blocks of its own, on a connection of its own."""
    tables = Tables(database, name, pa.schema([("zoned", KINDS["zoned"].type)]))
    block, refused = with_far("zoned"), list[tuple[Any, ...]]()
    names = ("_topic_id", "_partition", "_offset", "_ordinal", "zoned")
    statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(
        tables.copied, sql.SQL(", ").join(map(sql.Identifier, names))
    )
    given = pa.table([as_text(column) for column in block.columns], names=list(names))
    with connect(database, "test") as connection:
        assert copy_block(connection, statement, given, refused) == 2
    assert [source[:3] for source in refused] == [("id", 0, row) for row in range(1, len(block) - 1)]
    assert offsets(tables, admin) == [0, len(block) - 1]


def test_a_block_of_such_rows_alone_leaves_nothing(
    database: PostgresSettings, name: str, admin: psycopg.Connection[Any]
) -> None:
    tables = Tables(database, name, pa.schema([("day", pa.date32())]))
    block = with_far("day").slice(1, 2)
    assert (tables.copy(block).rows, len(tables.copy(block).refused)) == (0, 2)
    assert offsets(tables, admin) == []


def test_text_that_is_not_utf8_is_refused_and_named(
    database: PostgresSettings, name: str, admin: psycopg.Connection[Any]
) -> None:
    tables = Tables(database, name, pa.schema([("text", pa.string())]))
    texts = pa.array([b"a", b"\xff", b"\xed\xa0\x80", "é😀".encode()], pa.binary()).cast(pa.string(), safe=False)
    why = "`text` is not UTF-8"
    assert tables.copy(block_of({"text": texts})) == TaskResult(2, {("id", 0, 1): why, ("id", 0, 2): why})
    assert offsets(tables, admin) == [0, 3]
