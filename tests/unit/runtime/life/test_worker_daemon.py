"""Where the daemon of Spark's Python workers takes PySpark from."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.runtime.life.worker_daemon import without_archives


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of packages with PySpark and Py4J."""
    return packages(tmp_path / "site", "pyspark", "py4j")


def packages(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").touch()
    return folder


def archives(site: Path) -> list[str]:
    return [str(site / "pyspark/python/lib" / name) for name in ("pyspark.zip", "py4j-0.10.9.9-src.zip")]


def test_archives_of_the_installed_pyspark_are_left_out(site: Path) -> None:
    path = ["/app", *archives(site), "/env/lib/python311.zip", str(site)]
    assert without_archives(path) == ["/app", "/env/lib/python311.zip", str(site)]


def test_a_link_to_the_packages_changes_nothing(site: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(site)
    path = [*archives(site), str(tmp_path / "link")]
    assert without_archives(path) == [str(tmp_path / "link")]


def test_archives_stay_where_the_rest_finds_no_or_another_pyspark(site: Path, tmp_path: Path) -> None:
    other = packages(tmp_path / "other", "pyspark", "py4j")
    alone = packages(tmp_path / "alone", "pyspark")
    for path in (
        [*archives(Path("/opt/spark")), str(site)],
        [*archives(site), str(tmp_path)],  # no package
        [*archives(alone), str(alone)],  # no Py4J
        [str(other), *archives(site), str(site)],
    ):
        assert without_archives(path) == path
