"""A valid project of two pipelines that tests break in one place at a time."""

from __future__ import annotations

import shutil
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "unit" / "declarations" / "project"
SHOP = "include/pipelines/shop.yaml"
RETURNS = "include/pipelines/returns.yaml"
PRODUCTION = "include/environments/production.yaml"
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
