"""`millrace streams files`: what a reader of a stream's dataset reads, as it is printed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from millrace.adapters.sinks.s3.reading import DatasetReader
from millrace.adapters.sinks.s3.writer import DatasetWriter
from millrace.cli.streams import commands as streams
from millrace.cli.streams import files as stream_files
from millrace.domain.declaration.pipeline import S3Sink
from millrace.domain.sinks.batch import Identity
from millrace.domain.sinks.dataset.manifest import DataObject, Held, Kind, Span
from millrace.domain.sinks.dataset.names import NO_DATE, Dataset
from millrace.domain.topics.offsets import OffsetRange, TopicPartition
from millrace.errors import CorruptArchiveError, RefusedError, UsageError
from millrace.settings import S3Settings
from support.commands import use_platform
from support.declarations import example_project, s3_instead
from support.fakes.objects import MemoryStore
from support.fakes.platform import PartsPlatform

NAME, PREFIX, BUCKET = "shop.purchases", "lake/purchases", "acme"
P0 = TopicPartition(NAME, "AAAA", 0)
FIRST = date(2026, 3, 1)


class Lake:
    """A dataset in memory, and a platform that leads there."""

    def __init__(self, root: Path) -> None:
        self.store = MemoryStore()
        self.dataset = Dataset(PREFIX)
        self.root = root
        self.settings = SimpleNamespace(root=root, s3=lambda name: S3Settings("", "", bucket=BUCKET))

    def dataset_of(self, sink: S3Sink) -> DatasetReader:
        assert sink.store == "millrace_s3"
        return DatasetReader(self.store, Dataset(sink.prefix))

    def chain(self, epoch: int, stream: str = NAME) -> DatasetWriter:
        chain = DatasetWriter(self.store, self.dataset, Identity(stream, epoch, "i"), lambda: datetime.now(UTC))
        chain.take_over()
        return chain


def opened(lake: Lake, epoch: int, timeline: int, at: int = 0) -> DatasetWriter:
    """The chain with a timeline that begins at an offset."""
    chain = lake.chain(epoch)
    chain.append(Kind.TIMELINE, timeline=timeline, spans=[Span.of(OffsetRange(P0, at, at))])
    return chain


def object_of(day: str, first: int, next_: int) -> DataObject:
    """One with a row of each of these offsets."""
    held = Held(P0.topic_id, P0.partition, first, next_, next_ - first)
    return DataObject(day, f"{first:032x}{next_:032x}", 1000 * (next_ - first), (held,))


def batch(chain: DatasetWriter, timeline: int, first: int, next_: int, objects: Sequence[DataObject]) -> None:
    chain.append(Kind.DATA, timeline=timeline, spans=[Span.of(OffsetRange(P0, first, next_))], objects=objects)


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    root = example_project(tmp_path)
    s3_instead(root)
    made = Lake(root)
    platform = PartsPlatform(settings=made.settings, sinks_dataset=made.dataset_of)
    use_platform(monkeypatch, platform, stream_files)
    return made


def call(*arguments: str, stream: str = NAME) -> Result:
    return CliRunner().invoke(streams.app, ["files", stream, *arguments])


def document(*arguments: str) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(call(*arguments, "--json").stdout)
    return said


def cells(done: Result) -> list[list[str]]:
    lines = [line for line in done.stdout.splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]


@pytest.mark.usefixtures("lake")
def test_where_nothing_is_written_yet_that_is_said() -> None:
    done = call()
    assert done.exit_code == 0
    assert done.stdout == f"{NAME}: nothing is written below s3://acme/lake/purchases/ yet\n"
    assert document() == {
        "schema": "millrace.streams.files/1",
        "stream": NAME,
        "uri": "s3://acme/lake/purchases/",
        "manifest": None,
        "timeline": 0,
        "files": [],
    }


def test_a_first_epoch_that_begins_while_somebody_looks_is_no_damage(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = lake.store.list

    def begin(prefix: str, **more: Any) -> Any:
        monkeypatch.setattr(lake.store, "list", listing)
        lake.chain(1)
        return listing(prefix, **more)

    monkeypatch.setattr(lake.store, "list", begin)
    assert document()["manifest"] == 0


def test_a_stream_that_has_begun_and_written_no_row_has_a_manifest(lake: Lake) -> None:
    opened(lake, 1, 1)
    assert call().stdout.splitlines()[1:] == ["no object holds a row that counts"]
    assert (document()["manifest"], document()["timeline"], document()["files"]) == (1, 1, [])


def test_each_object_is_named_with_the_rows_of_it_that_count(lake: Lake) -> None:
    """A rewind has done the offsets 4 to 11 again: all of one object, a part of another."""
    chain = opened(lake, 1, 1)
    batch(chain, 1, 0, 8, [object_of("2026-03-01", 0, 6), object_of(NO_DATE, 6, 8)])
    batch(chain, 1, 8, 12, [object_of("2026-03-02", 8, 10), object_of("2026-03-03", 10, 12)])
    again = opened(lake, 2, 2, at=4)
    batch(again, 2, 4, 11, [object_of("2026-03-02", 4, 11)])

    at = f"s3://acme/{PREFIX}/data/event_date="
    found = document()

    assert (found["manifest"], found["timeline"]) == (6, 2)
    assert [(one["event_date"], one["rows"], one["size_bytes"], one["timeline"]) for one in found["files"]] == [
        ("2026-03-01", 6, 6000, 1),
        ("2026-03-02", 7, 7000, 2),
        ("2026-03-03", 2, 2000, 1),
    ]
    assert [one["where"] for one in found["files"]] == [
        "NOT (_topic_id = 'AAAA' AND _partition = 0 AND _offset >= 4 AND _offset < 6)",
        None,
        "NOT (_topic_id = 'AAAA' AND _partition = 0 AND _offset >= 10 AND _offset < 11)",
    ]
    assert found["files"][0]["uri"] == f"{at}2026-03-01/{0:032x}{6:032x}.parquet"

    done = call()
    assert f"{NAME}: s3://acme/lake/purchases/ as manifest 6 left it, timeline 2" in done.stdout
    assert cells(done) == [
        ["2026-03-01", "1", "6", "5.9 KiB", "1"],
        ["2026-03-02", "1", "7", "6.8 KiB", ""],
        ["2026-03-03", "1", "2", "2.0 KiB", "1"],
    ]
    assert "3 objects hold 15 rows in 14.6 KiB" in done.stdout
    assert "2 of them hold rows that a rewind has replaced" in done.stdout


def test_dates_are_bounds_and_rows_without_one_come_last(lake: Lake) -> None:
    chain = opened(lake, 1, 1)
    batch(chain, 1, 0, 4, [object_of(day, n, n + 1) for n, day in enumerate(("2026-03-01", "2026-03-02", NO_DATE))])

    def dates(*arguments: str) -> list[str | None]:
        return [one["event_date"] for one in document(*arguments)["files"]]

    assert dates() == ["2026-03-01", "2026-03-02", None]
    assert dates("--from", "2026-03-02") == ["2026-03-02"]
    assert dates("--to", "2026-03-01") == ["2026-03-01"]
    assert dates("--from", "2026-03-03", "--to", "2026-03-09") == []
    assert [row[0] for row in cells(call())] == ["2026-03-01", "2026-03-02", "no date"]


def test_of_many_dates_the_last_ones_are_shown_and_all_are_counted(lake: Lake) -> None:
    chain = opened(lake, 1, 1)
    days = [(FIRST + timedelta(days=n)).isoformat() for n in range(60)]
    batch(chain, 1, 0, 60, [object_of(day, n, n + 1) for n, day in enumerate(days)])
    done = call()
    assert [row[0] for row in cells(done)] == days[-50:]
    assert "10 earlier dates are not shown" in done.stdout
    assert "60 objects hold 60 rows" in done.stdout
    assert len(document()["files"]) == 60


@pytest.mark.usefixtures("lake")
@pytest.mark.parametrize(
    "arguments",
    [("--from", "yesterday"), ("--to", "20260301"), ("--from", "2026-02-30"), ("--from", "2026-03-02", "--to", FIRST)],
)
def test_what_is_no_date_is_refused(arguments: tuple[object, ...]) -> None:
    assert isinstance(call(*map(str, arguments)).exception, UsageError)


def test_a_stream_without_a_dataset_is_refused_with_what_it_writes(lake: Lake) -> None:
    root = example_project(lake.root / "other")
    lake.settings.root = root
    error = call().exception
    assert isinstance(error, RefusedError)
    assert error.what == "shop.purchases writes to the table shop.purchases, not to a dataset"
    assert isinstance(call(stream="shop.backup").exception, UsageError)
    assert isinstance(call(stream="shop.nobody").exception, UsageError)


def test_what_another_stream_has_written_is_not_passed_off_as_its_own(lake: Lake) -> None:
    lake.chain(1, "shop.former")
    error = call().exception
    assert isinstance(error, RefusedError)
    assert "shop.former" in error.what


def test_a_missing_manifest_is_an_error_and_no_shorter_list(lake: Lake) -> None:
    chain = opened(lake, 1, 1)
    batch(chain, 1, 0, 1, [object_of("2026-03-01", 0, 1)])
    del lake.store.objects[lake.dataset.manifest_key(1)]
    assert isinstance(call().exception, CorruptArchiveError)
