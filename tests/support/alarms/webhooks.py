"""A local HTTP server that keeps what is posted to it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from support.waiting import Deadline

IDLE_SECONDS = 10


@dataclass
class Webhook:
    """What was posted, and what is answered.

    Attributes:
        address: of the server, without a path.
        status: of each answer.
        posts: the path, the headers and the document of each request.
        silent: no answer is given as long as this is set.
    """

    address: str = ""
    status: int = 200
    posts: list[tuple[str, dict[str, str], dict[str, Any]]] = field(default_factory=list)
    silent: bool = False
    heard: threading.Event = field(default_factory=threading.Event)


@contextmanager
def webhook() -> Iterator[Webhook]:
    """A server on a free port of this machine, until the block ends."""
    found = Webhook()
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        timeout = IDLE_SECONDS

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.posts.append((self.path, dict(self.headers), json.loads(body)))
            found.heard.set()
            if found.silent:
                over.wait(Deadline.SERVER.seconds)
                return
            self.send_response(found.status)
            self.send_header("Location", found.address + "/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    found.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        server.shutdown()
        server.server_close()
        thread.join(IDLE_SECONDS)
