"""A copy of the package with some files added or edited, for a child Python: what a contributor's change does."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
_PACKAGE = "include/millrace"


def overlaid(tmp_path: Path, files: Mapping[str, str | Callable[[str], str]]) -> Path:
    """Copy the package and change some files beside it.

    Args:
        tmp_path: the root of the copy; it has no package yet.
        files: by their paths in the repository, as `include/millrace/errors.py`. A text makes a new file. A function
            turns the former text of a file into its new one, which has to differ.

    Returns:
        The folder for PYTHONPATH: it comes before the package of the repository.
    """
    shutil.copytree(REPOSITORY / _PACKAGE, tmp_path / _PACKAGE)  # with what Python has compiled, which saves seconds
    for name, change in files.items():
        former = REPOSITORY / name
        if former.exists() == isinstance(change, str):
            raise AssertionError(f"{name} is {'there already' if former.exists() else 'not there to be edited'}")
        text = change if isinstance(change, str) else change(former.read_text(encoding="utf-8"))
        if former.exists() and text == former.read_text(encoding="utf-8"):
            raise AssertionError(f"{name} is left as it was")
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path / "include"
