"""A fifth sink, added to a copy of the package: what it takes, and that all that asks about sinks then knows it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.domain.sinks.capabilities import Capability
from support.declarations import CHECKOUT, RETURNS, SHOP, replace_once, valid_project
from support.overlays import overlaid
from support.sinks.files_sink import FILES
from support.waiting import Deadline

GUIDE = CHECKOUT / "docs" / "contributing" / "add-a-sink.md"
MOST_FILES = 8
STREAM = "returns.items"
ITEMS = "{postgres: {connection: millrace_sink, table: returns.items}}"
NEEDS_A_TABLE = {Capability.TABLE, Capability.BOOKS, Capability.QUALITY, Capability.REWIND}
NEEDS_A_TABLE |= {Capability.REDRIVE, Capability.RECOMPUTE}

DESCRIBE = """
import json, sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from millrace.airflow.shared import names
from millrace.declarations import load_pipeline
from millrace.declarations.schema import json_schema
from millrace.domain.sinks.capabilities import Capability
from millrace.errors import MillraceError
from millrace.usecases.quality.check import checked_streams
from millrace.usecases.rewind.plan import rewindable
from millrace.usecases.sinks.required import require
from millrace.usecases.streams.pages import sink_part
from millrace.web.rendering import render

root = Path(sys.argv[1])
platform = SimpleNamespace(settings=SimpleNamespace(root=root))
pipeline = load_pipeline(root, "returns")
stream = pipeline.stream("items")


def refusal(call, *arguments):
    try:
        call(*arguments)
    except MillraceError as error:
        return [type(error).__name__, error.what, error.where, error.next_step]


print(json.dumps({
    "sink": repr(stream.sink),
    "connections": stream.connections,
    "dags": [*names.of_pipeline(pipeline)],
    "able": [each.value for each in Capability if pipeline.able(each)],
    "refused": {each.value: refusal(require, stream, each) for each in Capability},
    "rewind": refusal(rewindable, SimpleNamespace(settings=SimpleNamespace(root=root)), "returns.items"),
    "quality": refusal(checked_streams, root, "returns.items"),
    "page": render("sink.html.j2", page=sink_part(platform, "returns.items", datetime(2026, 5, 4, tzinfo=UTC))),
    "schema": json_schema()["$defs"],
}))
"""

MISSING_TABLE = """
import json, sys
from pathlib import Path
from millrace.declarations.sink_files import FilesKind

FilesKind.examples = {**FilesKind.examples, "table": "/srv/table"}
from millrace.declarations import check  # builds the examples

print(json.dumps({"steps": [found.next_step for found in check(Path(sys.argv[1]), "embedded")]}))
"""

WRITE = """
import json, pickle, sys
from dataclasses import replace
from pathlib import Path
import pyarrow as pa
from millrace.adapters.sinks.files.sink import read_rows
from millrace.declarations import load_pipeline
from millrace.domain.sinks.batch import Identity, Written
from millrace.domain.topics.offsets import OffsetRange, TopicPartition
from millrace.errors import MillraceError
from millrace.wiring.sinks import open_sink, sink_epochs

pipeline = load_pipeline(Path(sys.argv[1]), "returns")
stream = pipeline.stream("items")
partition = TopicPartition("returns.items", "A" * 22, 0)
columns = pa.schema([("id", pa.string()), ("day", pa.date32())])
folder = Path(stream.sink.folder)


def opened(epoch):
    sink = open_sink(None, pipeline, stream, Identity(stream.qualified_name, epoch, f"i{epoch}"), None)
    sink.take_over()
    return sink


def written(sink, timeline, first, next_, attempt, bad=()):
    ranges = [OffsetRange(partition, first, next_)]
    sink.begin_batch()
    rows = [offset for offset in range(first, next_) if offset not in bad]
    block = pa.record_batch({
        "_topic_id": ["A" * 22] * len(rows), "_partition": [0] * len(rows), "_offset": rows,
        "_ordinal": [0] * len(rows), "id": [f"{timeline}-{offset}" for offset in rows],
        "day": pa.array([1] * len(rows), pa.date32()),
    })
    writer = pickle.loads(pickle.dumps(sink.rows_writer(timeline, ranges)))
    found = writer(iter([block]), attempt)
    kept = block.slice(0, len(bad)).drop_columns(["_offset"]).append_column("_offset", pa.array(list(bad), pa.int64()))
    put_aside = sink.bad_records_writer()(iter([kept]), attempt + 100)
    return ranges, Written((attempt, attempt + 100), found.rows, put_aside.rows)


