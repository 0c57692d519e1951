"""The example of docs/guide/fan-out.md, laid over what is shipped as the guide's `cp` does, is without a finding."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from millrace import declarations
from millrace.domain.declaration.pipeline import Cleanup, KafkaSink, PostgresSink, Topic
from support.declarations import replace_once

REPOSITORY = Path(__file__).resolve().parents[3]
EXAMPLE = REPOSITORY / "docs" / "examples" / "fan-out"
GUIDE = REPOSITORY / "docs" / "guide" / "fan-out.md"
CUSTOMERS = "include/pipelines/customers.yaml"
SHIPPED = (
    "dags/activity.py",
    "dags/shop.py",
    "include/environments/embedded.yaml",
    "include/pipelines/activity.yaml",
    "include/pipelines/shop.yaml",
    "include/quality/shop_purchases.yaml",
    "sources/cdnow.py",
    "spark_apps/activity/transform.py",
    "spark_apps/shop_purchases/transform.py",
)
"""Beside which whoever followed the guide here may have more."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in SHIPPED:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, tmp_path / name)
    there = {path.relative_to(tmp_path) for path in tmp_path.rglob("*")}
    given = {path.relative_to(EXAMPLE) for path in EXAMPLE.rglob("*") if path.is_file()}
    assert not there & given, "the guide's copy would write over what is shipped"
    shutil.copytree(EXAMPLE, tmp_path, dirs_exist_ok=True)
    (tmp_path / "include/environments/production.yaml").write_text("operators: [anna]\n", encoding="utf-8")
    return tmp_path


def last(root: Path) -> Topic:
    [topic] = declarations.load_pipeline(root, "customers", "embedded").topics
    return topic


@pytest.mark.parametrize("environment", ["embedded", "production"])
def test_spec_check_says_nothing_and_neither_does_the_guide_of_a_warning(root: Path, environment: str) -> None:
    assert declarations.check(root, environment) == ()
    loaded = declarations.load(root, environment)
    assert {"activity", "customers", "shop"} == {pipeline.name for pipeline in loaded.pipelines}
    assert "`spec check` finds nothing" in " ".join(GUIDE.read_text(encoding="utf-8").split())


def test_one_topic_goes_to_a_topic_and_to_a_table_and_one_stream_reads_what_it_writes(root: Path) -> None:
    pipeline = declarations.load_pipeline(root, "customers", "embedded")
    latest, table, enriched = (pipeline.stream(name) for name in ("latest", "table", "enriched"))
    assert latest.reads == table.reads == ("shop.purchases",)
    assert latest.app == table.app
    assert isinstance(table.sink, PostgresSink)
    assert latest.sink == enriched.sink == KafkaSink(("customers.last",))
    assert (latest.reads_itself, table.reads_itself, enriched.reads_itself) == (False, False, True)


def test_compaction_waits_by_the_time_at_which_a_record_was_written(root: Path) -> None:
    """By purchase dates of 1997 any lag would be over before the record is there, and a purchase could be lost."""
    topic, config = last(root), dict(last(root).config)
    assert (topic.cleanup, topic.retention) == (Cleanup.COMPACT, None)
    assert config["message.timestamp.type"] == "LogAppendTime"
    days = re.search(r"(\d+) days", GUIDE.read_text(encoding="utf-8"))
    assert days is not None
    assert int(config["min.compaction.lag.ms"]) == int(days[1]) * 24 * 3600 * 1000
    assert int(config["segment.ms"]) < int(config["min.compaction.lag.ms"])


def test_a_record_is_a_purchase_and_its_unit_amount(root: Path) -> None:
    [purchases] = declarations.load_pipeline(root, "shop", "embedded").topics
    topic = last(root)
    assert topic.value is not None
    assert purchases.value is not None
    *columns, unit_amount = topic.value.columns
    assert tuple(columns) == purchases.value.columns
    assert (unit_amount.name, unit_amount.required) == ("unit_amount", False)
    assert topic.key == purchases.key
    assert topic.partitions == purchases.partitions
    assert (topic.value.tombstones, purchases.value.tombstones) == (True, False)


def test_enriching_the_shops_topic_itself_is_no_circle_that_a_check_would_find(root: Path) -> None:
    """What the guide says: nobody but the reader could tell an echo from a purchase."""
    text = (root / CUSTOMERS).read_text(encoding="utf-8")
    _, mark, streams = text.partition("  enriched:\n")
    changed = streams.replace("reads: [customers.last]", "reads: [shop.purchases]")
    changed = changed.replace("topic: customers.last", "topic: shop.purchases")
    assert changed != streams
    replace_once(root / CUSTOMERS, mark + streams, mark + changed)
    replace_once(
        root / "spark_apps/customers_enriched/transform.py", 'inputs["customers.last"]', 'inputs["shop.purchases"]'
    )
    assert declarations.check(root, "embedded") == ()
