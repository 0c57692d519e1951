"""Whatever is done to a valid file: findings with file, line and field, and never another exception."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from random import Random

from millrace import declarations
from support.checks.tiers import examples
from support.declarations import PRODUCTION, RETURNS, SHOP, replace_once, valid_project

SEED = int(os.environ.get("MILLRACE_TEST_SEED", "20261121"))
MUTATIONS = int(os.environ.get("MILLRACE_TEST_MUTATIONS", examples(1000)))

WORDS = ("yes", "1e3", "~", "'", '"', "null", "[]", "{}", "- a", "*a", "&a x", "!!int 3", "<<: {a: 1}", "? a", "|", ">")
WORDS += ("0o17", ".nan", "1997-01-01", "7d", "-1", "99999999999999999999", "%YAML 1.1", "---", "...", "#", "\t", "@")
WORDS += (
    "\x00",
    "\x85",
    "\u2028",
    "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"),
    "\ufeff",
    "💧",
    '"\\ud800"',
)

Mutation = Callable[[Random, bytes], bytes]


def _lines(change: Callable[[Random, list[bytes]], None]) -> Mutation:
    def mutate(random: Random, data: bytes) -> bytes:
        lines = data.split(b"\n")
        change(random, lines)
        return b"\n".join(lines)

    return mutate


def _any(random: Random, lines: list[bytes]) -> int:
    return random.randrange(len(lines))


def _delete(random: Random, lines: list[bytes]) -> None:
    del lines[_any(random, lines)]


def _duplicate(random: Random, lines: list[bytes]) -> None:
    lines.insert(_any(random, lines), lines[_any(random, lines)])


def _swap(random: Random, lines: list[bytes]) -> None:
    first, second = _any(random, lines), _any(random, lines)
    lines[first], lines[second] = lines[second], lines[first]


def _indent(random: Random, lines: list[bytes]) -> None:
    index = _any(random, lines)
    lines[index] = random.choice([b" ", b"  ", b"\t", b""]) + random.choice([lines[index], lines[index].lstrip()])


def _retype(random: Random, lines: list[bytes]) -> None:
    index = _any(random, lines)
    key, colon, _ = lines[index].partition(b":")
    if colon:
        lines[index] = key + b": " + random.choice(WORDS).encode("utf-8", "replace")


def _rename(random: Random, lines: list[bytes]) -> None:
    index = _any(random, lines)
    key, colon, value = lines[index].partition(b":")
    if colon:
        indent = key[: len(key) - len(key.lstrip())]
        lines[index] = (
            indent + random.choice([*WORDS, "topics", "owner", "schema"]).encode("utf-8", "replace") + b":" + value
        )


def _insert_word(random: Random, data: bytes) -> bytes:
    at = random.randrange(len(data) + 1)
    return data[:at] + random.choice(WORDS).encode("utf-8", "replace") + data[at:]


def _garbage(random: Random, data: bytes) -> bytes:
    at = random.randrange(len(data) + 1)
    return data[:at] + random.randbytes(random.randint(1, 6)) + data[at + random.randint(0, 6) :]


def _printable(random: Random, data: bytes) -> bytes:
    at = random.randrange(len(data))
    return data[:at] + bytes([random.randint(32, 126)]) + data[at + 1 :]


def _truncate(random: Random, data: bytes) -> bytes:
    return data[: random.randrange(len(data))]


def _move(random: Random, data: bytes) -> bytes:
    first, last = sorted(random.sample(range(len(data)), 2))
    at = random.randrange(len(data))
    return data[:at] + data[first:last] + data[at:]


MUTATORS: tuple[Mutation, ...] = (
    *(_lines(change) for change in (_delete, _duplicate, _swap, _indent, _retype, _rename)),
    _insert_word,
    _garbage,
    _printable,
    _truncate,
    _move,
)


def test_any_mutation_of_a_valid_file_gives_findings_or_a_valid_file(tmp_path: Path) -> None:
    root = valid_project(tmp_path)
    table = "{postgres: {connection: millrace_sink, table: shop.customers}}"
    replace_once(root / SHOP, table, "\n      kafka:\n        topics: [shop.purchases, shop.customers]")
    valid = {file: (root / file).read_bytes() for file in (SHOP, RETURNS, PRODUCTION)}
    (root / RETURNS).unlink()
    random = Random(SEED)
    refused = 0
    for number in range(MUTATIONS):
        file = random.choice((SHOP, SHOP, RETURNS, PRODUCTION))
        data = valid[file]
        for _ in range(random.randint(1, 3)):
            data = random.choice(MUTATORS)(random, data or b"\n")
        if file == RETURNS:
            (root / RETURNS).write_bytes(data)
        else:
            (root / file).write_bytes(data)
        names = ("shop", "returns") if number % 5 == 0 else ()
        environment = "production" if file == PRODUCTION else "embedded"
        refused += _check(root, environment, names, f"mutation {number} of {file}: {data!r}")
        if file == RETURNS:
            (root / RETURNS).unlink()
        else:
            (root / file).write_bytes(valid[file])

    assert refused > MUTATIONS // 2


def _check(root: Path, environment: str, names: tuple[str, ...], mutation: str) -> bool:
    """Whether there were findings; each must say where, in printable text."""
    try:
        found = declarations.check(root, environment)
        for name in names:
            if (root / f"include/pipelines/{name}.yaml").exists():
                declarations.load_pipeline(root, name, environment)
    except declarations.InvalidDeclarationError as error:
        found = (*found, *error.findings)
    except Exception as error:
        raise AssertionError(mutation) from error
    for each in found:
        complete = (root / each.file).exists() and each.line >= 1 and each.field and each.what and each.next_step
        assert complete, f"{each!r} of {mutation}"
        lines = (root / each.file).read_bytes().count(b"\n") + 3
        assert each.line <= lines, f"{each!r} of {mutation}"
        assert str(each).replace("\n  next: ", "").isprintable(), f"{each!r} of {mutation}"
    return bool(found)
