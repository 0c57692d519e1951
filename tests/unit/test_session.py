"""What a stream app's Spark session leaves on the machine."""

from __future__ import annotations

import os
import tempfile
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from millrace.runtime import session


class Builder:
    """Stands in for Spark's builder: what PySpark makes while it starts is made where `tempfile` says."""

    def __init__(self) -> None:
        self.made: list[Path] = []

    def __getattr__(self, _name: str) -> object:
        return lambda *_: self

    def getOrCreate(self) -> MagicMock:
        self.made.append(Path(tempfile.mkdtemp()))
        return MagicMock()


def test_what_pyspark_leaves_when_it_is_killed_at_its_start_lies_in_the_apps_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    builder = Builder()
    monkeypatch.setattr(session, "SparkSession", SimpleNamespace(builder=builder))
    resources = SimpleNamespace(cores=1, memory_bytes=1)
    stream = SimpleNamespace(resources=resources, trigger=timedelta(seconds=1), qualified_name="shop.purchases")
    session.open_session(stream, 1, [], tmp_path / "scratch")  # type: ignore[arg-type]
    assert [made.parent for made in builder.made] == [tmp_path / "scratch"]
