"""A copy of the package with some files changed, for a child Python: what a change would do, without making it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def overlaid(tmp_path: Path, files: Mapping[str, str | Callable[[str], str]]) -> Path:
    """Copy the package below `tmp_path` and change files there; return the folder to put on PYTHONPATH.

    Args:
        tmp_path: where the copy of the repository begins; the package is in `include/millrace` there.
        files: by their path in the repository: the new text, or an edit of the former one, which has to change it.
    """
    folder = tmp_path / "include"
    source = REPOSITORY / "include" / "millrace"
    shutil.copytree(source, folder / "millrace", ignore=shutil.ignore_patterns("__pycache__"))
    for path, change in files.items():
        there = REPOSITORY / path
        former = there.read_text(encoding="utf-8") if there.exists() else ""
        text = change if isinstance(change, str) else change(former)
        assert text != former, f"{path} is as it was"
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    return folder
