"""`millrace streams show`: what the last batch did, for people and as JSON."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from millrace.cli import streams
from millrace.domain.control import StreamProgress
from support.fakes_streams import FakePlatform

CHECKOUT = Path(__file__).resolve().parents[2]
STREAM = "shop.purchases"
PROGRESS = StreamProgress(
    stream=STREAM,
    epoch=2,
    timeline=1,
    at=datetime(2026, 5, 1, 12, tzinfo=UTC),
    batch_id=7,
    rows_in=12_345,
    rows_out=12_340,
    quarantined=5,
    batch_seconds=0.51234,
    last_error=None,
    positions={"shop.purchases/1": 20, "shop.purchases/0": 12_325},
    truncated=1_017,
)


@pytest.fixture
def platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePlatform:
    for folder in ("include/pipelines", "include/environments", "spark_apps", "sources"):
        shutil.copytree(CHECKOUT / folder, tmp_path / folder)
    platform = FakePlatform(tmp_path)
    lag = SimpleNamespace(lag=lambda group, topics: 0)
    monkeypatch.setattr(platform, "groups", lambda connection: lag)
    monkeypatch.setattr(platform.streams, "progress", lambda stream: PROGRESS)
    monkeypatch.setattr(streams, "open_platform", lambda settings: platform)
    return platform


def _shown(*arguments: str) -> str:
    done = CliRunner().invoke(streams.app, ["show", STREAM, *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.usefixtures("platform")
def test_people_see_each_count_of_the_last_batch_on_a_line() -> None:
    lines = [" ".join(line.split()) for line in _shown().splitlines()]
    first = lines.index("last batch 7 of epoch 2, timeline 1, at 2026-05-01 12:00:00 UTC, took 0.512 s")
    assert lines[first + 1 : first + 6] == [
        "rows in 12,345",
        "rows out 12,340",
        "quarantined 5",
        "truncated 1,017 with a timestamp finer than a microsecond",
        "next offsets shop.purchases/0@12325, shop.purchases/1@20",
    ]


@pytest.mark.usefixtures("platform")
def test_programs_get_the_counts_by_their_names() -> None:
    progress = json.loads(_shown("--json"))["progress"]
    counts = ("rows_in", "rows_out", "quarantined", "truncated")
    assert {name: progress[name] for name in counts} == {
        "rows_in": 12_345,
        "rows_out": 12_340,
        "quarantined": 5,
        "truncated": 1_017,
    }


def test_a_stream_that_never_ran_has_no_last_batch(platform: FakePlatform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform.streams, "progress", lambda stream: None)
    assert "last batch" not in _shown()
