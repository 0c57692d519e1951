"""The pages as one FastAPI app: GET only, nothing is changed here, and who is asked has two seconds."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from importlib.resources import files

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse, Response

from millrace.errors import Code, MillraceError, RefusedError, UnreachableError, UsageError
from millrace.usecases.plans import pages as plan_pages
from millrace.usecases.streams import pages as stream_pages
from millrace.usecases.topics import pages as topic_pages
from millrace.web.chart import charts
from millrace.web.guard import HEADERS, Guard
from millrace.web.host import Host
from millrace.web.rendering import render

DEADLINE = timedelta(seconds=2)
NAME = re.compile(r"[A-Za-z0-9_.-]{1,200}")
WINDOWS = {"1h": timedelta(hours=1), "6h": timedelta(hours=6), "24h": timedelta(hours=24)}
CHANGES = 200
STATIC = {"pages.css": "text/css", "pages.js": "text/javascript"}


def create_app(host: Host, within: timedelta = DEADLINE) -> FastAPI:
    """The pages of Millrace for this host.

    Guarantees: strangers get 401 from every path; users see the streams that the host lets them read; two threads, each
    with one connection at most, for the host may carry more than pages; what is not known `within` this time is
    answered with 503 and a sentence.
    """
    app = FastAPI(title="Millrace", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Guard, host=host)
    pages = _Pages(host, within)
    app.add_api_route("/", pages.overview, methods=["GET"], response_class=HTMLResponse)
    app.add_api_route("/streams/{stream}", pages.stream, methods=["GET"], response_class=HTMLResponse)
    app.add_api_route("/streams/{stream}/sink", pages.sink, methods=["GET"], response_class=HTMLResponse)
    app.add_api_route("/streams/{stream}/log/{epoch}", pages.log, methods=["GET"], response_class=HTMLResponse)
    app.add_api_route("/topics", pages.topics, methods=["GET"], response_class=HTMLResponse)
    app.add_api_route("/topics/{pipeline}", pages.pipeline_topics, methods=["GET"], response_class=HTMLResponse)
    app.add_api_route("/plans", pages.plans, methods=["GET"], response_class=HTMLResponse)
    app.add_api_route("/plans/{plan}", pages.plan, methods=["GET"], response_class=HTMLResponse)
    app.add_api_route("/static/{name}", pages.static, methods=["GET"])
    app.add_exception_handler(MillraceError, pages.refused)
    return app


class _Pages:
    def __init__(self, host: Host, within: timedelta) -> None:
        self._host = host
        self._within = within.total_seconds()
        self._pages = ThreadPoolExecutor(1, "millrace-pages")
        self._parts = ThreadPoolExecutor(1, "millrace-parts")  # a sink that hangs takes no page with it

    async def overview(self, request: Request) -> HTMLResponse:
        now = datetime.now(UTC)

        def work() -> str:
            platform = self._host.platform()
            found = stream_pages.overview(platform, lambda names: self._readable(request, names), now)
            return self._render(request, "overview.html.j2", page=found)

        return await self._page(work)

    async def stream(self, request: Request, stream: str, window: str = "1h") -> HTMLResponse:
        now = datetime.now(UTC)
        if window not in WINDOWS:
            raise HTTPException(404, f"window {window} does not exist: use {', '.join(WINDOWS)}")

        def work() -> str:
            self._must_be_readable(request, stream)
            found = stream_pages.stream_page(self._host.platform(), stream, now, WINDOWS[window])
            drawn = charts(found.history.buckets, found.since, found.bucket)
            return self._render(
                request,
                "stream.html.j2",
                page=found,
                charts=drawn,
                dags=self._host.dags(stream),
                window=window,
                windows=WINDOWS,
            )

        return await self._page(work)

    async def sink(self, request: Request, stream: str) -> HTMLResponse:
        now = datetime.now(UTC)

        def work() -> str:
            self._must_be_readable(request, stream)
            try:
                found = stream_pages.sink_part(self._host.platform(), stream, now)
            except UnreachableError:
                raise
            except MillraceError as error:  # nobody declares it, or wrongly: then there is no sink to show
                return self._render(request, "no_sink.html.j2", error=error)
            return self._render(request, "sink.html.j2", page=found)

        return await self._part(work)

    async def log(self, request: Request, stream: str, epoch: int) -> HTMLResponse:
        def work() -> str:
            self._must_be_readable(request, stream)
            return self._render(request, "log.html.j2", text=self._host.last_words(stream, epoch))

        return await self._part(work)

    async def topics(self, request: Request) -> HTMLResponse:
        now = datetime.now(UTC)

        def work() -> str:
            found = topic_pages.pipelines(self._host.platform(), lambda names: self._readable(request, names))
            return self._render(request, "topics.html.j2", page=found, at=now)

        return await self._page(work)

    async def pipeline_topics(self, request: Request, pipeline: str) -> HTMLResponse:
        now = datetime.now(UTC)

        def work() -> str:
            if not NAME.fullmatch(pipeline) or not self._readable(request, {pipeline}):
                raise UsageError(f"pipeline {pipeline} does not exist", code=Code.UNKNOWN_NAME)
            found = topic_pages.topics_page(self._host.platform(), pipeline, now)
            dag = self._host.dags(pipeline).topics
            return self._render(request, "pipeline_topics.html.j2", page=found, dag=dag)

        return await self._page(work)

    async def plans(self, request: Request) -> HTMLResponse:
        now = datetime.now(UTC)

        def work() -> str:
            found = plan_pages.plans(self._host.platform(), lambda names: self._readable(request, names))
            return self._render(request, "plans.html.j2", page=found, at=now)

        return await self._page(work)

    async def plan(self, request: Request, plan: str) -> HTMLResponse:
        now = datetime.now(UTC)

        def work() -> str:
            if not NAME.fullmatch(plan):
                raise UsageError(f"plan {plan} does not exist", code=Code.UNKNOWN_NAME)
            found = plan_pages.plan(self._host.platform(), plan, lambda names: self._readable(request, names))
            return self._render(request, "plan.html.j2", page=found, at=now, most=CHANGES)

        return await self._page(work)

    async def static(self, name: str) -> Response:
        if name not in STATIC:
            raise HTTPException(404)
        content = files("millrace.web").joinpath("static", name).read_bytes()
        return Response(content, media_type=STATIC[name], headers=HEADERS | {"Cache-Control": "no-cache"})

    async def refused(self, request: Request, error: Exception) -> HTMLResponse:
        """A sentence in place of a page."""
        kinds = {UnreachableError: 503, UsageError: 404, RefusedError: 409}
        status = next((code for kind, code in kinds.items() if isinstance(error, kind)), 500)
        if isinstance(error, UnreachableError):
            self._host.forget()
        return HTMLResponse(self._render(request, "refused.html.j2", error=error), status, HEADERS)

    async def _page(self, work: Callable[[], str]) -> HTMLResponse:
        return HTMLResponse(await self._soon(self._pages, work), headers=HEADERS)

    async def _part(self, work: Callable[[], str]) -> HTMLResponse:
        return HTMLResponse(await self._soon(self._parts, work), headers=HEADERS)

    async def _soon(self, threads: Executor, work: Callable[[], str]) -> str:
        """What `work` returns, from a thread of the pages' own.

        Raises:
            UnreachableError: it took longer than a page may, or the thread waits for a server that hangs. Then no
                thread of the host's is held up by it.
        """
        try:
            answer = asyncio.get_running_loop().run_in_executor(threads, work)
            return await asyncio.wait_for(answer, self._within)
        except TimeoutError as error:
            raise UnreachableError(
                f"a server did not answer within {self._within:.0f} s",
                where="the pages of Millrace",
                next_step="run `millrace doctor`: it names the server that does not answer; running streams continue",
            ) from error

    def _readable(self, request: Request, names: set[str]) -> set[str]:
        return self._host.readable(request.state.user, names)

    def _must_be_readable(self, request: Request, stream: str) -> None:
        """Who may not see a stream is not told whether it exists."""
        if not NAME.fullmatch(stream) or stream not in self._readable(request, {stream}):
            raise UsageError(
                f"stream {stream} does not exist",
                next_step="run its DAG: a new stream appears after the first run",
                code=Code.UNKNOWN_NAME,
            )

    def _render(self, request: Request, template: str, **values: object) -> str:
        root = str(request.scope.get("root_path", ""))
        return render(template, root=root, base=self._host.base, **values)
