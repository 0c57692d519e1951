"""Two tiers: what every change must pass, and with `--all` also the tests marked `full`."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from support.checks import tiers

SECOND_TIER = "full"
"""The marker of a test of the second tier."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run the second tier too: tests marked `full`")


def pytest_configure(config: pytest.Config) -> None:
    """Say how many examples and crash points are tried, before test files are imported.

    A test that is named by `FILE::TEST` tries all of them, as with `--all`. Properties have no deadline: how long one
    example takes says nothing about the code.
    """
    tiers.everything = config.getoption("--all") or any("::" in argument for argument in config.args)
    settings.register_profile(
        "tier",
        settings.default,
        deadline=None,
        max_examples=tiers.examples(settings.default.max_examples),
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("tier")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the second tier out, but for tests that were asked for by their names."""
    if config.getoption("--all"):
        return
    named = tuple(argument for argument in config.args if "::" in argument)
    left_out = [item for item in items if item.get_closest_marker(SECOND_TIER) and not _is_named(item, named)]
    if left_out:
        items[:] = [item for item in items if item not in set(left_out)]
        config.hook.pytest_deselected(items=left_out)


def _is_named(item: pytest.Item, names: tuple[str, ...]) -> bool:
    """Whether a name, `FILE::TEST`, is this test's or that of all its parameters."""
    own = item.nodeid.partition("::")[2]
    for name in names:
        file, _, test = name.partition("::")
        same_file = item.path == (item.config.invocation_params.dir / file).resolve()
        if same_file and (own == test or own.startswith((f"{test}[", f"{test}::"))):
            return True
    return False