def refusal(call, *arguments):
    try:
        call(*arguments)
    except MillraceError as error:
        return [type(error).__name__, error.what]


sink = opened(1)
readers = sink_epochs(None, stream.sink).values()
said = {"nothing": repr(sink.read_record()), "epochs": [newest("returns.items") for newest in readers]}
sink.open_positions(1, {partition: 5})
sink.prepare(columns)
batch = written(sink, 1, 5, 8, 1, bad=(6,))
said["first"] = repr(sink.commit_batch(1, *batch))
said["again"] = repr(sink.commit_batch(1, *batch))
said["lost"] = refusal(sink.commit_batch, 1, [OffsetRange(partition, 8, 9)], Written((), 1))
said["gap"] = refusal(sink.commit_batch, 1, [OffsetRange(partition, 9, 12)], Written((), 0))
late = written(sink, 1, 6, 10, 2)
said["second"] = repr(sink.commit_batch(1, *late))

newer = opened(2)
record = newer.read_record()
said["record"] = [record.timeline, list(record.next_offsets.values()), list(record.first_offsets.values())]
said["fenced"] = [refusal(sink.check_fence), refusal(sink.commit_batch, 1, *written(sink, 1, 10, 11, 3))]
said["rows"] = [[row["_offset"], row["id"], row["day"]] for row in read_rows(folder)]
said["bad"] = [row["_offset"] for row in read_rows(folder, "bad")]
newer.open_positions(2, {partition: 8})
newer.commit_batch(2, *written(newer, 2, 8, 9, 1))
said["rewound"] = [row["id"] for row in read_rows(folder)]
newer.discard()
newer.close()
said["left"] = sorted(path.name for path in folder.iterdir())
other = replace(stream, name="others")
said["others"] = refusal(open_sink(None, pipeline, other, Identity("returns.others", 1, "i"), None).take_over)
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return overlaid(tmp_path_factory.mktemp("package"), FILES)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = valid_project(tmp_path / "project")
    write_to_files(root, tmp_path / "items")
    return root


def write_to_files(root: Path, folder: Path | str, more: str = "") -> None:
    replace_once(root / RETURNS, ITEMS, f"{{files: {{folder: {folder}}}}}{more}")


