"""A valid project of two pipelines that tests break in one place at a time, and copies of the example."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
PROJECT = Path(__file__).parents[1] / "unit" / "declarations" / "project"
SHOP = "include/pipelines/shop.yaml"
RETURNS = "include/pipelines/returns.yaml"
PRODUCTION = "include/environments/production.yaml"
IN_KAFKA = "{kafka: {topic: shop.purchases}}"
_PROGRAMS = (
    "spark_apps/shop_purchases/transform.py",
    "spark_apps/shop_customers/transform.py",
    "sources/cdnow.py",
)


def valid_project(root: Path) -> Path:
    """Copy the valid project to a new folder and return that."""
    shutil.copytree(PROJECT, root, dirs_exist_ok=True)
    for program in _PROGRAMS:
        (root / program).parent.mkdir(parents=True, exist_ok=True)
        (root / program).touch()
    return root


def replace_once(path: Path, old: str, new: str) -> None:
    """Replace text that stands in a file exactly once."""
    text = path.read_text(encoding="utf-8")
    if text.count(old) != 1:
        raise AssertionError(f"{old!r} stands {text.count(old)} times in {path.name}")
    path.write_text(text.replace(old, new), encoding="utf-8")


def example_project(root: Path, *, backup: bool = True, streams: bool = True) -> Path:
    """Copy the example's project to a new folder and return that.

    Args:
        root: the folder.
        backup: whether its topic is backed up, as the example's is.
        streams: whether the pipeline has its stream and source too, or nothing but the topic.
    """
    for folder in ("include/pipelines", "include/quality", "include/environments", "spark_apps", "sources"):
        shutil.copytree(CHECKOUT / folder, root / folder)
    if not backup:
        remove_backup(root)
    if not streams:
        text = (root / SHOP).read_text(encoding="utf-8")
        (root / SHOP).write_text(text[: text.index("streams:\n")], encoding="utf-8")
    return root


def upsert_instead(root: Path) -> None:
    """Have the stream of a copy of the example upsert, by customer."""
    replace_once(root / SHOP, "mode: append}}", "mode: upsert, key: [customer_id]}}")
    _remove_line(root, "quality")


def kafka_instead(root: Path) -> None:
    """Have the stream of a copy of the example write to Kafka: to the topic that it reads, which is declared."""
    replace_once(root / SHOP, "{postgres: {connection: millrace_sink, table: shop.purchases, mode: append}}", IN_KAFKA)
    _remove_line(root, "quality")


def s3_instead(root: Path, sink: str = "{s3: {prefix: lake/purchases}}") -> None:
    """Have the stream of a copy of the example write a dataset to S3."""
    replace_once(root / SHOP, "{postgres: {connection: millrace_sink, table: shop.purchases, mode: append}}", sink)
    _remove_line(root, "quality")


def remove_backup(root: Path) -> None:
    """Have the topic of a copy of the example backed up no longer."""
    _remove_line(root, "backup")


def _remove_line(root: Path, field: str) -> None:
    """Remove a field of the example's topic or stream, which stands in a line of its own."""
    text, removed = re.subn(rf"(?m)^    {field}: .*\n", "", (root / SHOP).read_text(encoding="utf-8"))
    if removed != 1:
        raise AssertionError(f"`{field}` stands {removed} times in the example's declaration")
    (root / SHOP).write_text(text, encoding="utf-8")
