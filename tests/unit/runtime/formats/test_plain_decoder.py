"""The decoder of the check and the one of the streams say the same of every record: rule, values and what was cut."""

from __future__ import annotations

import ast
import json
import math
import random
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.domain.declaration.pipeline import BYTES_COLUMNS, Column, ColumnType, Key, ValueFormat, ValueSchema
from millrace.domain.quarantine.rules import Rule
from millrace.runtime.formats import plain_decoder
from millrace.runtime.formats.decoded import Decoded, RecordDecoder
from millrace.runtime.formats.plain_decoder import plain_decoder_of
from millrace.runtime.formats.registry import decoder_of
from support.checks.tiers import examples
from support.formats.bad_values import BAD, NOTED_PURCHASE

TYPES = {
    "text": Column("text", ColumnType.STRING),
    "yes": Column("yes", ColumnType.BOOLEAN),
    "tiny": Column("tiny", ColumnType.TINYINT),
    "small": Column("small", ColumnType.SMALLINT),
    "number": Column("number", ColumnType.INT),
    "big": Column("big", ColumnType.BIGINT),
    "ratio": Column("ratio", ColumnType.FLOAT),
    "double": Column("double", ColumnType.DOUBLE),
    "amount": Column("amount", ColumnType.DECIMAL, precision=12, scale=2),
    "share": Column("share", ColumnType.DECIMAL, precision=38, scale=38),
    "day": Column("day", ColumnType.DATE),
    "at": Column("at", ColumnType.TIMESTAMP),
}
REQUIRED = tuple(Column(c.name, c.type, True, c.precision, c.scale) for c in TYPES.values())
SCHEMAS = {
    "optional": ValueSchema(ValueFormat.JSON, tuple(TYPES.values())),
    "required": ValueSchema(ValueFormat.JSON, REQUIRED),
    "deleting": ValueSchema(ValueFormat.JSON, (*REQUIRED[:1], *tuple(TYPES.values())[1:]), tombstones=True),
    "optional key": ValueSchema(ValueFormat.JSON, tuple(TYPES.values()), tombstones=True),
}
KEY = Key("text")
DECODERS = {
    **{name: (decoder_of(schema, KEY), plain_decoder_of(schema, KEY)) for name, schema in SCHEMAS.items()},
    "bytes": (
        decoder_of(ValueSchema(ValueFormat.BYTES, BYTES_COLUMNS), None),
        plain_decoder_of(ValueSchema(ValueFormat.BYTES, BYTES_COLUMNS), None),
    ),
}
GOOD = (
    b'{"text":"a","yes":true,"tiny":1,"small":-2,"number":3,"big":4,"ratio":0.5,"double":0.1,"amount":11.77,'
    b'"share":0.25,"day":"1997-01-01","at":"2026-01-31T10:00:00.123456789+02:00"}'
)
FAR_MS = 253_402_300_800_000

