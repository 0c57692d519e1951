"""After a topic was renamed, `spec check` names each line that still uses the former name."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace import declarations
from millrace.declarations.starter import starter, write_starter
from support.declarations import replace_once, valid_project

FORMER, NEW = "orders.events", "orders.placed"
YAML = "include/pipelines/orders.yaml"
APP = "spark_apps/orders_events/transform.py"
TEST = "tests/spark/test_orders_events.py"
RULES = "include/quality/orders_events.yaml"
SOURCE = "sources/orders_sample.py"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with a new pipeline as `spec new` writes it."""
    project = valid_project(tmp_path)
    write_starter(project, starter("orders"))
    return project


def rename(root: Path, what: str) -> None:
    """Rename the topic, or all that has its name: the stream and its table too."""
    path = root / YAML
    text = path.read_text(encoding="utf-8")
    if what == "all":
        text = text.replace(FORMER, NEW).replace("\n  events:\n", "\n  placed:\n")
    else:
        text = text.replace(f"  {FORMER}:", f"  {NEW}:").replace(f"[{FORMER}]", f"[{NEW}]")
        text = text.replace(f"writes: {FORMER}", f"writes: {NEW}")
    path.write_text(text, encoding="utf-8")


def lines_with(root: Path, file: str, word: str) -> list[int]:
    return [number for number, line in enumerate((root / file).read_text("utf-8").splitlines(), 1) if word in line]


def warned(root: Path) -> dict[str, list[int]]:
    """Return the lines that `spec check` warns of, by file."""
    found: dict[str, list[int]] = {}
    for each in declarations.check(root):
        assert each.severity is declarations.Severity.WARNING
        assert f"does not read the topic `{FORMER}`" in each.what
        assert each.next_step == f"write one of its topics: {NEW}"
        found.setdefault(each.file, []).append(each.line)
    return found


def test_a_new_pipeline_has_no_former_name(root: Path) -> None:
    assert declarations.check(root) == ()


def test_each_line_with_the_former_name_of_a_topic_is_named_in_all_files(root: Path) -> None:
    rename(root, "all")
    assert warned(root) == {file: lines_with(root, file, FORMER) for file in (APP, TEST, RULES, SOURCE)}


def test_a_name_that_the_stream_and_its_table_keep_is_named_only_where_it_means_the_topic(root: Path) -> None:
    rename(root, "topic")
    assert warned(root) == {
        APP: lines_with(root, APP, f'inputs["{FORMER}"]'),
        TEST: [*lines_with(root, TEST, f'.topic("{FORMER}")'), *lines_with(root, TEST, f'{{"{FORMER}": events}}')],
    }


def test_files_that_follow_the_new_name_end_the_warnings(root: Path) -> None:
    rename(root, "all")
    for file in (APP, TEST, RULES, SOURCE):
        (root / file).write_text((root / file).read_text("utf-8").replace(FORMER, NEW), encoding="utf-8")
    assert warned(root) == {}


@pytest.mark.parametrize(
    "line", ['events = inputs.get("orders.events")', 'events = inputs["orders.events"]'], ids=["get", "subscript"]
)
def test_an_input_that_the_stream_does_not_read_is_found_however_it_is_taken(root: Path, line: str) -> None:
    (root / APP).write_text(f"def transform(inputs, tables):\n    {line}\n    return events\n", encoding="utf-8")
    rename(root, "topic")
    assert warned(root)[APP] == [2]


def test_only_the_inputs_of_the_transform_are_topics(root: Path) -> None:
    (root / APP).write_text(
        'def helper(row):\n    return row["a.b"]\n\n\n'
        'def transform(inputs, /, tables):\n    return inputs["orders.events"].join(tables["geo.rates"])\n',
        encoding="utf-8",
    )
    (root / SOURCE).write_text('def transform(row):\n    return row["price.net"]\n', encoding="utf-8")
    assert declarations.check(root) == ()
    rename(root, "topic")
    assert warned(root)[APP] == [6]


def test_streams_that_share_an_app_may_read_different_topics(root: Path) -> None:
    more = (
        "  orders.returns:\n    partitions: 2\n    value: {format: json, schema: 'id STRING'}\nstreams:\n  returns:\n"
    )
    more += "    app: orders_events\n    reads: [orders.returns]\n"
    more += "    writes: {postgres: {connection: millrace_sink, table: orders.returns}}\n"
    replace_once(root / YAML, "streams:\n", more)
    app = 'def transform(inputs, tables):\n    return inputs.get("orders.events") or inputs.get("orders.returns")\n'
    (root / APP).write_text(app, encoding="utf-8")
    assert declarations.check(root) == ()


def test_a_test_may_name_a_topic_of_another_pipeline(root: Path) -> None:
    with (root / TEST).open("a", encoding="utf-8") as file:
        file.write('\n\ndef of_the_shop(pipeline):\n    return pipeline.topic("shop.purchases")\n')
    assert declarations.check(root) == ()


@pytest.mark.parametrize("value", ["+".join(['"a"'] * 20_000), "-" * 20_000 + "1"], ids=["a sum", "signs"])
def test_a_program_that_the_parser_gives_up_is_left_to_its_start(root: Path, value: str) -> None:
    with (root / APP).open("a", encoding="utf-8") as file:
        file.write(f"\n\nDATA = {value}\n")
    rename(root, "topic")
    assert sorted(warned(root)) == [TEST]


def test_a_longer_name_is_another_one(root: Path) -> None:
    rename(root, "all")
    rules = (root / RULES).read_text("utf-8").splitlines()
    more = ["# orders.events_late, my.orders.events, orders.events.late", "# of orders.events."]
    (root / RULES).write_text("\n".join([*rules, *more]) + "\n", encoding="utf-8")
    assert warned(root)[RULES] == [*lines_with(root, RULES, f"of {FORMER} "), len(rules) + 2]


def test_an_app_that_is_no_python_is_left_to_its_start(root: Path) -> None:
    replace_once(root / APP, "def transform(", "def transform((")
    rename(root, "topic")
    assert sorted(warned(root)) == [TEST]
