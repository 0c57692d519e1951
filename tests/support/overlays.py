"""Copies of the package with files added or edited: what a change would come to, tried in a child Python."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
_PACKAGE = "include/millrace"


def overlaid(tmp_path: Path, files: Mapping[str, str | Callable[[str], str]]) -> Path:
    """Copy the package and change some of its files.

    Args:
        tmp_path: an empty folder.
        files: by their paths in the checkout, as `include/millrace/errors.py`: the text of a new file, or what makes
            the new text of the present one.

    Returns:
        The folder for PYTHONPATH: it comes before the package of the checkout.
    """
    copy = tmp_path / _PACKAGE
    shutil.copytree(CHECKOUT / _PACKAGE, copy)  # with what Python has compiled, which saves seconds
    for name, change in files.items():
        path = tmp_path / name
        if not path.is_relative_to(copy):
            raise AssertionError(f"{name} is no file of the package")
        if path.exists() == isinstance(change, str):
            raise AssertionError(f"{name} is {'there already' if path.exists() else 'not there to be edited'}")
        text = change if isinstance(change, str) else change(path.read_text(encoding="utf-8"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return copy.parent
