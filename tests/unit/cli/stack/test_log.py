"""What a command logs stays out of what it prints, which programs read."""

from __future__ import annotations

import sys

import pytest
import structlog

from millrace.cli.main import main
from millrace.usecases.streams import epochs


def test_what_a_command_logs_goes_to_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["millrace", "spec", "--help"])
    try:
        with pytest.raises(SystemExit) as ended:
            main()
        epochs.log.warning("epoch_not_asked", stream="shop.purchases")
    finally:
        structlog.reset_defaults()
    printed = capsys.readouterr()
    assert ended.value.code == 0
    assert "Usage" in printed.out
    assert "epoch_not_asked" in printed.err
    assert "epoch_not_asked" not in printed.out
