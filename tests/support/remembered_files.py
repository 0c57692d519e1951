"""Parses each declaration once in a run: most tests load the same few files, and parsing takes most of their time."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from functools import lru_cache

import pytest

MOST_BYTES = 64 * 1024
"""Longer files are parsed each time, as they are outside tests."""


@pytest.fixture(scope="session", autouse=True)
def _declarations_are_parsed_once() -> Iterator[None]:
    """The same bytes give the same tree. Each caller gets a tree of its own, from a pickle."""
    from millrace.spec import draft

    plain = draft.read

    @lru_cache(maxsize=512)
    def pickled(data: bytes, file: str) -> bytes:
        return pickle.dumps(plain(data, file))

    def read(data: bytes, file: str) -> object:
        return plain(data, file) if len(data) > MOST_BYTES else pickle.loads(pickled(data, file))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draft, "read", read)
        yield
