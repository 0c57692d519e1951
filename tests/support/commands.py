"""Commands of the CLI that work with a fake platform."""

from __future__ import annotations

from types import ModuleType

import pytest


def use_platform(
    monkeypatch: pytest.MonkeyPatch, platform: object, *modules: ModuleType, settings: object = None
) -> None:
    """Let the commands of these modules open this platform, and read no settings of the machine.

    Args:
        monkeypatch: the test's.
        platform: the platform that `open_platform` returns.
        modules: the modules of the commands.
        settings: the settings that `open_settings` returns, for commands that use more of them than the platform does.
    """
    for module in modules:
        monkeypatch.setattr(module, "open_platform", lambda settings: platform)
        if hasattr(module, "open_settings"):
            monkeypatch.setattr(module, "open_settings", lambda *root: settings)
