"""The reference names what there is, commands, columns, rules, settings, and every link leads somewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.main import get_command

from millrace.adapters.kafka.settings.spark import _SAME, _TRANSLATED
from millrace.adapters.postgres import schema as postgres_schema
from millrace.adapters.sinks.postgres.tables import SOURCE_COLUMNS
from millrace.cli.main import NOUNS, build
from millrace.domain.quarantine.rules import Rule
from millrace.embedded.compose.site import site
from millrace.embedded.credentials import Credentials
from millrace.embedded.environment import connections
from millrace.settings import CONNECTION_PREFIX, EXTRA_READ

REPOSITORY = Path(__file__).resolve().parents[3]
DOCS = sorted((REPOSITORY / "docs").rglob("*.md"))
PAGES = [*DOCS, *(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md"))]


def reference(name: str) -> str:
    return (REPOSITORY / "docs" / "reference" / f"{name}.md").read_text(encoding="utf-8")


def commands() -> Iterator[tuple[str, set[str]]]:
    """Every command as it is typed, with the options that change what it does."""
    for noun in ("", *NOUNS):
        root: typer.core.TyperGroup = get_command(build([noun] if noun else []))  # type: ignore[assignment]
        group = root if not noun else root.commands.get(noun)
        if group is None:
            continue  # a noun that is not there yet
        for name, command in (getattr(group, "commands", None) or {"": group}).items():
            if noun or name not in NOUNS:
                options = {option for each in command.params for option in each.opts if option.startswith("--")}
                yield f"{noun} {name}".strip(), options


@pytest.mark.parametrize(("command", "options"), [pytest.param(name, options, id=name) for name, options in commands()])
def test_the_reference_has_every_command(command: str, options: set[str]) -> None:
    lines = [line for line in reference("cli").splitlines() if re.match(rf"\| `{command}\b", line)]
    assert lines, command
    everywhere = {"--json", "--help", "--environment", "--follow"}  # said once, or by their short names
    missing = {option for option in options - everywhere if option not in lines[0]}
    missing -= {option for option in missing if option.replace("--", "--no-") in lines[0]}
    assert not missing, (command, missing)


def test_the_reference_has_no_command_that_is_not_there() -> None:
    there = {name for name, _ in commands()}
    told = re.findall(r"^\| `([a-z]+(?: [a-z]+)?)", reference("cli"), flags=re.MULTILINE)
    assert set(told) <= there


def test_the_reference_has_every_table_column_and_rule_of_the_sink() -> None:
    text = reference("sink")
    made = postgres_schema._OWN_TABLES
    named = {*re.findall(r"TABLE IF NOT EXISTS millrace\.(\w+)", made)}
    columns = re.findall(r'^    "?([a-z_]+)"? (?:text|int|bigint|bytea|jsonb|timestamptz)', made, re.MULTILINE)
    named |= set(columns)
    named |= {name for name, _ in SOURCE_COLUMNS} | {"_timeline"} | {rule.value for rule in Rule}
    assert len(named) > 40
    assert [name for name in sorted(named) if f"`{name}`" not in text] == []


def test_the_reference_has_every_connection_and_every_setting_that_is_read() -> None:
    text = reference("connections")
    made = {name.removeprefix(CONNECTION_PREFIX).lower() for name in connections(site(Credentials.make()))}
    assert len(made) == 7
    assert [
        name for name in sorted(made | _SAME | _TRANSLATED | {*EXTRA_READ["postgres"]}) if f"`{name}`" not in text
    ] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_every_link_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_index_has_every_page() -> None:
    index = (REPOSITORY / "docs" / "index.md").read_text(encoding="utf-8")
    pages = [page.relative_to(REPOSITORY / "docs").as_posix() for page in DOCS if page.parent.name != "adr"]
    assert [page for page in pages if page != "index.md" and f"({page})" not in index] == []
