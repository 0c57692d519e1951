"""A stream that writes to S3: what needs a table is refused by its name, and its page shows its dataset."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from millrace.cli.quality import commands as quality_cli
from millrace.cli.quality import recompute as recompute_cli
from millrace.cli.quality import reconcile as books_cli
from millrace.cli.quarantine import commands as quarantine_cli
from millrace.cli.streams import commands as streams_cli
from millrace.errors import RefusedError
from millrace.web.app import create_app
from support.commands import use_platform
from support.declarations import SHOP, example_project, replace_once
from support.fakes.pages import NAME as USER
from support.fakes.pages import PATIENCE, FakeControl, FakeHost, client, facts
from support.fakes.platform import PartsPlatform

NAME = "shop.purchases"
TABLE = "{postgres: {connection: millrace_sink, table: shop.purchases, mode: append}}"
RULES = "    quality: {rules: shop_purchases, every: 1h, connection: millrace_sink_reader}"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The example, whose stream writes to S3, and commands that have no server to ask."""
    found = example_project(tmp_path)
    replace_once(found / SHOP, TABLE, "{s3: {connection: lake_s3, prefix: lake/purchases}}")
    replace_once(found / SHOP, RULES, "    #")
    platform = SimpleNamespace(settings=SimpleNamespace(root=found))
    use_platform(monkeypatch, platform, quality_cli, books_cli, recompute_cli, quarantine_cli, streams_cli)
    return found


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize(
    ("app", "words", "lacks"),
    [
        (quality_cli.app, ["reconcile", NAME], "its sink keeps no ledger"),
        (quality_cli.app, ["recompute", NAME], "its rows cannot be found by their source"),
        (quality_cli.app, ["check", NAME], "quality rules need a table"),
        (quarantine_cli.app, ["redrive", NAME, "--reason", "mended"], "its rows cannot be found by their source"),
        (
            streams_cli.app,
            ["rewind", NAME, "--to", "earliest", "--reason", "mended"],
            "its work on record is its dataset's",
        ),
    ],
)
def test_what_needs_a_table_is_refused_by_name(app: Any, words: list[str], lacks: str) -> None:
    error = CliRunner().invoke(app, words).exception

    assert isinstance(error, RefusedError)
    assert (error.what, error.where) == (f"{NAME} writes to S3: {lacks}", NAME)


def test_the_page_shows_its_dataset_and_its_quarantine_and_no_rewind(root: Path) -> None:
    asked: list[str] = []

    def sink(connection: str) -> Any:
        asked.append(connection)
        return SimpleNamespace(quarantine_counts=lambda stream, limit: [])

    control = FakeControl({NAME: facts(NAME)})
    platform = PartsPlatform(
        settings=SimpleNamespace(root=root), control=SimpleNamespace(pages=control), sinks_hasty_tables=sink
    )
    host = FakeHost(control)
    host.platform = lambda: platform  # type: ignore[method-assign]

    async def ask() -> list[str]:
        async with client(create_app(host, PATIENCE), {USER: "ann"}) as asking:
            answers = [await asking.get(path) for path in (f"/streams/{NAME}/sink", f"/streams/{NAME}")]
        assert [answer.status_code for answer in answers] == [200, 200]
        return [answer.text for answer in answers]

    of_sink, of_stream = asyncio.run(ask())

    assert "Dataset <code>lake/purchases/</code> in the bucket of connection <code>lake_s3</code>" in of_sink
    assert "kept in the database of connection <code>millrace_control</code>" in of_sink
    assert "Empty." in of_sink
    for absent in ("no batch is recorded yet", "Table <code>", "consumer group", "its group"):
        assert absent not in of_sink
    assert asked == ["millrace_control"]
    assert "Plan a rewind" not in of_stream
    assert "lake/purchases" in of_stream
