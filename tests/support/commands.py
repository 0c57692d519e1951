"""All commands of the CLI, and commands that work with a fake platform."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
import typer
from typer.main import get_command

from millrace.cli.main import NOUNS, build


def commands() -> Iterator[tuple[str, set[str]]]:
    """Yield every command as it is typed, with the options that change what it does."""
    for noun in ("", *NOUNS):
        root: typer.core.TyperGroup = get_command(build([noun] if noun else []))  # type: ignore[assignment]
        group = root if not noun else root.commands.get(noun)
        if group is None:
            continue  # a noun that is not there yet
        for name, command in (getattr(group, "commands", None) or {"": group}).items():
            if noun or name not in NOUNS:
                options = {option for each in command.params for option in each.opts if option.startswith("--")}
                yield f"{noun} {name}".strip(), options


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
