"""An Airflow of its own for tests that only import and serialise: a folder, and SQLite that nothing writes to."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.checks.remembered_files import _declarations_are_parsed_once  # noqa: F401
from support.ui.forks_of_airflow import ForksOfAirflow, forks_of_airflow


@pytest.fixture(scope="session", autouse=True)
def _airflow_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Airflow reads its settings when it is first imported, so they stand before that: tests import it in functions."""
    if "airflow.settings" in sys.modules:
        pytest.fail("a test module imports Airflow at its top; import it in the functions that need it", pytrace=False)
    home = tmp_path_factory.mktemp("airflow")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW_HOME", str(home))
        patch.setenv("AIRFLOW__CORE__UNIT_TEST_MODE", "False")
        patch.setenv("AIRFLOW__CORE__LOAD_EXAMPLES", "False")
        patch.setenv("AIRFLOW__CORE__DAGS_FOLDER", str(Path(__file__).resolve().parents[2] / "dags"))
        patch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", f"sqlite:///{home / 'airflow.db'}")
        yield


@pytest.fixture(scope="session")
def airflow_only(_airflow_home: None) -> Iterator[ForksOfAirflow]:
    """Forks of another process that has imported Airflow, as any DAG file does; its hash seed is another one."""
    root = str(Path(__file__).resolve().parents[2])
    with forks_of_airflow({**os.environ, "PYTHONHASHSEED": "77", "MILLRACE_ROOT": root}) as forks:
        yield forks
