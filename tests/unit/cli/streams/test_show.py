"""`millrace streams show`: what the last batch did, for people and as JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from millrace.cli.streams import commands as streams
from millrace.domain.formats.undeclared import UndeclaredFields, UndeclaredName
from millrace.domain.streams.control import StreamProgress
from millrace.domain.streams.supervision import DesiredState
from support.commands import use_platform
from support.declarations import example_project
from support.fakes.streams import FakePlatform

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
    undeclared=UndeclaredFields(
        1_204,
        (
            UndeclaredName("shop.purchases", "customerId", 1_200, "customer_id"),
            UndeclaredName("shop.purchases", "[red]\\x1b[/red]", 4),
        ),
    ),
)


@pytest.fixture
def platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePlatform:
    platform = FakePlatform(example_project(tmp_path))
    lag = SimpleNamespace(lag=lambda group, topics: 0)
    monkeypatch.setattr(platform, "kafka_groups", lambda connection: lag)
    monkeypatch.setattr(platform.streams, "progress", lambda stream: PROGRESS)
    use_platform(monkeypatch, platform, streams)
    return platform


def _shown(*arguments: str) -> str:
    done = CliRunner().invoke(streams.app, ["show", STREAM, *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def _lines() -> list[str]:
    return [" ".join(line.split()) for line in _shown().splitlines()]


@pytest.mark.usefixtures("platform")
def test_people_see_each_count_of_the_last_batch_on_a_line() -> None:
    lines = _lines()
    first = lines.index("last batch")
    assert lines[first + 1 : first + 14] == [
        "batch 7 of epoch 2, timeline 1",
        "ended 2026-05-01 12:00:00 UTC",
        "took 0.512 s",
        "rows in 12,345",
        "rows out 12,340",
        "quarantined 5",
        "truncated 1,017 with a timestamp finer than a microsecond",
        "undeclared 1,204 with fields outside the schema:",
        "`customerId` 1,200: is the column `customer_id` meant?",
        "`[red]\\x1b[/red]` 4",
        "",
        "next offsets",
        "shop.purchases/0 12,325",
    ]


def test_people_see_what_is_wanted_by_whom_and_how_it_is_with_times_in_utc(platform: FakePlatform) -> None:
    known = platform.streams
    known.set_desired(STREAM, actor="cli:ann", reason="new release", state=DesiredState.RUNNING)
    known.record_submitted(STREAM, 1, runner="fake", handle="1")
    known.record_ended(STREAM, 1, outcome="data loss (15)", exit_code=15, detail="offsets 5 to 7 are gone")
    text, lines = _shown(), _lines()
    assert lines[:5] == [
        STREAM,
        "wanted running",
        "asked for by cli:ann since 2026-05-01 12:00:00 UTC",
        "reason new release",
        "is given up, epoch 1, since 2026-05-01 12:00:00 UTC",
    ]
    assert lines[5].startswith("why ")
    assert lines[lines.index("consumer group") + 1 :][:2] == ["group millrace.shop.purchases", "lag 0 records"]
    assert lines[lines.index("last error") + 1] == "epoch 1: data loss (15). offsets 5 to 7 are gone"
    for dump in ("datetime", "Attempt(", "StreamProgress(", "+00:00", "None", "True"):
        assert dump not in text


def test_what_there_is_nothing_to_say_of_is_left_out(platform: FakePlatform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform.streams, "progress", lambda stream: None)
    assert [line for line in _lines() if line] == [
        STREAM,
        "wanted stopped",
        "is stopped",
        "why never started",
        "consumer group",
        "group millrace.shop.purchases",
        "lag 0 records",
    ]


def test_names_of_several_topics_stand_with_their_topic(
    platform: FakePlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = (UndeclaredName("shop.a", "x", 2), UndeclaredName("shop.b", "x", 1))
    positions = {"shop.a/0": 1, "shop.b/0": 1}
    progress = replace(PROGRESS, positions=positions, undeclared=UndeclaredFields(3, names))
    monkeypatch.setattr(platform.streams, "progress", lambda stream: progress)
    lines = _lines()
    assert [line for line in lines if line.startswith("`")] == ["`x` 2 in shop.a", "`x` 1 in shop.b"]


def test_people_are_told_where_too_many_names_are_undeclared(
    platform: FakePlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress = replace(PROGRESS, undeclared=UndeclaredFields(13))
    monkeypatch.setattr(platform.streams, "progress", lambda stream: progress)
    text = "undeclared 13 with fields outside the schema: too many different names to show any"
    assert text in " ".join(_lines())


def test_nothing_is_said_of_undeclared_fields_where_there_are_none(
    platform: FakePlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress = replace(PROGRESS, undeclared=UndeclaredFields())
    monkeypatch.setattr(platform.streams, "progress", lambda stream: progress)
    assert "undeclared" not in _shown()


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
    assert progress["undeclared"] == {
        "records": 1_204,
        "names": [
            {"topic": "shop.purchases", "name": "customerId", "records": 1_200, "column": "customer_id"},
            {"topic": "shop.purchases", "name": "[red]\\x1b[/red]", "records": 4, "column": None},
        ],
    }
