"""Former class paths import what stands at the present ones. tests/dags/streams/test_moved.py has those of Airflow."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

import millrace
from millrace.moved import MOVED, install

OF_A_SITE = [
    "millrace.domain.sources.SourceRecord",
    "millrace.runtime.coordinator_log.OFFSETS_TOPIC",
    "millrace.runtime.coordinator_log.Unreadable",
    "millrace.runtime.coordinator_log.decode",
    "millrace.spec.check",
    "millrace.spec.load_pipeline",
]
"""Names that a site's source programs, apps and tests import."""


def imported(path: str) -> object:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("former", OF_A_SITE)
def test_a_former_path_is_the_present_object(former: str) -> None:
    module, _, name = former.rpartition(".")
    assert imported(former) is imported(f"{MOVED[module]}.{name}")


def test_a_former_module_is_imported_from_its_package_too() -> None:
    from millrace import spec  # as the tests do that `spec new` wrote

    assert spec.load_pipeline is importlib.import_module("millrace.declarations").load_pipeline


def test_a_former_package_gives_all_of_its_names() -> None:
    names: dict[str, object] = {}
    exec("from millrace.spec import *", names)
    assert set(importlib.import_module("millrace.declarations").__all__) <= names.keys()


def test_a_folder_that_a_former_package_left_behind_does_not_stand_in_its_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "spec" / "__pycache__").mkdir(parents=True)
    monkeypatch.setattr(millrace, "__path__", [*millrace.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "millrace.spec", raising=False)
    assert imported("millrace.spec.load_pipeline") is imported("millrace.declarations.load_pipeline")


def test_a_name_that_a_former_module_has_not_is_told_with_the_present_module() -> None:
    with pytest.raises(AttributeError, match=r"'millrace.spec' is 'millrace.declarations' now, which has no 'nothing'"):
        imported("millrace.spec.nothing")


def test_a_present_module_that_fails_is_not_taken_for_one_without_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fails_at_once.py").write_text("object().nothing_of_this_name\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(MOVED, "millrace.spec", "fails_at_once")
    monkeypatch.delitem(sys.modules, "millrace.spec", raising=False)
    with pytest.raises(ImportError, match=r"is 'fails_at_once' now, which fails: .*'nothing_of_this_name'"):
        imported("millrace.spec.check")
    with pytest.raises(ImportError, match="which fails"):
        exec("from millrace.spec import check")


def test_a_module_that_never_was_is_not_found() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("millrace.airflow.nothing")


def test_the_table_is_installed_once() -> None:
    before = list(sys.meta_path)
    install()
    assert sys.meta_path == before


def test_no_entry_leads_to_a_former_path_or_stands_for_a_present_module() -> None:
    assert not set(MOVED) & set(MOVED.values())
    package = Path(millrace.__file__).parent
    there = [package.joinpath(*path.split(".")[1:]) for path in MOVED]
    assert not [path for path in there if path.with_suffix(".py").exists() or (path / "__init__.py").exists()]
