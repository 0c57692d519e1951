"""Rules against the columns that sinks have: which are asked, and what is said of those that do not answer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

from millrace import declarations
from millrace.cli.declaration import commands as spec_commands
from millrace.errors import UnreachableError
from millrace.settings import Settings
from millrace.usecases.quality.columns import column_findings
from support.commands import use_platform
from support.declarations import RETURNS, SHOP, replace_once, valid_project
from support.fakes.platform import GroupedPlatform

BOUGHT = "include/quality/bought.yaml"
COLUMNS = {"customer_id": "text", "amount": "numeric(12,2)", "made": "integer"}


class Sinks(GroupedPlatform):
    """A platform of nothing but sinks, by table; `away` are the Connections that do not answer."""

    def __init__(self, tables: Mapping[str, Mapping[str, str]], away: frozenset[str] = frozenset()) -> None:
        self.tables = tables
        self.away = away
        self.asked: list[str] = []

    def sinks_hasty_tables(self, connection: str) -> Sinks:
        self.asked.append(connection)
        if connection in self.away:
            raise UnreachableError("the sink database does not answer")
        return self

    def columns(self, table: str) -> Mapping[str, str]:
        return self.tables.get(table, {})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = valid_project(tmp_path)
    line = "    group: shop-team.purchases\n"
    replace_once(root / SHOP, line, line + "    quality: {rules: bought}\n")
    _rules(root, "made: {range: {column: made, min: 0}}", "known: {not_null: custmer_id}")
    return root


def _rules(root: Path, *rules: str) -> None:
    (root / "include/quality").mkdir(exist_ok=True)
    (root / BOUGHT).write_text("rules:\n" + "".join(f"  {rule}\n" for rule in rules), encoding="utf-8")


def _check(root: Path, sinks: Sinks, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    monkeypatch.setattr(spec_commands, "project_root", lambda: root)
    settings = Settings(root, lambda name: '{"conn_type": "kafka", "extra": {"bootstrap.servers": "a:1"}}')
    use_platform(monkeypatch, sinks, spec_commands, settings=settings)
    done = CliRunner().invoke(spec_commands.app, ["check"])
    return done.exit_code, done.stdout


def test_what_the_table_says_stands_instead_of_what_is_supposed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    supposed = [each.what for each in declarations.check(root, "embedded")]
    code, text = _check(root, Sinks({"shop.purchases": COLUMNS}), monkeypatch)

    assert len(supposed) == 2
    assert code == 1
    assert text == (
        f"{BOUGHT}:3: rules.known: column `custmer_id` does not exist; did you mean `customer_id`?\n"
        "  next: repair the rule, or the table that shop.purchases writes: shop.purchases\n"
        "2 pipelines: 1 errors, no warnings\n"
    )


def test_a_sink_that_is_away_is_told_and_is_no_error(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, text = _check(root, Sinks({}, frozenset({"millrace_sink"})), monkeypatch)

    assert code == 0
    assert "table shop.purchases was not compared: the sink database does not answer\n" in text
    assert text.endswith("2 pipelines: no errors, 2 warnings\n")


def test_a_table_that_is_not_there_yet_leaves_the_warnings(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, text = _check(root, Sinks({}), monkeypatch)

    assert code == 0
    assert text.endswith("2 pipelines: no errors, 2 warnings\n")


def test_a_table_that_a_rule_looks_into_is_asked_too(root: Path) -> None:
    _rules(root, "known: {exists: {column: customer_id, table: shop.customers, in: id}}")
    pipelines = declarations.load(root, "embedded").pipelines

    without = column_findings(Sinks({"shop.purchases": COLUMNS}), pipelines)  # type: ignore[arg-type]
    sinks = Sinks({"shop.purchases": COLUMNS, "shop.customers": {"id": "text"}})

    assert [each.what.partition(",")[0] for each in without.findings] == ["table `shop.customers` does not exist"]
    assert column_findings(sinks, pipelines).findings == ()  # type: ignore[arg-type]


def test_one_sink_is_asked_once_and_another_is_not_hidden_by_it(root: Path) -> None:
    replace_once(root / RETURNS, "connection: millrace_sink", "connection: other_sink")
    with (root / RETURNS).open("a", encoding="utf-8") as file:
        file.write("    quality: {rules: bought}\n")
    sinks = Sinks({"returns.items": COLUMNS}, frozenset({"millrace_sink"}))

    found = column_findings(sinks, declarations.load(root, "embedded").pipelines)  # type: ignore[arg-type]

    assert sinks.asked == ["millrace_sink", "other_sink"]
    assert found.asked == {"returns.items"}
    assert len(found.findings) == len(found.silent) == 1


def test_no_server_is_asked_where_no_stream_has_rules(tmp_path: Path) -> None:
    sinks = Sinks({})

    column_findings(sinks, declarations.load(valid_project(tmp_path), "embedded").pipelines)  # type: ignore[arg-type]

    assert sinks.asked == []
