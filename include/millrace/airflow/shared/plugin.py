"""The plugin: pages mounted into Airflow's API server, and links to them.

Every component of Airflow imports this, task runners too. So it imports no page and asks no server: the pages are made
when the first of them is asked for.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from airflow.configuration import conf
from airflow.plugins_manager import AirflowPlugin
from airflow.sdk.bases.operatorlink import BaseOperatorLink

from millrace.airflow.shared import names

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

PREFIX = "/millrace"


def base_path() -> str:
    """The path of Airflow's own pages: empty, or that of a proxy before it."""
    return urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/")


class LazyPages:
    """The pages as an ASGI app that is made at the first request."""

    def __init__(self) -> None:
        self._app: ASGIApp | None = None
        self._making = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        async with self._making:
            if self._app is None:
                self._app = await asyncio.to_thread(_make)
        await self._app(scope, receive, send)


def _make() -> ASGIApp:
    from millrace.airflow.shared.pages import AirflowHost
    from millrace.web.app import create_app

    return create_app(AirflowHost(base_path()))


class StreamPageLink(BaseOperatorLink):
    """From any task of a stream to its page. The API server evaluates it: tasks that never had a worker have it too."""

    name = "Stream in Millrace"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """The page's path, in Airflow's frame; empty, which shows no link, for what is no stream's."""
        stream = names.stream_of(ti_key.dag_id)
        base = base_path()
        return f"{base}/plugin/{names.PAGES}{base}{PREFIX}/streams/{quote(stream)}" if stream else ""


class MillracePlugin(AirflowPlugin):
    """Pages and links."""

    name = "millrace"
    fastapi_apps = [{"app": LazyPages(), "url_prefix": PREFIX, "name": "Millrace"}]  # noqa: RUF012 (Airflow's own form)
    external_views = [  # noqa: RUF012 (Airflow's own form)
        {
            "name": "Streams",
            "href": f"{base_path()}{PREFIX}/",
            "destination": "nav",
            "url_route": names.PAGES,
        }
    ]
    global_operator_extra_links = [StreamPageLink()]  # noqa: RUF012 (Airflow's own form)
