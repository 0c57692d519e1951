"""Parses each declaration and builds each command line once in a run: most tests use the same few of them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, lru_cache
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from millrace.declarations.findings import Finding
    from millrace.declarations.reader import Mapping

MOST_BYTES = 64 * 1024
"""Longer files are parsed each time, as they are outside tests."""


@pytest.fixture(scope="session", autouse=True)
def _declarations_are_parsed_once() -> Iterator[None]:
    """Give all callers the same frozen nodes for the same bytes, and each a list of findings of its own."""
    from millrace.declarations import draft

    plain = draft.read

    @lru_cache(maxsize=512)
    def remembered(data: bytes, file: str) -> tuple[Mapping | None, list[Finding]]:
        return plain(data, file)

    def read(data: bytes, file: str) -> tuple[Mapping | None, list[Finding]]:
        if len(data) > MOST_BYTES:
            return plain(data, file)
        tree, findings = remembered(data, file)
        return tree, list(findings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draft, "read", read)
        yield


@pytest.fixture(scope="session", autouse=True)
def _command_lines_are_built_once() -> Iterator[None]:
    """Build what a Typer application parses with once, not for each call of a test."""
    import typer.testing

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.testing, "_get_command", cache(typer.testing._get_command))
        yield
