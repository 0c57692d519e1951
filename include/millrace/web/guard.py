"""Authentication around the whole app: no route, file or error page of it answers a stranger."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from millrace.web.host import Host, StrangerError

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """ASGI middleware: asks the host who it is before anything else is looked at, and keeps the answer in `state.user`.

    Guarantees: whatever the app has or gets, a stranger gets 401 from all of it, also from what is not there.
    """

    def __init__(self, app: ASGIApp, host: Host) -> None:
        self._app = app
        self._host = host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let through whom the host knows."""
        if scope["type"] != "http":  # there are no others, and none would be guarded
            raise RuntimeError(f"the pages answer http only, not {scope['type']}")
        request = Request(scope, receive)
        try:
            request.state.user = await self._host.user(request)
        except StrangerError:
            refused = PlainTextResponse("Log in to Airflow first.", 401, HEADERS)
            await refused(scope, receive, send)
            return
        await self._app(scope, receive, send)
