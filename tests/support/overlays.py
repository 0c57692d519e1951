"""A copy of the package with changes: what a contributor's change does, tried without touching the tree."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

INCLUDE = Path(__file__).resolve().parents[2] / "include"


def overlaid(tmp_path: Path, files: Mapping[str, str | Callable[[str], str]]) -> Path:
    """Copy the package's modules and change some of them.

    Args:
        tmp_path: an empty folder.
        files: paths from the repository's root. A text makes a new file; a function turns the former text of a file
            into its new one, and has to change it.

    Returns:
        the folder to import the copy from.
    """
    root = tmp_path / "overlaid"
    for source in INCLUDE.rglob("*.py"):
        copy = root / "include" / source.relative_to(INCLUDE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)
    for path, change in files.items():
        target = root / path
        if isinstance(change, str):
            assert not target.exists(), f"{path} is there already"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(change, encoding="utf-8")
        else:
            former = target.read_text(encoding="utf-8")
            new = change(former)
            assert new != former, f"{path} is left as it was"
            target.write_text(new, encoding="utf-8")
    return root / "include"
