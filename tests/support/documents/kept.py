"""The documents that were reviewed, a file for each noun of the command line."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from millrace.cli.main import MODULES, NOUNS
from support.documents.calls import CALLS
from support.documents.differences import differences

FOLDER = Path(__file__).resolve().parents[2] / "integration" / "airflow" / "documents"
UPDATE = "MILLRACE_UPDATE_SNAPSHOTS"


def read(folder: Path = FOLDER) -> dict[str, object]:
    """Return how each call ended that is kept."""
    kept: dict[str, object] = {}
    for path in sorted(folder.glob("*.json")):
        kept |= json.loads(path.read_text(encoding="utf-8"))
    return kept


def file_of(call: str) -> str:
    """Return the name of the file of a call: the folder of its noun in the command line."""
    noun = call.partition(" ")[0]
    return f"{MODULES.get(noun, noun).partition('.')[0] if noun in NOUNS else 'stack'}.json"


def write(made: Mapping[str, object], folder: Path = FOLDER) -> None:
    """Keep how these calls ended instead of how they ended before. A call that is made no more is kept no more."""
    together = {**read(folder), **made}
    files: dict[str, dict[str, object]] = {}
    for call in CALLS:
        if call in together:
            files.setdefault(file_of(call), {})[call] = together[call]
    folder.mkdir(exist_ok=True)
    for path in folder.glob("*.json"):
        if path.name not in files:
            path.unlink()
    for name, entries in files.items():
        text = json.dumps(entries, indent=1, ensure_ascii=False)
        (folder / name).write_text(f"{text}\n", encoding="utf-8")


def changed(made: Mapping[str, object], folder: Path = FOLDER) -> str:
    """Return a line for each difference between what was reviewed and what was made; no text where there is none.

    With `MILLRACE_UPDATE_SNAPSHOTS=1` what was made is kept first.
    """
    if os.environ.get(UPDATE):
        write(made, folder)
    kept = read(folder)
    lines = [f"{call}: {line}" for call, entry in made.items() for line in differences(kept.get(call, {}), entry)]
    if lines:
        lines.append(f"documents changed: run again with {UPDATE}=1 and review the difference")
    return "\n".join(lines)


def hold(made: Mapping[str, object], folder: Path = FOLDER) -> None:
    """Fail the test where something is not as it was reviewed, with a line for each difference."""
    if lines := changed(made, folder):
        pytest.fail(lines, pytrace=False)
