"""Program: decode blocks of records of many kinds; print the CPU microseconds a record of each kind, one kind a line.

It measures the package on the path, so two checkouts can be given the same blocks. The argument is a seed.
"""

from __future__ import annotations

import json
import random
import resource
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from millrace.domain.declaration.pipeline import Column, ColumnType, ValueFormat, ValueSchema
from millrace.runtime.formats.json.decoder import Decoder
from support.formats.record_kinds import COLUMNS

MOST_RECORDS = 20_000
MOST_BYTES = 8 * 1024 * 1024
Document = dict[str, Any]
Draw = random.Random

INTEGERS = tuple(Column(f"number_{index}", ColumnType.BIGINT) for index in range(8))
MIXED = tuple(column for column in COLUMNS if column.name != "share")
MORE = tuple(Column(f"more_{index}", ColumnType.STRING) for index in range(192))
"""With the mixed columns 22, 30 or 200, where all fields are declared."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Records of one kind.

    Attributes:
        columns: the declared columns.
        value: makes the value of one record.
        beside: the kind that it is compared with.
    """

    columns: tuple[Column, ...]
    value: Callable[[Draw], bytes]
    beside: str


def integers(draw: Draw) -> Document:
    return {column.name: draw.randrange(1_000_000) for column in INTEGERS}


def mixed(draw: Draw) -> Document:
    second = f"{draw.randrange(10, 60)}.{draw.randrange(10**5, 10**6)}"
    return {
        "id": f"{draw.getrandbits(64):016x}",
        "customer": f"customer {draw.randrange(100_000)}",
        "count": draw.randrange(100),
        "amount": round(draw.random() * 1000, 2),
        "ratio": draw.random(),
        "paid": draw.random() < 0.5,
        "day": f"2026-10-{draw.randrange(10, 29)}",
        "at": f"2026-10-{draw.randrange(10, 29)}T{draw.randrange(10, 24)}:{draw.randrange(10, 60)}:{second}Z",
    }


def more(draw: Draw, number: int, least: int = 10, most: int = 50) -> Document:
    return {f"more_{index}": "x" * draw.randrange(least, most) for index in range(number)}


def ordinary(draw: Draw) -> Document:
    """Make a record of 30 fields and 1.2 KB: eight fields are declared."""
    found = mixed(draw)
    if draw.random() < 0.3:
        found["customer"] = None
    if draw.random() < 0.1:
        del found["ratio"]
    return found | undeclared(draw, 18)


def undeclared(draw: Draw, scalars: int) -> Document:
    """Make four fields that hold objects, arrays and a text, and so many others."""
    kinds = [None, True, draw.randrange(10**6), draw.random(), "x" * draw.randrange(10, 50)]
    return {
        **{f"more_{index}": kinds[index % len(kinds)] for index in range(scalars)},
        "address": {"street": "Oude Delft 1", "city": "Delft", "position": {"lat": 52.01, "lon": 4.36}},
        "tags": ["new", "paid"],
        "lines": [{"sku": draw.randrange(10**6), "quantity": 1} for _ in range(draw.randrange(1, 3))],
        "comment": "some words " * 30,
    }


def nested(draw: Draw) -> Document:
    place = {"lat": draw.random(), "lon": draw.random(), "of": {"city": "Delft", "country": {"code": "NL"}}}
    return mixed(draw) | {"place": place, "lines": [{"sku": index, "tags": ["a", "b"]} for index in range(3)]}


def with_map(draw: Draw) -> Document:
    return mixed(draw) | {"prices": {f"item-{draw.getrandbits(40)}": draw.randrange(100) for _ in range(5)}}


def of_ten_kinds(draw: Draw, doubled: float) -> bytes:
    """Make a record with an object of 90 names, one of ten such objects; a name of it is doubled this often."""
    kind = draw.randrange(10)
    value = compact(mixed(draw) | {f"kind_{kind}": dict.fromkeys((f"name_{kind}_{index}" for index in range(90)), 1)})
    return value[:-1] + b',"id":"x"}' if draw.random() < doubled else value


def one_more(draw: Draw, document: Document) -> Document:
    return document | {"undeclared": draw.randrange(1_000_000)}


def a_null(_: Draw, document: Document) -> Document:
    return document | {list(document)[4]: None}


def one_less(_: Draw, document: Document) -> Document:
    del document[list(document)[4]]
    return document


def any_order(draw: Draw, document: Document) -> Document:
    return dict(draw.sample(list(document.items()), len(document)))


def compact(document: Document) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def usual(document: Document) -> bytes:
    return json.dumps(document).encode()


def blanks(document: Document) -> bytes:
    return json.dumps(document, separators=(" , ", " : ")).encode()


def lines(document: Document) -> bytes:
    return json.dumps(document, indent=2).encode()


def with_text(draw: Draw, length: int) -> bytes:
    return compact(mixed(draw) | {"customer": "x" * length})