NUMBERS = [
    *("0", "-0", "1", "-1", "1.0", "-0.0", "1e2", "1E-2", "0.1", "127", "128", "-128", "-129", "32767", "32768"),
    *("2147483647", "2147483648", "-2147483648", "-2147483649", "9223372036854775807", "9223372036854775808"),
    *("-9223372036854775808", "-9223372036854775809", "18446744073709551616", "9007199254740993", "1.5e300", "1e400"),
    *("-1e400", "1e-400", "3.4028235e38", "3.4028235677973362e38", "3.4028235677973366e38", "3.5e38", "1e-46", "7e-46"),
    *("1.500", "1.505", "9999999999.99", "9999999999.991", "12345678901", "0.00000", "1.5" + "0" * 50, "1." + "1" * 45),
    *("4000.09999999999990905052982270717620849609375", "1" + "0" * 5000, "-" + "9" * 5000, "0." + "3" * 5000),
    *("1e99999999999999999999", "0e99999999999999999999", "1e-99999999999999999999", "123456789012345678901234567890"),
    *("01", "1.", ".5", "+1", "-", "1e", "0x1", "NaN", "Infinity", "-Infinity", "1_000", "--1", "1 2"),
]
TEXTS = [
    *(
        "",
        "a",
        "a b",
        "\u00fc",
        "\U0001f600",
        "\0",
        "a\\u0000b",
        "1",
        "1.5",
        "+1",
        ".5",
        "1.",
        ".",
        "1_0",
        " 1",
        "1e5",
        "1e",
    ),
    *(
        "\uff11",
        "NaN",
        "Infinity",
        "true",
        "null",
        "1e99999999999999999999",
        "0.333",
        "1.5.5",
        "1e5e5",
        "e",
        "-",
        "5-3",
    ),
]
TIMES = [
    *("2026-01-31", "2026-02-30", "0000-01-01", "9999-12-31", "15/06/2023", "2023-6-15", "20230615", "2026-01-31 "),
    *("\uff12026-01-31", "2026-01-\u0663\u0661", "-026-01-31", "2026-01-31Z", "2026-01-31+02", "2026-01-31T"),
    *(f"2026-01-31{separator}10:00:00" for separator in ("T", "t", " ", "_", "", "  ")),
    *(f"2026-01-31T{clock}" for clock in ("10", "10:", "10:00", "10:00:", "1:00", "24:00:00", "23:60", "23:59:60")),
    *(
        f"2026-01-31T10:00:00{fraction}"
        for fraction in (".", ".1", ".123456", ".1234567", ".1234560", ".9999999999", ",5")
    ),
    *("2026-01-31T10:00.5", "2026-01-31T10:00:00.1\u0663", "9999-12-31T23:59:59.9999999", "2026-01-31T10:00:00.12.3"),
    *(
        f"2026-01-31T10:00{seconds}{zone}"
        for seconds in ("", ":00", ":00.1234567")
        for zone in (
            *(
                "Z",
                "z",
                "+02",
                "-02",
                "+0200",
                "+02:00",
                "-00:00",
                "+2",
                "+020",
                "+02:0",
                "+02:00:00",
                "+24:00",
                "+23:59",
            ),
            *("+02:60", "+99", " +02:00", " Z", "ZZ", "+02:00Z", "UTC", "+", "\u221202:00", "+02-00", "+\u0660\u0662"),
        )
    ),
    *(
        "0001-01-01T00:00:00+14:00",
        "9999-12-31T23:59:59-14:00",
        "0001-01-01T14:00+14",
        "2026-02-30Tx",
        "2026-13-01T25:00",
    ),
]
OTHERS = [
    "true",
    "false",
    "null",
    "[]",
    "{}",
    '["a"]',
    '{"a":1}',
    "nope",
    '"\\ud83d"',
    '"\\ud83d\\ude00"',
    '"\\udc00"',
    '"\\x"',
]
SPELLED = [
    *NUMBERS,
    *OTHERS,
    *(json.dumps(text) for text in (*TEXTS, *TIMES, *NUMBERS[:40])),
    *(json.dumps(text, ensure_ascii=False) for text in (*TEXTS, *TIMES)),
    *(
        '"' + "".join(f"\\u{ord(sign):04x}" for sign in text) + '"'
        for text in ("1.5", "1_0", "2026-01-31T10:00", "NaN")
    ),
]
DOCUMENTS = [
    *(b"", b" ", b"nope", b"null", b"1", b'"x"', b"[]", b"{}", b"[1,2]", b"\xff" * 1000, b"\xef\xbb\xbf" + GOOD, b"\0"),
    *(GOOD + tail for tail in (b"x", b" ", b"\n", b"\0", b",", b"}", b"{}", b"\xff")),
    *(b'{"a":' * deep for deep in (10, 600, 100_000)),
    *(GOOD[:-1] + b',"new":' + b"[" * deep + b"]" * deep + b"}" for deep in (1, 10, 498, 499, 500, 501, 700, 3000)),
    *(GOOD[:-1] + b',"new":' + b'{"a":' * deep + b"1" + b"}" * deep + b"}" for deep in (499, 500, 3000)),
    *(GOOD[:-1] + b',"new":["' + b"[" * 600 + b'"]}' for _ in range(1)),
    *(GOOD[:-1] + more + b"}" for more in (b',"new":1,"new":2', b',"new":1,"n\\u0065w":2', b',"x":{"a":1,"a":2}')),
    *(
        GOOD[:-1] + more + b"}"
        for more in (b',"x":[{"y":{"a":1,"\\u0061":2}}]', b',"tiny":1', b',"tiny" :"x"', b',"t\\u0069ny":1')
    ),
    *(
        GOOD[:-1] + more + b"}"
        for more in (b',"x":{"a":1,"a":2},"y":nope', b',"x":{"a":1,"a":2},"y":"\\ud83d"', b',"\\ud83d":1')
    ),
    *(
        GOOD[:-1] + more + b"}"
        for more in (b',"new":"\x01"', b',"new":"\xff"', b',"\xff":1', b',"new":"\xed\xa0\x80"', b',"Text":1')
    ),
    GOOD.replace(b":", b" : ").replace(b",", b",\n\t"),
    GOOD.replace(b'"tiny":1', b'"tiny":"1"').replace(b'"number":3', b'"number":4294967296'),
    GOOD.replace(b'"number":3', b'"number":4294967296').replace(b'"yes":true', b'"yes":1'),
    GOOD.replace(b"11.77", b'"1_0"').replace(b'"number":3', b'"number":4294967296'),
    GOOD.replace(b"11.77", b"11.777").replace(b'"a"', b'"\\u0000"'),
    GOOD.replace(b"11.77", b"11.777").replace(b"2026-01-31", b"2026-02-30"),
    GOOD.replace(b"11.77", b'"x"').replace(b"2026-01-31", b"2026-02-30").replace(b"1997-01-01", b"x"),
    GOOD.replace(b"11.77", b"11.777").replace(b"2026-01-31T10:00:00.123456789+02:00", b"0001-01-01T00:00:00+14:00"),
    GOOD.replace(b"0.5", b"1e39").replace(b"11.77", b"11.777"),
]

