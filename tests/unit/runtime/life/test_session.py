"""What an app's Spark session is opened with, and what it leaves on the machine."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from millrace.domain.declaration.pipeline import BackupApp
from millrace.runtime.life import session


class Builder:
    """Stands in for Spark's builder: what PySpark makes while it starts is made where `tempfile` says."""

    def __init__(self) -> None:
        self.made: list[Path] = []
        self.options: dict[str, str] = {}

    def config(self, name: str, value: str) -> Builder:
        self.options[name] = value
        return self

    def __getattr__(self, _name: str) -> object:
        return lambda *_: self

    def getOrCreate(self) -> MagicMock:
        self.made.append(Path(tempfile.mkdtemp()))
        return MagicMock()


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> Builder:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    made = Builder()
    monkeypatch.setattr(session, "SparkSession", SimpleNamespace(builder=made))
    return made


def test_what_pyspark_leaves_when_it_is_killed_at_its_start_lies_in_the_apps_folder(
    tmp_path: Path, builder: Builder
) -> None:
    session.open_session(BackupApp("shop", ()), 1, [], tmp_path / "scratch")
    assert [made.parent for made in builder.made] == [tmp_path / "scratch"]


def test_an_app_adds_its_options_to_those_of_all(tmp_path: Path, builder: Builder) -> None:
    session.open_session(BackupApp("shop", ()), 1, [], tmp_path / "scratch", {"spark.one": "1"})
    assert builder.options["spark.one"] == "1"
    assert builder.options["spark.sql.session.timeZone"] == "UTC"


def test_what_spark_puts_on_disk_is_encrypted(tmp_path: Path, builder: Builder) -> None:
    session.open_session(BackupApp("shop", ()), 1, [], tmp_path / "scratch")
    assert builder.options["spark.io.encryption.enabled"] == "true"
