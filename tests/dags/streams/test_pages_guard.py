"""The pages behind Airflow's own authentication and rights, as its API server carries them.

Airflow is imported inside functions: what its settings are stands only when the tests run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from millrace.settings import project_root
from millrace.web.app import create_app
from support.fakes.pages import PATIENCE, FakeControl, client, facts, plan_of
from support.ui.forks_of_airflow import ForksOfAirflow

STREAMS = ("shop.purchases", "garden.seeds")
PLANS = {stream: plan_of(stream.partition(".")[0], subject="a.topic") for stream in STREAMS}
ROLES = {"stranger": None, "viewer": "VIEWER", "operator": "OP", "garden": "VIEWER"}
SEES = {"viewer": set(STREAMS), "operator": set(STREAMS), "garden": {"garden.seeds"}}


@pytest.fixture
def carried(monkeypatch: pytest.MonkeyPatch) -> FastAPI:
    """An API server with the pages mounted as Airflow mounts a plugin's app."""
    from airflow.api_fastapi import app as airflow_app

    from millrace.airflow.shared import pages
    from millrace.airflow.shared.plugin import LazyPages, MillracePlugin
    from support.ui.one_pipeline_auth import OnePipelineAuthManager

    monkeypatch.setenv("AIRFLOW__CORE__AUTH_MANAGER", "support.ui.one_pipeline_auth.OnePipelineAuthManager")
    monkeypatch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS", "viewer:viewer,operator:op,garden:viewer")
    monkeypatch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "a secret of the tests, at least sixty-four bytes long" * 2)
    monkeypatch.setattr(airflow_app._AuthManagerState, "instance", OnePipelineAuthManager())
    monkeypatch.setattr(
        "airflow.api_fastapi.auth.managers.base_auth_manager.RevokedToken.is_revoked", lambda jti: False
    )  # asks Airflow's database, which these tests have not
    control = FakeControl({name: facts(name) for name in STREAMS}, plans=list(PLANS.values()))
    monkeypatch.setattr(pages, "airflow_platform", lambda: _platform(control))
    monkeypatch.setattr("millrace.web.app.create_app", partial(create_app, within=PATIENCE))
    server = FastAPI()
    for mounted in MillracePlugin.fastapi_apps:
        server.mount(str(mounted["url_prefix"]), LazyPages())
    return server


def _platform(control: FakeControl) -> Any:
    return SimpleNamespace(control=SimpleNamespace(pages=control), settings=SimpleNamespace(root=project_root()))


def credentials(name: str) -> tuple[Mapping[str, str], ...]:
    """Both ways in which a user's browser or program says who he is; of a stranger also false ones."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.base_auth_manager import COOKIE_NAME_JWT_TOKEN
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    role = ROLES[name]
    if role is None:
        forged = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZG1pbiJ9."
        return ({}, {"Authorization": f"Bearer {forged}"}, {"Cookie": f"{COOKIE_NAME_JWT_TOKEN}={forged}"})
    user = SimpleAuthManagerUser(username=name, role=role)
    token = get_auth_manager().generate_jwt(user)
    return ({"Authorization": f"Bearer {token}"}, {"Cookie": f"{COOKIE_NAME_JWT_TOKEN}={token}"})


def get(server: FastAPI, path: str, headers: Mapping[str, str]) -> httpx.Response:
    async def ask() -> httpx.Response:
        async with client(server, headers) as asking:
            return await asking.get(f"/millrace{path}")

    return asyncio.run(ask())


def paths() -> list[tuple[str, str]]:
    """Every path of the app, by the app itself, and the stream whose pipeline it is about; empty for no one."""
    from millrace.airflow.shared.pages import AirflowHost

    found = set()
    for route in create_app(AirflowHost("")).routes:
        assert isinstance(route, APIRoute)
        for stream in STREAMS:
            pipeline = stream.partition(".")[0]
            values = {"stream": stream, "epoch": 1, "pipeline": pipeline, "plan": PLANS[stream].plan.id}
            path = route.path.format(**values, name="pages.css")
            found.add((path, stream if {"stream", "pipeline", "plan"} & set(route.param_convertors) else ""))
    return sorted(found)


@pytest.mark.parametrize("name", ROLES)
def test_each_user_gets_what_airflow_lets_him_read(carried: FastAPI, name: str) -> None:
    for headers in credentials(name):
        for path, about in paths():
            if about in SEES.get(name, ()) and path.endswith(("/sink", "/log/1")):
                continue  # those ask a sink, and a runner
            answer = get(carried, path, headers)
            if name == "stranger":
                assert answer.status_code == 401, path
            else:
                assert answer.status_code == (200 if about in ("", *SEES[name]) else 404), path
        if name != "stranger":
            for path in ("/", "/topics", "/plans"):
                shown = get(carried, path, headers).text
                assert {stream for stream in STREAMS if stream.partition(".")[0] in shown} == SEES[name], path


def test_a_task_of_a_stream_has_a_link_to_its_page_and_no_other_task_has() -> None:
    from millrace.airflow.shared.plugin import StreamPageLink

    def link(dag_id: str) -> str:
        return StreamPageLink().get_link(None, ti_key=SimpleNamespace(dag_id=dag_id))

    assert link("shop.stream.purchases") == "/plugin/millrace/millrace/streams/shop.purchases"
    assert link("shop.backup") == "/plugin/millrace/millrace/streams/shop.backup"
    assert [link(dag) for dag in ("shop.operate", "shop.stream", "a.b.stream.c", "somebody's", "shop.stream.a.b")] == [
        ""
    ] * 5


def test_the_plugin_costs_nothing_before_a_page_is_asked_for(airflow_only: ForksOfAirflow) -> None:
    script = (
        "import sys, millrace.airflow.shared.plugin\n"
        "heavy = {'millrace.web.app', 'millrace.airflow.shared.pages', 'millrace.wiring', 'millrace.settings'}\n"
        "answer(sorted(heavy & set(sys.modules)))"
    )
    assert airflow_only.run(script) == []