IGNORED = [GOOD[:-1] + b',"new":%s}' % value.encode(errors="surrogatepass") for value in SPELLED]


def rows(found: Decoded) -> list[tuple[object, ...]]:
    """Values with the bits of floats: 0 and -0 differ, NaN equals itself."""
    return [
        tuple(struct.pack("<d", value) if isinstance(value, float) else value for value in row)
        for row in zip(*(column.to_pylist() for column in found.columns), strict=True)
    ]


def alike(
    decoders: tuple[RecordDecoder, RecordDecoder],
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None = None,
    times: Sequence[int | None] | None = None,
) -> Decoded:
    """Both decode the whole block alike; returns what they say."""
    keys, times = keys or [b"a"] * len(values), times or [0] * len(values)
    fast, plain = (decoder.decode(values, keys, times) for decoder in decoders)
    for place, value in enumerate(values):
        assert fast.rules[place] == plain.rules[place], (value, fast.errors[place], plain.errors[place])
    fast_rows, plain_rows = rows(fast), rows(plain)
    for place, value in enumerate(values):
        assert fast_rows[place] == plain_rows[place], value
        assert (fast.errors[place] is None) is (plain.errors[place] is None) is (fast.rules[place] is None)
    pa.array(fast.errors + plain.errors, pa.string()).validate(full=True)
    assert fast.truncated == plain.truncated
    assert [column.type for column in fast.columns] == [column.type for column in plain.columns]
    return fast


