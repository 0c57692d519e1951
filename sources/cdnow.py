"""CDNOW: 69,659 real purchases of 23,570 customers of an online shop, 1997-98, and some bad records among them.

The purchases come from the file CDNOW_master.txt in the Python package Lifetimes 0.11.3 (MIT), which pip
fetches by name; the package itself is never installed. Millrace calls `records()` and writes what it yields
to the topic that `include/pipelines/shop.yaml` names.

The bad records are the example's, not the shop's: each shows one thing that goes wrong in real topics, and the
header `millrace-example` says which.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from pathlib import Path
from random import Random
from time import monotonic, sleep

from millrace.domain.topics.sources import SourceRecord
from millrace.errors import DataLossError, UnreachableError

PACKAGE = "Lifetimes"
VERSION = "0.11.3"
WHEEL = f"{PACKAGE}-{VERSION}-py3-none-any.whl"
WHEEL_SHA256 = "261e3dc89977c2b60767ca6728aaa29d429de0c814635070a749c36555895da8"
MEMBER = "lifetimes/datasets/CDNOW_master.txt"
PURCHASES = 69_659
BAD_RECORD_HEADER = "millrace-example"
BAD_RECORD_EVERY = 3_000
GARBAGE_BYTES = 900_000

_HEADING = " customer_id  date number_of_cds  dollar_value"
_LINE = re.compile(r" (\d{5}) (\d{4})(\d\d)(\d\d) +(\d{1,2}) +(\d{1,5}\.\d\d)")
_TRIES = 3
_TRY_SECONDS = 300
_PAUSE_SECONDS = 3  # before the second try; twice as much before the third
_OTHERS_SECONDS = _TRIES * _TRY_SECONDS + 60
_LASTING = ("No space left on device", "CERTIFICATE_VERIFY_FAILED")  # what no further try mends


@dataclass(frozen=True, slots=True)
class Purchase:
    """One line of the file. `amount` is in US dollars with two decimals, as the file spells it."""

    customer_id: str
    purchased_on: date
    quantity: int
    amount: str

    def fields(self) -> dict[str, str]:
        """The JSON text of each field of the record value."""
        return {
            "customer_id": json.dumps(self.customer_id),
            "purchased_on": json.dumps(self.purchased_on.isoformat()),
            "quantity": str(self.quantity),
            "amount": self.amount,
        }


def records() -> Iterator[SourceRecord]:
    """All purchases by date, then by their place in the file, with a bad record after every 3,000th.

    Raises:
        UnreachableError: the file is not in the cache and cannot be fetched.
        DataLossError: the file is not the one this was written for.
    """
    purchases = sorted(read_purchases(fetch_wheel()), key=lambda purchase: purchase.purchased_on)
    pending = iter(bad_values())
    for number, purchase in enumerate(purchases, 1):
        yield _record(purchase, _json(purchase.fields()))
        if number % BAD_RECORD_EVERY == 0 and (bad := next(pending, None)) is not None:
            yield _bad_record(purchase, *bad)


def _record(purchase: Purchase, value: bytes | None) -> SourceRecord:
    midnight = datetime.combine(purchase.purchased_on, time(), UTC)
    return SourceRecord(purchase.customer_id.encode(), value, midnight)


def _bad_record(purchase: Purchase, what: str, value: bytes | None) -> SourceRecord:
    """A bad record beside a good purchase: its key and timestamp, unless they are what is bad."""
    good = _record(purchase, value)
    headers = ((BAD_RECORD_HEADER, what.encode()),)
    if what == "null key":
        return SourceRecord(None, _json(purchase.fields()), good.timestamp, headers)
    if what == "timestamp -1":
        return SourceRecord(good.key, _json(purchase.fields()), None, headers)
    return SourceRecord(good.key, value, good.timestamp, headers)


def bad_values() -> list[tuple[str, bytes | None]]:
    """What is wrong, and the value that shows it, in the order in which they ride along."""
    good = Purchase("00001", date(1997, 1, 1), 1, "11.77").fields()
    whole = _json(good)

    def but(**changed: str) -> bytes:
        return _json(good | changed)

    return [
        ("not JSON", b"this is not JSON"),
        ("truncated JSON", whole[:-9]),
        ("missing field", _json({name: text for name, text in good.items() if name != "amount"})),
        ("missing all fields", b"{}"),
        ("wrong type: text for a number", but(quantity='"two"')),
        ("wrong type: true for a number", but(amount="true")),
        ("wrong type: object for a text", but(customer_id='{"id":"00001"}')),
        ("wrong type: fraction for a whole number", but(quantity="1.5")),
        ("empty value", b""),
        ("null value", None),
        ("null key", None),
        ("timestamp -1", None),
        ("trailing garbage", whole + b" and more"),
        ("duplicate field", whole[:-1] + b',"quantity":2}'),
        ("number too precise", but(amount="1.559")),
        ("number too big", but(amount="12345678901.00")),
        ("zero character in a text", but(customer_id='"0000\\u00001"')),
        ("900 KB of garbage", Random(1997).randbytes(GARBAGE_BYTES)),
        ("invalid UTF-8", whole.replace(b"00001", b"0\xff\xfe01")),
        ("JSON array instead of an object", b"[" + whole + b"]"),
        ("null in a required field", but(purchased_on="null")),
        ("impossible date", but(purchased_on='"1997-02-30"')),
    ]


def _json(fields: dict[str, str]) -> bytes:
    return ("{" + ",".join(f'"{name}":{text}' for name, text in fields.items()) + "}").encode()


def read_purchases(wheel: Path) -> list[Purchase]:
    """The purchases in the order of the file.

    Raises:
        DataLossError: a line is not of the file's form, or their number is not 69,659.
    """
    with zipfile.ZipFile(wheel) as archive:
        text = io.TextIOWrapper(archive.open(MEMBER), encoding="ascii", newline="\r\n")
        return parse(text.read())


def parse(text: str, *, expected: int = PURCHASES) -> list[Purchase]:
    """The purchases in the file's text: lines end with CR LF, the first names the columns."""
    heading, *lines = text.removesuffix("\r\n").split("\r\n")
    if heading != _HEADING:
        raise _not_the_file("line 1: not the expected heading")
    purchases = []
    for number, line in enumerate(lines, 2):
        match = _LINE.fullmatch(line)
        if match is None:
            raise _not_the_file(f"line {number}: not `customer date quantity amount`")
        customer, year, month, day, quantity, amount = match.groups()
        try:
            purchased_on = date(int(year), int(month), int(day))
        except ValueError:
            raise _not_the_file(f"line {number}: no such date") from None
        purchases.append(Purchase(customer, purchased_on, int(quantity), amount))
    if len(purchases) != expected:
        raise _not_the_file(f"{len(purchases)} purchases instead of {expected}")
    return purchases


