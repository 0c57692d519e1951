"""`millrace test` told to end: what had not run yet is not called fine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from millrace.cli import checks
from millrace.cli.checks import Outcome, run_checks


def test_checks_that_were_cut_short_are_not_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def run(root: Path, name: str, command: Sequence[str]) -> Outcome:
        ran.append(name)
        return Outcome(name, 0, 0.0, interrupted=len(ran) == 2)

    monkeypatch.setattr(checks, "_run", run)
    assert run_checks(tmp_path, []) == 1
    assert ran == ["ruff check", "ruff format"]
    ran.extend(["so that none is the second"])
    assert run_checks(tmp_path, []) == 0