def in_every_field(texts: Iterable[str]) -> Iterator[bytes]:
    """The good record with each of these in place of each field's value."""
    fields = json.loads(GOOD, parse_float=str, parse_int=str)
    originals = {name: GOOD.split(f'"{name}":'.encode())[1] for name in fields}
    for name, rest in originals.items():
        end = len(rest) - 1 if name == "at" else rest.index(b',"')
        for text in texts:
            before, after = GOOD[: len(GOOD) - len(rest)], rest[end:]
            yield before + text.encode(errors="surrogatepass") + after


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.full) if name == "optional key" else name for name in SCHEMAS],
)
def test_of_every_value_in_every_field_both_say_the_same(name: str) -> None:
    values = list(in_every_field(SPELLED))
    found = alike(DECODERS[name], values)
    assert {None, Rule.NOT_JSON, Rule.WRONG_TYPE, Rule.OUT_OF_RANGE, Rule.NUL_CHARACTER} <= set(found.rules)
    for value in random.Random(7).sample(values, examples(100)):
        alike(DECODERS[name], [value])


@pytest.mark.parametrize("name", [*SCHEMAS, "bytes"])
def test_of_every_odd_document_both_say_the_same(name: str) -> None:
    alike(DECODERS[name], DOCUMENTS + IGNORED)
    for value in DOCUMENTS:
        alike(DECODERS[name], [value, GOOD])


@pytest.mark.parametrize("name", SCHEMAS)
def test_of_every_absent_field_both_say_the_same(name: str) -> None:
    document = json.loads(GOOD)
    for field in document:
        without = json.dumps({other: value for other, value in document.items() if other != field}).encode()
        alike(DECODERS[name], [without, GOOD, without.replace(b'"small": -2', b'"small": -2.5')])


@pytest.mark.parametrize("name", SCHEMAS)
def test_of_a_record_that_ends_at_any_byte_both_say_the_same(name: str) -> None:
    value = GOOD.replace(b'"a"', '"\u00fc\U0001f600\\ud83d\\ude00"'.encode())
    alike(
        DECODERS[name],
        [value[:end] for end in range(len(value) + 1)],
        ["\u00fc\U0001f600\U0001f600".encode()] * (len(value) + 1),
    )


def flipped(values: Iterable[bytes], bits: Sequence[int]) -> Iterator[bytes]:
    for value in values:
        for place in range(len(value)):
            for bit in bits:
                yield value[:place] + bytes([value[place] ^ (1 << bit)]) + value[place + 1 :]


def test_of_a_record_with_any_bit_flipped_both_say_the_same() -> None:
    alike(DECODERS["required"], list(flipped([GOOD], range(8))))
    alike(DECODERS["deleting"], list(flipped([GOOD], [0, 7])))


NOTED_PURCHASES = decoder_of(NOTED_PURCHASE, Key("customer_id")), plain_decoder_of(NOTED_PURCHASE, Key("customer_id"))
SHORT = [value for value, _ in BAD if value is not None and len(value) < 400]


def test_of_every_bad_purchase_whole_cut_or_with_a_bit_flipped_both_say_the_same() -> None:
    found = alike(NOTED_PURCHASES, [value for value, _ in BAD])
    assert found.rules == [rule for _, rule in BAD]
    alike(NOTED_PURCHASES, [value[:end] for value in SHORT for end in range(len(value))])
    alike(NOTED_PURCHASES, list(flipped(SHORT, [0])))


@pytest.mark.full
def test_of_every_bad_purchase_with_any_bit_flipped_both_say_the_same() -> None:
    alike(NOTED_PURCHASES, list(flipped(SHORT, range(8))))


@pytest.mark.full
@pytest.mark.parametrize("name", SCHEMAS)
def test_of_every_bad_record_with_any_bit_flipped_or_byte_replaced_both_say_the_same(name: str) -> None:
    short = [value for value in DOCUMENTS if len(value) < 400]
    alike(DECODERS[name], list(flipped(short, [0, 5, 7])))
    for byte in b'"\\{}[]:,0-+.eET _\x00\x80\xff':
        replaced = [GOOD[:place] + bytes([byte]) + GOOD[place + 1 :] for place in range(len(GOOD))]
        inserted = [GOOD[:place] + bytes([byte]) + GOOD[place:] for place in range(len(GOOD))]
        alike(DECODERS[name], replaced + inserted)


