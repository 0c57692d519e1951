"""Records as topics have them: values of many kinds for a schema with a column of each common type."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from millrace.domain.declaration.pipeline import Column, ColumnType, ValueFormat, ValueSchema
from support.formats.json_names import written

COLUMNS = (
    Column("id", ColumnType.STRING, required=True),
    Column("customer", ColumnType.STRING),
    Column("count", ColumnType.INT),
    Column("amount", ColumnType.DECIMAL, precision=12, scale=2),
    Column("ratio", ColumnType.DOUBLE),
    Column("share", ColumnType.FLOAT),
    Column("paid", ColumnType.BOOLEAN),
    Column("day", ColumnType.DATE),
    Column("at", ColumnType.TIMESTAMP),
)
SCHEMA = ValueSchema(ValueFormat.JSON, COLUMNS)
DECLARED = frozenset(column.name for column in COLUMNS)

Draw = random.Random
Document = dict[str, Any]

ODD_TEXTS = (":", ":b", " :", '":', '" :', '\\":', "\\", '"', '{"a":1}', '{"a" : {"b":[]}}', '\\\\":', "[[[{{{", "a\n:")
FORMS = (
    "2026-01-31T10:00:00Z",
    "2026-01-31",
    "2026-01-31 10:00",
    "2026-01-31t10:00:00.5z",
    "2026-01-31T10:00:00.123456789+02:00",
    "2026-01-31T10:00:00.123456000",
    "2026-01-31T10:00+02",
    "2026-02-30T10:00:00Z",
    "0000-12-31T23:00:00-02:00",
    "0001-01-01T00:59:59.999999+01:00",
    "0001-01-01T01:00:00+01:00",
    "9999-12-31T22:59:59.999999-01:00",
    "9999-12-31T23:00:00-01:00",
    "31/01/2026",
)
NO_BLANKS = (b"\v", b"\f", "\u00a0".encode(), "\ufeff".encode(), b"\0", "\u2028".encode())


def declared(draw: Draw) -> Document:
    return {
        "id": f"{draw.getrandbits(40):x}",
        "customer": f"customer {draw.randrange(100)} \u00fc",
        "count": draw.randrange(-100, 100),
        "amount": draw.choice([draw.randrange(1_000), round(draw.random() * 1000, 2), "12.50"]),
        "ratio": draw.choice([draw.random(), draw.randrange(10), -0.0, 1e300]),
        "share": draw.choice([draw.random(), 3, 1e-40]),
        "paid": draw.random() < 0.5,
        "day": f"2026-10-{draw.randrange(10, 29)}",
        "at": f"2026-10-{draw.randrange(10, 29)}T10:{draw.randrange(10, 60)}:00.{draw.randrange(10**6):06}Z",
    }


def nulls(draw: Draw) -> Document:
    return {name: None if name != "id" and draw.random() < 0.4 else value for name, value in declared(draw).items()}


def absent(draw: Draw) -> Document:
    return {name: value for name, value in nulls(draw).items() if name == "id" or draw.random() < 0.7}


def any_order(draw: Draw) -> Document:
    members = list((absent(draw) | {"extra": 1, "other": "a"}).items())
    draw.shuffle(members)
    return dict(members)


def flat(draw: Draw) -> Document:
    more = {f"more{index}": draw.choice([None, True, 7, 0.5, "x" * 30]) for index in range(25) if draw.random() < 0.8}
    return absent(draw) | more


def nested(draw: Draw) -> Document:
    place = {"lat": draw.random(), "of": {"city": "Delft", "country": {"code": "NL"} if draw.random() < 0.8 else None}}
    return (
        declared(draw) | {"place": place, "id2": {}} | ({"deep": [[[{"a": {"b": 1}}]]]} if draw.random() < 0.3 else {})
    )


def arrays(draw: Draw) -> Document:
    lines = [
        {"sku": number, "tags": ["a"]} | ({"of": {"x": 1}} if number else {}) for number in range(draw.randrange(4))
    ]
    return declared(draw) | {"lines": lines, "tags": ["new"], "grid": [[{"x": 1}], []]}


def maps(draw: Draw) -> Document:
    by_key = {
        f"k{draw.getrandbits(32)}": draw.choice([1, "a", {"x": 1}, {"x": 1, "y": [2]}])
        for _ in range(draw.randrange(4))
    }
    return declared(draw) | {"by_key": by_key, "of": {"by_key": by_key}}


def changing_names(draw: Draw) -> Document:
    return declared(draw) | {f"c{draw.randrange(60)}": 1, "fixed": {"a": 1}}


def shapes(draw: Draw) -> Document:
    any_shape = draw.choice([None, 1, "a", [], {}, {"a": 1}, [{"a": 1}], {"a": {"b": 1}}, [[1]], {"a": "b"}])
    return declared(draw) | {"shape": any_shape, "of": {"shape": any_shape}}


def texts(draw: Draw) -> Document:
    return declared(draw) | {"customer": draw.choice(ODD_TEXTS), "text": draw.choice(ODD_TEXTS), "a": {"b": "x"}}


def names(draw: Draw) -> Document:
    return declared(draw) | {draw.choice(ODD_TEXTS): 1, "": {draw.choice(ODD_TEXTS): 1}, "gr\u00f6\u00dfe": 1}


def similar(draw: Draw) -> Document:
    return absent(draw) | {"Customer": 1, "AT": None, "pa_id": {"a": 1}}


def forms(draw: Draw) -> Document:
    return declared(draw) | {"at": draw.choice(FORMS), "extra": 1}


def wrong(draw: Draw) -> Document:
    fault: Document = draw.choice(
        [{"count": "1"}, {"count": 2**40}, {"amount": 1.234}, {"day": "x"}, {"id": None}, {"share": 1e39}]
    )
    return flat(draw) | (fault if draw.random() < 0.2 else {})


_KINDS = (declared, nulls, absent, any_order, flat, nested, arrays, maps, changing_names, shapes, texts, names)
DOCUMENTS = {each.__name__: each for each in (*_KINDS, similar, forms, wrong)}


def compact(document: Document) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def in_any_form(draw: Draw, document: Document) -> bytes:
    separators = draw.choice([(",", ":"), (", ", ": "), (" , ", " : "), ("\n,", "\t:")])
    return json.dumps(document, separators=separators, indent=draw.choice([None, 1])).encode()


def any_document(draw: Draw) -> Document:
    return draw.choice(list(DOCUMENTS.values()))(draw)


def with_blanks(draw: Draw) -> bytes:
    return written(any_document(draw), draw).encode()


def with_escapes(draw: Draw) -> bytes:
    return written(any_document(draw), draw, ("", "", " "), escaped=True).encode()


def with_other_blanks(draw: Draw) -> bytes:
    """Make a value that may have one character between its fields that JSON does not take there."""
    value = compact(flat(draw))
    blank = draw.choice(NO_BLANKS)
    ways = [value, value, value, blank + value, value + blank, value[:-1] + blank + b"}", b"{" + blank + value[1:]]
    return draw.choice([*ways, value.replace(b",", b"," + blank, 1), value.replace(b":", blank + b":", 1)])


MORE_TWICE = (
    b'"extra":1,"extra":2',
    b'"extra":1,"e\\u0078tra":2',
    b'"place":{"x":1,"x":2}',
    b'"place":{"of":{"x":1,"\\u0078":2}}',
    b'"lines":[{"x":1},{"x":1,"y":2,"x":3}]',
    b'"place":{"x":1},"place":{"x":2}',
    b'"new":[[[{"new":{"a":1,"a" :2}}]]]',
)


def doubled(draw: Draw) -> bytes:
    """Make a value that may have a doubled undeclared name at some depth."""
    document = declared(draw)
    if draw.random() < 0.2:
        return compact(document)[:-1] + b"," + draw.choice(MORE_TWICE) + b"}"
    return compact(document | {"extra": 1, "place": {"x": 1, "of": {"x": 1}}, "lines": [{"x": 1, "y": 2}]})


def broken(draw: Draw) -> bytes:
    """Make a value that may be cut, or may have another byte in one place."""
    value = compact(any_document(draw))
    at = draw.randrange(len(value))
    return draw.choice([value, value, value[:at], value[:at] + bytes([draw.randrange(256)]) + value[at + 1 :]])


def _writer(make: Callable[[Draw], Document]) -> Callable[[Draw], bytes]:
    return lambda draw: in_any_form(draw, make(draw))


VALUES = {
    **{name: _writer(make) for name, make in DOCUMENTS.items()},
    **{each.__name__: each for each in (with_blanks, with_escapes, with_other_blanks, doubled, broken)},
}
"""Makers of values of one kind; some kinds have bad records."""


def anything(draw: Draw) -> bytes:
    return draw.choice(list(VALUES.values()))(draw)