def _not_the_file(what: str) -> DataLossError:
    return DataLossError(
        what,
        where=f"{MEMBER} in {WHEEL}",
        next_step=f"delete {cache_folder() / WHEEL} and run this again",
    )


def cache_folder() -> Path:
    """Where the wheel is kept for all checkouts: `$XDG_CACHE_HOME/millrace/sources`, else under `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "millrace" / "sources"


def fetch_wheel() -> Path:
    """The wheel in the user's cache, fetched by pip where it is not there yet.

    Guarantees:
        The file has the pinned SHA-256. It appears in the cache whole or not at all. Of several that ask at once, one
        fetches it and the others take what it has fetched.

    Raises:
        UnreachableError: pip did not bring it in three tries, or another one has been fetching it for too long.
        DataLossError: what pip brought has another SHA-256; it is not kept.
    """
    wheel = cache_folder() / WHEEL
    if not _is_whole(wheel):
        wheel.parent.mkdir(parents=True, exist_ok=True)
        with _one_at_a_time(wheel.parent.with_suffix(".lock")):
            if not _is_whole(wheel):
                _fetch_into(wheel)
    return wheel


def _is_whole(wheel: Path) -> bool:
    return wheel.is_file() and _sha256(wheel) == WHEEL_SHA256


@contextmanager
def _one_at_a_time(lock: Path) -> Iterator[None]:
    """Hold the lock, which a process that ends in whatever way lets go; wait for it where another one holds it."""
    until = monotonic() + _OTHERS_SECONDS
    told = False
    with lock.open("a") as stream:
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if monotonic() > until:
                    raise _cannot_fetch(f"another load has been fetching it for {_OTHERS_SECONDS} s") from None
            if not told:
                _tell("waiting for another load that fetches the same file")
                told = True
            sleep(0.2)
        yield


def _fetch_into(wheel: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=wheel.parent) as folder:
        fetched = Path(folder) / WHEEL
        _pip_download(Path(folder))
        if not fetched.is_file():
            raise _cannot_fetch(f"pip did not leave {WHEEL}")
        if (found := _sha256(fetched)) != WHEEL_SHA256:
            raise DataLossError(
                f"the checksum is {found}, it should be {WHEEL_SHA256}",
                where=WHEEL,
                next_step="see which index pip uses (`pip config list`): it does not serve the published file",
            )
        fetched.replace(wheel)


def _pip_download(folder: Path) -> None:
    """Let pip fetch the wheel by its package's name: three tries, one where a further one cannot help."""
    if importlib.util.find_spec("pip") is None:
        raise _cannot_fetch(f"{sys.executable} has no pip")
    for number in range(1, _TRIES + 1):
        failure = _try_pip(folder)
        if not failure:
            return
        last = failure.splitlines()[-1]
        if number == _TRIES or any(sign in failure for sign in _LASTING):
            raise _cannot_fetch(last)
        _tell(f"{last}; try {number + 1} of {_TRIES} in {_PAUSE_SECONDS * number} s")
        sleep(_PAUSE_SECONDS * number)


def _try_pip(folder: Path) -> str:
    """Run pip once; returns why it failed, or nothing. It sees no variable of Airflow: those hold secrets."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps", "--only-binary=:all:"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    try:
        done = subprocess.run(
            [*command, "--dest", str(folder), f"{PACKAGE}=={VERSION}"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=_TRY_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"pip did not finish within {_TRY_SECONDS} s"
    if done.returncode == 0:
        return ""
    *earlier, last = done.stderr.strip().splitlines() or ["it said nothing"]
    return "\n".join([*earlier, f"pip failed: {last}"])


def _tell(text: str) -> None:
    print(f"cdnow: {text}", file=sys.stderr, flush=True)


def _cannot_fetch(what: str) -> UnreachableError:
    return UnreachableError(
        what,
        where=f"{PACKAGE} {VERSION}",
        next_step=f"see that pip reaches its index, or put {WHEEL} into {cache_folder()} by hand",
    )


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
