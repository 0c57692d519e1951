"""Benchmarks are files named bench_*.py, and run only when they are asked for: `./millrace test tests/bench`."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.stack import embedded as stack

stack.quick = False


@pytest.fixture(scope="session", autouse=True)
def _no_garbage_among_imports() -> None:
    """Measure with Python's own search for garbage, as users have it."""


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    asked = any("bench" in Path(argument.split("::")[0]).parts for argument in parent.config.args)
    if not file_path.match("bench_*.py") or not asked or parent.session.isinitpath(file_path):
        return None  # a file named on the command line is collected by pytest itself
    found: pytest.Module = pytest.Module.from_parent(parent, path=file_path)
    return found
