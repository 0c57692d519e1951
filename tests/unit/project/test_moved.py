"""Former class paths import what stands at the present ones. tests/dags/streams/test_moved.py has those of Airflow."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

import millrace
from millrace.moved import MOVED, install

WITHOUT_AIRFLOW = sorted(path for path in MOVED if not path.startswith("millrace.airflow."))


def imported(path: str) -> object:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("former", WITHOUT_AIRFLOW)
def test_a_former_path_is_the_present_class(former: str) -> None:
    assert imported(former) is imported(MOVED[former])


def test_a_former_module_is_imported_from_its_package_too() -> None:
    from millrace import spec  # as the tests do that `spec new` wrote

    assert spec.load_pipeline is importlib.import_module("millrace.declarations").load_pipeline


def test_a_folder_that_a_former_package_left_behind_does_not_stand_in_its_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "spec" / "__pycache__").mkdir(parents=True)
    monkeypatch.setattr(millrace, "__path__", [*millrace.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "millrace.spec", raising=False)
    assert imported("millrace.spec.load_pipeline") is imported("millrace.declarations.load_pipeline")


@pytest.mark.parametrize("path", ["millrace.spec.nothing", "millrace.domain.sources.Loaded"])
def test_a_former_module_has_only_the_names_of_the_table(path: str) -> None:
    with pytest.raises(AttributeError, match="was moved and has no attribute"):
        imported(path)


def test_a_module_that_never_was_is_not_found() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("millrace.airflow.nothing")


def test_the_table_is_installed_once() -> None:
    before = list(sys.meta_path)
    install()
    assert sys.meta_path == before


def test_no_entry_leads_to_a_former_path() -> None:
    former = {path.rpartition(".")[0] for path in MOVED}
    assert not [path for path in MOVED.values() if path.rpartition(".")[0] in former]