def python(package: Path, root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the copy of the package in place of ours."""
    environment: Mapping[str, str] = os.environ | {"PYTHONPATH": str(package), "MILLRACE_ROOT": str(root)}
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=Deadline.COMMAND.seconds,
        check=False,
    )


def said(package: Path, root: Path, script: str) -> SimpleNamespace:
    """Return what a script prints as JSON."""
    ended = python(package, root, "-c", script, str(root))
    assert ended.returncode == 0, ended.stderr
    return SimpleNamespace(**json.loads(ended.stdout))


def spec(package: Path, root: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Return how `millrace spec` ends, and its document."""
    ended = python(package, root, "-m", "millrace.cli.main", "spec", *arguments, "--json")
    return ended.returncode, json.loads(ended.stdout)


def test_a_sink_takes_the_files_of_the_guide_and_no_more() -> None:
    (listed,) = re.findall(r"^```files\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    of_package = [path for path in listed.splitlines() if path.startswith("include/millrace/")]

    ours = [re.sub(r"\bs3\b|(?<=_)s3(?=\.)", "files", path) for path in of_package]  # the guide follows the S3 sink

    assert sorted(ours) == sorted(FILES)
    assert len(ours) <= MOST_FILES


def test_declarations_know_the_sink(package: Path, root: Path, tmp_path: Path) -> None:
    checked, document = spec(package, root, "check")
    shown, values = spec(package, root, "show", "returns")

    assert (checked, document["findings"], shown) == (0, [], 0)
    (value,) = [one for one in values["values"] if one["field"].startswith("streams.items.writes")]
    assert (value["field"], value["value"]) == ("streams.items.writes.files.folder", str(tmp_path / "items"))
    assert (value["file"], value["line"]) == (RETURNS, 11)


def test_wrong_declarations_of_the_sink_are_refused_with_file_and_line(
    package: Path, root: Path, tmp_path: Path
) -> None:
    written = f"{{files: {{folder: {tmp_path / 'items'}}}}}"
    replace_once(root / RETURNS, written, "{files: {folder: lake}}\n    quality: {rules: items}")
    replace_once(
        root / SHOP,
        "      postgres:\n        connection: millrace_sink\n        table: shop.purchases\n        mode: append",
        "      parquet: {}",
    )

    code, document = spec(package, root, "check")

    assert code == 1
    found = {(one["file"], one["line"], one["field"]): (one["what"], one["next_step"]) for one in document["findings"]}
    assert found[RETURNS, 11, "streams.items.writes.files.folder"][0].startswith("`lake` is not")
    assert found[RETURNS, 12, "streams.items.quality"] == (
        "quality rules need a table, and this stream writes to files",
        "remove `quality`, or declare a second stream that writes the rows to a table",
    )
    steps = [step for (file, _, field), (_, step) in found.items() if file == SHOP and field.endswith("writes")]
    assert len(steps) == 1
    assert steps[0].endswith(", `s3: {prefix: lake/purchases}`, or `files: {folder: /srv/lake}`")


def test_a_field_of_the_sink_leaves_the_example_of_another_kinds_field(package: Path, root: Path) -> None:
    replace_once(root / SHOP, "        table: shop.purchases\n", "")

    assert said(package, root, MISSING_TABLE).steps == ["add `table: shop.purchases`"]


def test_a_folder_has_one_stream(package: Path, root: Path, tmp_path: Path) -> None:
    replace_once(
        root / SHOP,
        "      postgres:\n        connection: millrace_sink\n        table: shop.purchases\n        mode: append",
        f"      files: {{folder: {tmp_path / 'items' / 'inside'}}}",
    )

    code, document = spec(package, root, "check")

    assert code == 1
    (found,) = document["findings"]
    assert (found["file"], found["field"]) == (SHOP, "streams.purchases.writes.files.folder")
    assert f"lies inside `{tmp_path / 'items'}`, which is used by the stream {STREAM} already" in found["what"]
    assert found["next_step"] == "give this stream a folder of its own"


def test_what_needs_a_table_leaves_the_sink_out_or_refuses_it(package: Path, root: Path, tmp_path: Path) -> None:
    found = said(package, root, DESCRIBE)

    assert found.sink == f"FilesSink(folder={str(tmp_path / 'items')!r})"
    assert (found.connections, found.able) == ([], [])
    assert found.dags == ["returns.topics", "returns.retention", "returns.stream.items", "returns.operate"]
    assert set(found.refused) == {each.value for each in Capability}
    for capability, (error, what, where, next_step) in found.refused.items():
        assert (error, where) == ("RefusedError", STREAM), capability
        assert STREAM in what, capability
        assert next_step, capability
    assert all(found.refused[each.value][1].startswith(f"{STREAM} writes to files: ") for each in NEEDS_A_TABLE)
    assert found.rewind == found.refused["rewind"]
    assert found.rewind[1] == f"{STREAM} writes to files: its work on record is its folder's"
    assert "kafka-consumer-groups --reset-offsets" in found.rewind[3]
    assert f"millrace.{STREAM}" in found.rewind[3]
    assert found.quality == found.refused["quality"]
    assert "Its record of work is its file <code>record.json</code>. " in found.page
    assert "Its fence and its quarantine are kept in the same folder: in <code>record.json</code>" in found.page
    assert "Quarantine</h3>" not in found.page
    assert "Empty." not in found.page
    assert found.schema["FilesDocument"]["required"] == ["folder"]
    assert [*found.schema["WritesDocument"]["properties"]] == ["postgres", "kafka", "s3", "files"]


def test_the_sink_writes_batches_keeps_its_record_and_is_read_again(package: Path, root: Path) -> None:
    found = said(package, root, WRITE)

    assert (found.nothing, found.epochs) == (
        "WorkRecord(timeline=0, next_offsets={}, first_offsets={}, moved=frozenset())",
        [1],
    )
    assert found.first == "BatchCounts(rows_out=2, quarantined=1)"
    assert found.again == "BatchCounts(rows_out=0, quarantined=0)"
    assert (found.lost[0], found.gap[0]) == ("SinkFailedError", "SinkFailedError")
    assert found.second == "BatchCounts(rows_out=2, quarantined=0)"  # two of its four were on record
    assert found.record == [1, [10], [5]]
    assert [error for error, _ in found.fenced] == ["FencedError", "FencedError"]
    assert found.rows == [[offset, f"1-{offset}", "1970-01-02"] for offset in (5, 7, 8, 9)]
    assert found.bad == [6]
    assert found.rewound == ["1-5", "1-7", "1-9", "2-8"]
    assert [name for name in found.left if name.startswith("staged-2")] == []
    assert found.others[0] == "RefusedError"
