"""Class paths that a former layout left in Airflow's database and configuration still import."""

from __future__ import annotations

import inspect

import pytest

from millrace.moved import MOVED

OF_AIRFLOW = sorted(path for path in MOVED if path.startswith("millrace.airflow."))


@pytest.mark.parametrize("former", OF_AIRFLOW)
def test_airflow_imports_a_former_path_as_the_present_class(former: str) -> None:
    from airflow.sdk.module_loading import import_string

    found = import_string(former)
    assert found is import_string(MOVED[former])
    assert f"{found.__module__}.{found.__qualname__}" == MOVED[former]


def test_every_trigger_that_may_be_stored_names_the_path_at_which_it_is() -> None:
    from airflow.sdk.module_loading import import_string
    from airflow.triggers.base import BaseTrigger

    triggers = [found for path in MOVED.values() if ".triggers." in path and (found := import_string(path))]
    assert len(triggers) == 5
    for trigger in triggers:
        assert issubclass(trigger, BaseTrigger)
        given = {name: "stopped" for name in list(inspect.signature(trigger).parameters) if name != "kwargs"}
        path, arguments = trigger(**given).serialize()
        assert import_string(path) is trigger
        assert arguments.keys() == given.keys()
