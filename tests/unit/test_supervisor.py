"""The supervisor's client, where its server does what the real one does not."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.embedded import supervisor
from millrace.embedded.layout import Layout
from millrace.embedded.supervisor import ProgramState, Supervisor
from millrace.errors import PartFailedError


class Undying(Supervisor):
    """One whose programs outlive SIGKILL, as in a call of the kernel that does not return."""

    def _remote(self) -> Any:
        return SimpleNamespace(supervisor=SimpleNamespace(stopProcess=lambda name, wait: True))

    def states(self) -> dict[str, ProgramState]:
        return {name: ProgramState(name, "STOPPING", 4711, 9.0, "") for name in ("kafka", "s3", "postgres")}


def test_a_program_that_does_not_end_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "STOP_SECONDS", 0.0)
    with pytest.raises(PartFailedError, match="did not end") as met:
        Undying(Layout(tmp_path)).stop_programs(["kafka", "postgres"])
    assert met.value.where == "kafka (process 4711), postgres (process 4711)"
