"""`millrace quality recompute`: what it asks for, what it prints, and what it ends with."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from millrace.cli.quality import commands as cli
from millrace.cli.quality import recompute as quality_recompute
from millrace.domain.quality.ranges import Work
from millrace.domain.quality.recompute import Apart, Difference, Recomputed
from millrace.domain.streams.position import LogBounds
from millrace.domain.topics.offsets import OffsetRange, SourceAt, TopicPartition
from millrace.errors import RefusedError, UsageError
from support.commands import use_platform
from support.declarations import example_project, upsert_instead
from support.fakes.platform import GroupedPlatform

NAME = "shop.purchases"
P0 = TopicPartition(NAME, "id", 0)
MAY, JUNE = (datetime(2026, month, 1, tzinfo=UTC) for month in (5, 6))
CHANGED = Apart(Difference.CHANGED, "amount", 7, (SourceAt(NAME, 0, 3), SourceAt(NAME, 2, 9)), MAY, JUNE, 1, 2, 3000)
GONE = Apart(Difference.UNSTORED, "", 1, (SourceAt(NAME, 1, 4),), MAY, MAY)

DIFFERENT = Recomputed(1000, 990, 4, 3, 985, 977, (CHANGED,), ("new",), ("amount is text, and date is made",), ("old",))


class World(GroupedPlatform):
    """A platform whose job finds what it is told to; a sink with 10,000 offsets on record, of which 9,000 are left."""

    def __init__(self, root: Path) -> None:
        self.settings = SimpleNamespace(root=root)
        self.found = Recomputed(1000, 990, compared=985, alike=985)
        self.asked: list[tuple[str, list[OffsetRange], tuple[str, ...]]] = []
        self.bounds = {P0: LogBounds(1000, 10_000)}

    def sinks_tables(self, connection: str) -> Any:
        return SimpleNamespace(work=lambda stream: ([Work(1, P0, 0, 10_000)], None))

    def kafka_logs(self, connection: str) -> Any:
        return SimpleNamespace(partitions=lambda topics: list(self.bounds), bounds=lambda partitions: self.bounds)

    def apps_recomputation(self) -> Any:
        return self

    def run(self, stream: str, ranges: list[OffsetRange], connections: tuple[str, ...], progress: Any) -> Recomputed:
        self.asked.append((stream, list(ranges), connections))
        progress(500)
        return self.found


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(example_project(tmp_path))
    use_platform(monkeypatch, made, quality_recompute)
    return made


def call(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(cli.app, ["recompute", *words], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.stdout


def test_a_sample_of_what_is_left_is_asked_for_by_its_seed_and_no_more_connections_than_needed(world: World) -> None:
    assert "990 records of 1,000 offsets read again: 985 of 985" in call(NAME)
    call(NAME, "--seed", "5", "--sample", "100")
    call(NAME, "--seed", "5", "--sample", "100")
    call(NAME, "--sample", "9000")
    sizes = [sum(map(len, ranges)) for _, ranges, _ in world.asked]
    assert sizes == [1000, 100, 100, 9000]
    assert world.asked[1] == world.asked[2]
    assert world.asked[3][1] == [OffsetRange(P0, 1000, 10_000)]
    assert {(stream, connections) for stream, _, connections in world.asked} == {
        (NAME, ("millrace_kafka", "millrace_sink"))
    }


def test_rows_of_a_stream_that_upserts_are_not_made_again(world: World) -> None:
    upsert_instead(world.settings.root)
    with pytest.raises(RefusedError, match="the last row of each key, not the row of each offset") as caught:
        call(NAME)
    assert (caught.value.where, world.asked) == (NAME, [])
    assert "`millrace quality reconcile shop.purchases`" in caught.value.next_step


def test_what_differs_is_said_column_by_column_and_ends_with_1(world: World) -> None:
    world.found = replace(DIFFERENT, apart=(CHANGED, GONE))
    text = call(NAME, "--seed", "5", code=1)
    assert "977 of 985 rows and records in quarantine equal the app's output (seed 5)" in text
    assert "not in the table: new" in text
    assert "column amount: differs: 7, of records of 2026-05-01 00:00:00 UTC to 2026-06-01 00:00:00 UTC" in text
    assert (
        "of the others 1 before, 2 between and 3,000 after: shop.purchases/0@3, shop.purchases/2@9 and 5 more" in text
    )
    assert "made by the app, and nothing of the record is stored: 1, of records of 2026-05-01 00:00:00 UTC;" in text
    assert ": shop.purchases/1@4\n" in text
    assert "not compared, because the app does not make them: old" in text
    assert "not compared, because of another type: amount is text, and date is made" in text
    assert "3 stored rows of offsets without a record (any more), not judged" in text
    assert "4 offsets expired before they were read" in text


def test_the_document_holds_counts_places_and_times(world: World) -> None:
    world.found = DIFFERENT
    document = json.loads(call(NAME, "--seed", "5", "--json", code=1))
    assert document.pop("differences") == [
        {
            "difference": "changed",
            "column": "amount",
            "rows": 7,
            "first": ["shop.purchases/0@3", "shop.purchases/2@9"],
            "since": MAY.isoformat(),
            "until": JUNE.isoformat(),
            "others_before": 1,
            "others_between": 2,
            "others_after": 3000,
        }
    ]
    assert document == {
        "schema": "millrace.quality.recompute/1",
        "stream": NAME,
        "seed": 5,
        "likeness": "different",
        "offsets": 1000,
        "records": 990,
        "unread": 4,
        "unjudged": 3,
        "compared": 985,
        "alike": 977,
        "columns_lacking": ["new"],
        "columns_retyped": ["amount is text, and date is made"],
        "columns_idle": ["old"],
    }


def test_nothing_to_compare_is_no_success_and_starts_nothing(world: World) -> None:
    world.bounds = {P0: LogBounds(10_000, 10_000)}
    assert "nothing to compare" in call(NAME, code=1)
    assert world.asked == []


@pytest.mark.parametrize("sample", ["0", "100001"])
def test_a_sample_that_is_none_or_too_large_is_refused(world: World, sample: str) -> None:
    with pytest.raises(UsageError, match="1 to 100,000"):
        call(NAME, "--sample", sample)
    with pytest.raises(UsageError, match="pipeline shop has no stream nobody"):
        call("shop.nobody")
