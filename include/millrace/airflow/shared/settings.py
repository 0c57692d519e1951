"""Settings inside Airflow: Connections come through its SDK, so any secrets backend works and secrets are masked."""

from __future__ import annotations

import json
import threading
from functools import lru_cache
from pathlib import Path

from airflow.configuration import conf
from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowNotFoundException

from millrace.ports.platform import Platform
from millrace.settings import Settings, project_root
from millrace.wiring import open_platform


def airflow_root() -> Path:
    """The project whose `dags` folder Airflow reads; elsewhere what `project_root` says."""
    folder = Path(conf.get("core", "dags_folder")).resolve().parent
    return folder if (folder / "include" / "pipelines").is_dir() else project_root()


def airflow_settings(root: Path | None = None) -> Settings:
    """Settings whose connections are looked up in Airflow, each once.

    The lookup blocks and asks Airflow's own API server: in a trigger, call it from a thread, never in the event loop.
    """
    known: dict[str, str | None] = {}

    def lookup(name: str) -> str | None:
        if name not in known:
            known[name] = _json_form(name)
        return known[name]

    return Settings(root=root or airflow_root(), lookup=lookup)


def _json_form(name: str) -> str | None:
    try:
        found = Connection.get(name)
    except AirflowNotFoundException:
        return None
    document = {
        "conn_type": found.conn_type,
        "host": found.host,
        "port": found.port,
        "login": found.login,
        "password": found.password,
        "schema": found.schema,
        "extra": found.extra,
    }
    return json.dumps({key: value for key, value in document.items() if value is not None})


_OPENING = threading.Lock()
"""Two threads that find no adapters would open two, and what one of them keeps would never be closed."""


@lru_cache(maxsize=1)
def _opened() -> Platform:
    return open_platform(airflow_settings())


def airflow_platform() -> Platform:
    """The adapters of this process, shared by all its triggers."""
    with _OPENING:
        return _opened()


def forget_platform() -> None:
    """Look connections up anew at the next use: a server that does not answer may have moved.

    A thread closes what the former adapters keep. It may wait for a call that goes on, and triggers call this in the
    event loop.
    """
    with _OPENING:
        if not _opened.cache_info().currsize:
            return
        former = _opened()
        _opened.cache_clear()
    threading.Thread(target=former.close, name="close adapters", daemon=True).start()
