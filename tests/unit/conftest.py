"""Unit tests parse each declaration and build each command line once, and seldom search for garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from support.checks.remembered_files import _command_lines_are_built_once, _declarations_are_parsed_once  # noqa: F401

NEW_OBJECTS = 50_000
"""Python searches for cyclic garbage after so many; by itself it does after 700 or 2,000."""


@pytest.fixture(scope="session", autouse=True)
def _garbage_is_searched_for_seldom() -> Iterator[None]:
    """Search after many new objects only. Tests with servers must not: garbage there holds connections."""
    before = gc.get_threshold()
    gc.set_threshold(NEW_OBJECTS, *before[1:])
    yield
    gc.set_threshold(*before)
