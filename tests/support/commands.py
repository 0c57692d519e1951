"""Commands of the CLI that work with a fake platform."""

from __future__ import annotations

from types import ModuleType

import pytest


def use_platform(monkeypatch: pytest.MonkeyPatch, platform: object, *modules: ModuleType) -> None:
    """Let the commands of these modules open this platform, whatever the settings say."""
    for module in modules:
        monkeypatch.setattr(module, "open_platform", lambda settings: platform)