def bad(draw: Draw, share: float) -> bytes:
    """Make the value of a record that is bad this often, by one of four faults."""
    value = compact(mixed(draw))
    if draw.random() >= share:
        return value
    return draw.choice(
        [
            value[:-1] + b',"id":"x"}',
            value[:-1],
            value.replace(b'"at":"2026-10', b'"at":"2026-13'),
            value[:-1] + b',"\xff":1}',
        ]
    )


def first_bad(draw: Draw, seen: list[bytes]) -> bytes:
    """Make the value of a record; the first is bad."""
    seen.append(compact(mixed(draw)))
    return seen[0][:-1] + b',"id":"x"}' if len(seen) == 1 else seen[-1]


def kinds() -> Mapping[str, Kind]:
    found: dict[str, Kind] = {}
    changes = {"one undeclared": one_more, "one null": a_null, "one absent": one_less, "any order": any_order}
    for name, columns, document in (("integers", INTEGERS, integers), ("mixed", MIXED, mixed)):
        exact = f"{name}, exact"
        found[exact] = Kind(columns, lambda draw, make=document: compact(make(draw)), exact)
        for change, apply in changes.items():
            value = lambda draw, make=document, apply=apply: compact(apply(draw, make(draw)))  # noqa: E731
            found[f"{name}, {change}"] = Kind(columns, value, exact)
        for style in (usual, blanks, lines):
            value = lambda draw, make=document, style=style: style(make(draw))  # noqa: E731
            found[f"{name}, {style.__name__}"] = Kind(columns, value, exact)
    return found | {
        "400 bytes, exact": Kind(MIXED, partial(with_text, length=240), "400 bytes, exact"),
        "22 fields, all declared": Kind(
            (*MIXED, *MORE[:14]), lambda draw: compact(mixed(draw) | more(draw, 14, 1, 8)), "22 fields, all declared"
        ),
        "nested": Kind(MIXED, lambda draw: usual(nested(draw)), "400 bytes, exact"),
        "a map of ids": Kind(MIXED, lambda draw: usual(with_map(draw)), "400 bytes, exact"),
        "1.2 KB, exact": Kind(MIXED, partial(with_text, length=950), "1.2 KB, exact"),
        "30 fields, all declared": Kind(
            (*MIXED, *MORE[:22]), lambda draw: compact(mixed(draw) | more(draw, 22)), "30 fields, all declared"
        ),
        "30 fields, 8 declared": Kind(
            MIXED, lambda draw: compact(mixed(draw) | more(draw, 22)), "30 fields, all declared"
        ),
        "ordinary: 30 fields, 8 declared": Kind(MIXED, lambda draw: usual(ordinary(draw)), "1.2 KB, exact"),
        "200 fields, all declared": Kind(
            (*MIXED, *MORE), lambda draw: compact(mixed(draw) | more(draw, 192)), "200 fields, all declared"
        ),
        "200 fields, 8 declared": Kind(
            MIXED, lambda draw: compact(mixed(draw) | more(draw, 192)), "200 fields, all declared"
        ),
        "ten kinds of 90 names": Kind(MIXED, partial(of_ten_kinds, doubled=0.0), "ten kinds of 90 names"),
        "ten kinds, 0.2 % doubled": Kind(MIXED, partial(of_ten_kinds, doubled=0.002), "ten kinds of 90 names"),
        "one bad": Kind(MIXED, partial(first_bad, seen=[]), "mixed, exact"),
        "1 % bad": Kind(MIXED, partial(bad, share=0.01), "mixed, exact"),
        "10 % bad": Kind(MIXED, partial(bad, share=0.1), "mixed, exact"),
        "all bad": Kind(MIXED, partial(bad, share=1.0), "mixed, exact"),
    }


def block(kind: Kind, seed: int) -> list[bytes]:
    """Make the values of one block."""
    draw, values, size = Draw(seed), [], 0
    while len(values) < MOST_RECORDS and size < MOST_BYTES:
        values.append(kind.value(draw))
        size += len(values[-1])
    return values


def cpu_of(kind: Kind, values: list[bytes]) -> float:
    """Return the CPU microseconds a record of one block.

    The decoder is new to the records. The process is not: it has decoded the block before, as a worker of Spark has.
    """
    keys, timestamps = [None] * len(values), [0] * len(values)
    for _ in range(2):
        decoder = Decoder(ValueSchema(ValueFormat.JSON, kind.columns), key_required=False)
        began = time.process_time()
        decoder.decode(values, keys, timestamps)
        took = time.process_time() - began
    return took / len(values) * 1e6


def main(seed: int) -> None:
    for name, kind in kinds().items():
        values = block(kind, seed)
        print(name, cpu_of(kind, values), sum(map(len, values)) / len(values), sep="\t")
    print("peak MiB", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 0, sep="\t")


if __name__ == "__main__":
    main(int(sys.argv[1]))