@pytest.mark.parametrize("name", [*SCHEMAS, "bytes"])
def test_of_every_key_and_timestamp_both_say_the_same(name: str) -> None:
    keys = [None, b"", b"a", b"A", b"a ", b"\xff", b"a\0", "\u00fc".encode(), b"\xed\xa0\x80"]
    times = [None, -1, 0, FAR_MS - 1, FAR_MS, 2**62]
    values = [None, b"", b"nope", GOOD, GOOD.replace(b'"a"', b"null"), GOOD.replace(b'"a"', b'"\\u00fc"')]
    records = [(value, key, time) for value in values for key in keys for time in times]
    alike(DECODERS[name], *(list(part) for part in zip(*records, strict=True)))  # type: ignore[arg-type]
    for record in random.Random(7).sample(records, examples(len(records))):
        alike(DECODERS[name], *([part] for part in record))  # type: ignore[arg-type, misc]


def test_records_of_a_topic_without_a_key_need_none() -> None:
    for schema in (SCHEMAS["required"], ValueSchema(ValueFormat.BYTES, BYTES_COLUMNS)):
        decoders = decoder_of(schema, None), plain_decoder_of(schema, None)
        assert alike(decoders, [GOOD], [None]).rules == [None]


MEMBERS = st.lists(
    st.tuples(
        st.sampled_from([*TYPES, "new", "t\\u0065xt"]), st.sampled_from(SPELLED), st.sampled_from(["", " ", "\n"])
    ),
    max_size=6,
)


@st.composite
def documents(draw: st.DrawFn) -> bytes:
    """A good record with some fields in place of others, in any order."""
    members = draw(MEMBERS)
    kept = [
        (name, json.dumps(value), "") for name, value in json.loads(GOOD).items() if name not in {m[0] for m in members}
    ]
    shuffled = draw(st.permutations(members + kept)) if draw(st.booleans()) else members + kept
    return ("{" + ",".join(f'"{name}"{space}:{space}{value}' for name, value, space in shuffled) + "}").encode(
        errors="surrogatepass"
    )


def both_say_the_same(values: Sequence[bytes]) -> None:
    for name in SCHEMAS:
        alike(DECODERS[name], values)


@given(st.lists(documents(), max_size=5))
def test_of_records_with_several_faults_both_say_the_same(values: Sequence[bytes]) -> None:
    both_say_the_same(values)


@pytest.mark.full
@settings(max_examples=examples(500), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(documents() | st.binary(max_size=30), max_size=8))
def test_of_many_records_with_several_faults_both_say_the_same(values: Sequence[bytes]) -> None:
    both_say_the_same(values)


@given(
    st.lists(
        st.floats(allow_nan=False, allow_infinity=False) | st.floats(width=32, allow_nan=False, allow_infinity=False)
    )
)
def test_floats_have_the_same_bits(numbers: Sequence[float]) -> None:
    found = alike(
        DECODERS["optional"],
        [b'{"text":"a","double":%r,"ratio":%r}'.replace(b"%r", repr(number).encode()) for number in numbers],
    )
    assert all(math.isfinite(value) for value in found.columns[7].to_pylist() if value is not None)


def test_the_plain_decoder_imports_nothing_of_the_fast_one() -> None:
    source = Path(plain_decoder.__file__).read_text(encoding="utf-8")
    modules = {
        alias
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom | ast.Import)
        for alias in ([node.module] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names])
    }
    assert "msgspec" not in modules
    assert {module for module in modules if module and module.startswith("millrace.runtime")} == {
        "millrace.runtime.formats.decoded",
    }
