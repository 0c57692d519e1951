"""The schema of record values: Spark SQL DDL of scalar columns, `name TYPE [NOT NULL], ...`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from millrace.declarations.fields import SeveralWrong, Wrong, described, nearest
from millrace.domain.declaration.pipeline import Column, ColumnType
from millrace.domain.formats.printable import shown

MAXIMUM_COLUMNS = 1000
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")
_COLUMN = re.compile(r"(?P<name>\S+?)(\s*:\s*|\s+)(?P<type>[A-Za-z_]+)\s*(?P<rest>.*)", re.DOTALL)
_DECIMAL = re.compile(r"\(\s*([0-9]{1,4})\s*(?:,\s*([0-9]{1,4})\s*)?\)\s*(.*)", re.DOTALL)
_NESTED = frozenset({"ARRAY", "JSON", "MAP", "STRUCT", "VARIANT"})
_AS_TEXT = frozenset({"BINARY", "INTERVAL"})  # what JSON has in their place is text
_WHOLE = (
    "leave the field out, or write `format: bytes` without a schema and let the transform parse the record: "
    "docs/guide/nested.md"
)
_SPELLINGS = {
    "INTEGER": "INT",
    "LONG": "BIGINT",
    "SHORT": "SMALLINT",
    "BYTE": "TINYINT",
    "REAL": "FLOAT",
    "NUMERIC": "DECIMAL(12,2)",
    "DEC": "DECIMAL(12,2)",
    "BOOL": "BOOLEAN",
    "TEXT": "STRING",
    "VARCHAR": "STRING",
    "CHAR": "STRING",
    "UUID": "STRING",
    "DATETIME": "TIMESTAMP",
    "TIMESTAMP_NTZ": "TIMESTAMP",
    "TIMESTAMP_LTZ": "TIMESTAMP",
}


@dataclass(frozen=True, slots=True)
class _Piece:
    text: str
    start: int  # characters before it in the whole schema
    line_offset: int

    @property
    def at(self) -> str:
        return f"at character {self.start + 1}"

    def wrong(self, what: str, next_step: str) -> Wrong:
        return Wrong(f"{what} ({self.at})", next_step, line_offset=self.line_offset)


def parse_schema(value: object) -> tuple[Column, ...]:
    """The columns of a schema, in order.

    Raises:
        Wrong: it is not text, or is empty.
        SeveralWrong: everything that is wrong with its columns, each with its position.
    """
    if not isinstance(value, str):
        raise Wrong(f"{described(value)} is not a schema", 'write columns: "id STRING NOT NULL, amount DECIMAL(12,2)"')
    if not value.strip():
        raise Wrong("the schema has no column", 'write columns: "id STRING NOT NULL, amount DECIMAL(12,2)"')
    columns: list[Column] = []
    problems: list[Wrong] = []
    for piece in _pieces(value):
        try:
            column = _column(piece)
            _must_be_new(piece, column, columns)
            columns.append(column)
        except Wrong as wrong:
            problems.append(wrong)
        if len(columns) > MAXIMUM_COLUMNS:
            problems.append(piece.wrong(f"the schema has more than {MAXIMUM_COLUMNS} columns", "split the record"))
            break
    if problems:
        raise SeveralWrong(problems)
    return tuple(columns)


def _must_be_new(piece: _Piece, column: Column, columns: Sequence[Column]) -> None:
    for each in columns:
        if each.name == column.name:
            raise piece.wrong(f"the column `{column.name}` appears twice", "remove one of them")
        if each.name.casefold() == column.name.casefold():
            raise piece.wrong(f"the columns `{each.name}` and `{column.name}` differ in case only", _WHOLE)


def _pieces(schema: str) -> Iterator[_Piece]:
    """The text between top-level commas, without the space around it."""
    depth, start = 0, 0
    for index, character in enumerate(schema + ","):
        if character in "(<":
            depth += 1
        elif character in ")>":
            depth -= 1
        elif character == "," and (depth <= 0 or index == len(schema)):
            raw = schema[start:index]
            first = start + len(raw) - len(raw.lstrip())
            yield _Piece(raw.strip(), first, schema.count("\n", 0, first))
            start = index + 1


def _column(piece: _Piece) -> Column:
    if not piece.text:
        raise piece.wrong("a column is missing between commas or at the end", "remove the extra comma")
    found = _COLUMN.fullmatch(piece.text)
    if not found:
        raise piece.wrong(f"`{shown(piece.text)}` is not a column", "write its name and type, like `amount INT`")
    name = _column_name(piece, found["name"])
    word = found["type"].upper()
    if word in _NESTED | _AS_TEXT:
        what = f"columns of type {word} do not exist in Millrace yet"
        raise piece.wrong(what, _WHOLE if word in _NESTED else "write STRING, and convert the text in the transform")
    if word not in ColumnType.__members__:
        close = (
            f"write {_SPELLINGS[word]}"
            if word in _SPELLINGS
            else nearest(word, ColumnType.__members__.keys() - _AS_TEXT)
        )
        raise piece.wrong(f"`{shown(found['type'])}` is not a column type", close)
    kind = ColumnType[word]
    rest = found["rest"]
    precision = scale = None
    if kind is ColumnType.DECIMAL:
        precision, scale, rest = _decimal(piece, rest)
    return Column(name, kind, _required(piece, rest), precision, scale)


def _column_name(piece: _Piece, name: str) -> str:
    if name.startswith("_"):
        raise piece.wrong(f"`{shown(name)}` is reserved: Millrace's own columns start with `_`", _WHOLE)
    if not _NAME.fullmatch(name):
        rule = "letters, digits and `_`, at most 63, a letter first"
        bare = name.strip("`'\"")
        step = f"write `{bare}`, without quotes" if _NAME.fullmatch(bare) else _WHOLE
        raise piece.wrong(f"`{shown(name)}` is not a column name ({rule})", step)
    return name


def _decimal(piece: _Piece, rest: str) -> tuple[int, int, str]:
    found = _DECIMAL.fullmatch(rest)
    if not found or found[2] is None:
        digits = found[1] if found else "12"
        step = f"write DECIMAL({digits},0)" if found else "write DECIMAL(12,2)"
        raise piece.wrong("DECIMAL needs its precision and scale", step)
    precision, scale = int(found[1]), int(found[2])
    if not 1 <= precision <= 38:
        raise piece.wrong(f"the precision {precision} of DECIMAL is out of bounds", "write a precision from 1 to 38")
    if scale > precision:
        step = f"write a scale from 0 to {precision}"
        raise piece.wrong(f"the scale {scale} of DECIMAL is more than its precision {precision}", step)
    return precision, scale, found[3]


def _required(piece: _Piece, rest: str) -> bool:
    words = rest.upper().split()
    if words not in ([], ["NOT", "NULL"]):
        what = f"`{shown(rest)}` does not belong after a column's type"
        raise piece.wrong(what, "only NOT NULL may follow; separate columns by commas")
    return bool(words)
