"""The guide to records that no schema describes: its pipeline is sound, and `spec check` leads to it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from millrace import declarations
from millrace.domain.declaration.pipeline import BYTES_COLUMNS
from support.declarations import CHECKOUT, SHOP, replace_once, valid_project

GUIDE = "docs/guide/nested.md"


def test_the_guides_pipeline_is_sound(tmp_path: Path) -> None:
    root = valid_project(tmp_path)
    [pipeline] = re.findall(r"^```yaml\n(.*?)^```", (CHECKOUT / GUIDE).read_text("utf-8"), re.MULTILINE | re.DOTALL)
    (root / "include/pipelines/web.yaml").write_text(pipeline, encoding="utf-8")
    (root / "spark_apps/web_orders").mkdir()
    (root / "spark_apps/web_orders/transform.py").touch()

    assert declarations.check(root, "production") == ()
    [orders] = declarations.load_pipeline(root, "web", "production").topics
    assert orders.value is not None
    assert orders.value.columns == BYTES_COLUMNS


@pytest.mark.parametrize(
    "column",
    ["address STRUCT<city: STRING>", "tags ARRAY<STRING>", "more MAP<STRING,INT>", "user-id STRING", "_ref INT"],
)
def test_what_no_column_can_be_is_answered_with_the_guide(tmp_path: Path, column: str) -> None:
    root = valid_project(tmp_path)
    replace_once(root / SHOP, "customer_id STRING NOT NULL", f"customer_id STRING NOT NULL, {column}")

    [step] = [each.next_step for each in declarations.check(root) if each.field.endswith("value.schema")]

    assert step.endswith(GUIDE)
    assert (CHECKOUT / GUIDE).is_file()
    assert "`format: bytes`" in step
