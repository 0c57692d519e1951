from __future__ import annotations

from pathlib import Path

import pytest

from millrace.embedded.doctor import EXECUTOR_VARIABLE, Check, executor_check
from millrace.embedded.layout import Layout

CELERY = "CeleryExecutor"


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    (tmp_path / ".millrace").mkdir()
    return Layout(tmp_path)


def checked(layout: Layout, **environment: str) -> Check:
    return executor_check(layout, {"AIRFLOW_HOME": str(layout.root / "airflow"), **environment})


def test_airflows_default_is_fine(layout: Layout) -> None:
    assert checked(layout).fine


@pytest.mark.parametrize("name", [CELERY, "LocalExecutor,CeleryExecutor", "airflow.providers.edge3.EdgeExecutor"])
def test_an_executor_that_reaches_other_hosts_is_refused_by_name(layout: Layout, name: str) -> None:
    found = checked(layout, AIRFLOW__CORE__EXECUTOR=name)
    assert not found.fine
    assert found.origin == "environment"
    assert name in found.found


def test_the_configuration_file_is_read_where_no_variable_says_more(layout: Layout) -> None:
    file = layout.root / "airflow" / "airflow.cfg"
    file.parent.mkdir()
    file.write_text(f"[core]\nexecutor = {CELERY}\nfernet_key = a%b\n")
    assert (checked(layout).fine, checked(layout).origin) == (False, str(file))
    assert checked(layout, AIRFLOW__CORE__EXECUTOR="LocalExecutor").fine


def test_the_embedded_stacks_own_setting_wins(layout: Layout) -> None:
    layout.airflow_environment_file.parent.mkdir(parents=True, exist_ok=True)
    layout.airflow_environment_file.write_text(f"{EXECUTOR_VARIABLE}=LocalExecutor\n")
    assert checked(layout, AIRFLOW__CORE__EXECUTOR=CELERY).fine
