"""What the pages need of Airflow: its users, what they may read, its connections and its secrets masker."""

from __future__ import annotations

from typing import Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.core_api.security import bearer_scheme, get_user
from fastapi import HTTPException
from starlette.requests import Request

from millrace.airflow.shared import names
from millrace.airflow.shared.settings import airflow_platform, forget_platform
from millrace.airflow.streams.last_words import last_words
from millrace.ports.platform import Platform
from millrace.web.host import StrangerError, StreamDags


class AirflowHost:
    """Airflow's API server as the host of the pages.

    Args:
        base: the path of Airflow's own pages: empty, or that of a proxy before it.
    """

    def __init__(self, base: str) -> None:
        self.base = base

    async def user(self, request: Request) -> object:
        """The user of Airflow's token, out of the header or the cookie, found as Airflow's own routes find him."""
        try:
            return await get_user(request, None, await bearer_scheme(request))
        except HTTPException as error:
            raise StrangerError from error

    def readable(self, user: Any, about: set[str]) -> set[str]:
        """Those whose DAG the user may read; asked by name, so that one whose DAG is gone has an answer too."""
        of_dags = {names.watch(name) if "." in name else f"{name}.topics": name for name in about}
        allowed = get_auth_manager().filter_authorized_dag_ids(dag_ids=set(of_dags), user=user)
        return {of_dags[dag] for dag in allowed}

    def dags(self, stream: str) -> StreamDags:
        """The DAGs about a stream, by name."""
        pipeline = stream.partition(".")[0]
        return StreamDags(names.watch(stream), f"{pipeline}.operate", f"{pipeline}.rewind", f"{pipeline}.topics")

    def platform(self) -> Platform:
        """The adapters, with Airflow's connections."""
        return airflow_platform()

    def forget(self) -> None:
        """Look connections up anew at the next use."""
        forget_platform()

    def last_words(self, stream: str, epoch: int) -> str:
        """What the driver of an epoch said last, as people may see it."""
        return last_words(airflow_platform(), stream, epoch)
