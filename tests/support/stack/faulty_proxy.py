"""A proxy before the object store that hands requests on unchanged and does, on demand, what networks and stores do.

Requests are signed, the Host header too, so they are never changed: where a store must seem to ignore a condition or
a range, the proxy acts with a client of its own. Every fault is counted when it happens.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email.message import Message
from enum import StrEnum
from functools import lru_cache
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import boto3
from botocore.config import Config

from millrace.settings import S3Settings

MOST_CONNECTIONS = 64
IDLE_SECONDS = 30  # a connection on which nothing comes ends, and its thread with it
HELD_SECONDS = 1  # that a store which looks first and writes then waits for a second writer


class Fault(StrEnum):
    """What happens to a request."""

    ANSWERED = "answered"  # by the proxy, with a status and a code; the store never sees it
    RESET = "reset before the store saw it"
    LOST = "carried out, and the answer lost"
    RESET_IN_BODY = "reset in the middle of the answer"
    CUT_OFF = "an answer that ends too early, as if that were all"
    NO_BODY = "the head of an answer, and an end"
    CONDITION_IGNORED = "written over what is there"
    RANGE_IGNORED = "the whole object instead of a range"
    LOOKED_FIRST = "written by a store that looks first, and writes then"
    NO_LENGTH = "ends with the connection, and too early"
    CHUNKS_CUT_OFF = "in chunks, and without the last one"


@dataclass
class Planned:
    """A fault that is to happen to the next requests of one operation, once `spared` of them have passed."""

    fault: Fault
    operation: str
    left: int
    status: int = 0
    body: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    spared: int = 0


@dataclass
class FaultyProxy:
    """The script of faults, and what became of it.

    Attributes:
        settings: how a client reaches the store through the proxy.
        injected: how often each fault happened, by fault and operation.
        requests: how many requests came, by operation.
        headers: those of the last request of each operation.
        disturbed: of five first tries of one operation the answer to the first is lost, that to the third cut off.
        watcher: told of each request, by operation, path, body and whether the store has carried it out: before it
            does, and before its answer goes out. As long as it does not return, neither happens.
    """

    settings: S3Settings
    own: Any
    planned: list[Planned] = field(default_factory=list)
    injected: Counter[tuple[Fault, str]] = field(default_factory=Counter)
    requests: Counter[str] = field(default_factory=Counter)
    headers: dict[str, Message] = field(default_factory=dict)
    disturbed: bool = False
    watcher: Callable[[str, str, bytes, bool], object] = lambda *_: None
    _firsts: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _lookers: Counter[str] = field(default_factory=Counter)
    _looked: threading.Condition = field(default_factory=threading.Condition)

    def plan(self, fault: Fault, operation: str, times: int = 1, *, spared: int = 0) -> None:
        """Let a fault happen to the next requests of an operation, by S3's name of it, after some that are spared."""
        self.planned.append(Planned(fault, operation, times, spared=spared))

    def answer(
        self,
        operation: str,
        status: int,
        code: str,
        times: int = 1,
        body: str = "",
        headers: tuple[tuple[str, str], ...] = (),
        spared: int = 0,
    ) -> None:
        """Answer the next requests of an operation without asking the store, by this body or that of an error."""
        told = body or _error(code).decode()
        self.planned.append(Planned(Fault.ANSWERED, operation, times, status, told, headers, spared))

    def happened(self, fault: Fault, operation: str) -> int:
        """How often a fault was injected."""
        return self.injected[fault, operation]

    def content(self, key: str) -> bytes:
        """What the store has under a key, asked for without faults."""
        data: bytes = self.own.get_object(Bucket=self.settings.bucket, Key=key)["Body"].read()
        return data

    def forget(self) -> None:
        """Let no fault happen any more, and count anew."""
        with self._lock:
            self.planned.clear()
            for counter in (self.injected, self.requests, self._firsts):
                counter.clear()

    def look_first(self, bucket: str, key: str, data: bytes) -> bool:
        """Write as a store without atomic conditions does, once another one looked too; whether nothing was there."""
        if "Contents" in self.own.list_objects_v2(Bucket=bucket, Prefix=key):
            return False
        with self._looked:
            self._lookers[key] += 1
            self._looked.notify_all()
            self._looked.wait_for(lambda: self._lookers[key] > 1, HELD_SECONDS)
        self.own.put_object(Bucket=bucket, Key=key, Body=data)
        return True

    def next_fault(self, operation: str, is_first_try: bool) -> Planned | None:
        """What is to happen to a request that just came; counted as having happened."""
        with self._lock:
            self.requests[operation] += 1
            due = next((each for each in self.planned if each.operation == operation and each.left), None)
            if due is None and self.disturbed and is_first_try:
                self._firsts[operation] += 1
                kind = {1: Fault.LOST, 3: Fault.CUT_OFF}.get(self._firsts[operation] % 5)
                due = None if kind is None else Planned(kind, operation, 1)
            if due is not None and due.spared:
                due.spared -= 1
                return None
            if due is not None:
                due.left -= 1
                self.injected[due.fault, operation] += 1
            return due


def _error(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>injected</Message></Error>".encode()


def operation_of(method: str, target: str) -> str:
    """S3's name of what a request asks for."""
    address = urlsplit(target)
    query = parse_qs(address.query, keep_blank_values=True)
    on_bucket = "/" not in address.path.strip("/")
    if method == "GET" and on_bucket:
        return "ListMultipartUploads" if "uploads" in query else "ListObjectsV2"
    if method == "POST":
        return next(name for key, name in _POSTS.items() if key in query)
    if "uploadId" in query:
        return {"PUT": "UploadPart", "DELETE": "AbortMultipartUpload"}[method]
    return {"GET": "GetObject", "HEAD": "HeadObject", "PUT": "PutObject", "DELETE": "DeleteObject"}[method]


_POSTS = {"uploads": "CreateMultipartUpload", "uploadId": "CompleteMultipartUpload", "delete": "DeleteObjects"}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = IDLE_SECONDS
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.store: HTTPConnection | None = None

    def finish(self) -> None:
        with contextlib.suppress(OSError):
            super().finish()
        if self.store:
            self.store.close()

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def handle_one_request(self) -> None:
        with contextlib.suppress(OSError):
            return super().handle_one_request()
        self.close_connection = True

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        operation = operation_of(self.command, self.path)
        is_first_try = self.headers.get("amz-sdk-request", "").startswith("attempt=1;")
        self.server.proxy.headers[operation] = self.headers
        planned = self.server.proxy.next_fault(operation, is_first_try)
        fault = planned.fault if planned else None
        if fault is Fault.RESET:
            return self._reset()
        if planned and fault is Fault.ANSWERED:
            headers = [("Content-Type", "application/xml"), *planned.headers]
            return self._send(planned.status, headers, planned.body.encode())
        if fault is Fault.RANGE_IGNORED:
            whole = self.server.proxy.own.get_object(**self._object())["Body"].read()
            return self._send(200, [], whole)
        if fault is Fault.LOOKED_FIRST:
            bucket, key = self._object().values()
            wrote = self.server.proxy.look_first(bucket, key, body)
            return (
                self._send(200, [("ETag", '"it"')], b"") if wrote else self._send(412, [], _error("PreconditionFailed"))
            )
        if fault is Fault.CONDITION_IGNORED and self.headers.get("If-None-Match"):
            self.server.proxy.own.delete_object(**self._object())
        self.server.proxy.watcher(operation, self.path, body, False)
        status, headers, answer = self._ask(body)
        self.server.proxy.watcher(operation, self.path, body, True)
        if fault is Fault.LOST:
            return self._reset()
        if fault in (Fault.NO_LENGTH, Fault.CHUNKS_CUT_OFF):
            return self._send_open(status, headers, answer, in_chunks=fault is Fault.CHUNKS_CUT_OFF)
        if fault in (Fault.RESET_IN_BODY, Fault.CUT_OFF, Fault.NO_BODY):
            self._send(status, headers, answer, sent=0 if fault is Fault.NO_BODY else len(answer) // 2)
            return self._reset() if fault is Fault.RESET_IN_BODY else self._end()
        return self._send(status, headers, answer)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle

    def _object(self) -> dict[str, str]:
        _, bucket, key = unquote(urlsplit(self.path).path).split("/", 2)
        return {"Bucket": bucket, "Key": key}

    def _ask(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        """The store's own answer to the request as it came."""
        if self.store is None:
            self.store = HTTPConnection(*self.server.store, timeout=IDLE_SECONDS)
        self.store.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            self.store.putheader(name, value)
        self.store.endheaders(body or None)
        response: HTTPResponse = self.store.getresponse()
        answer = response.read()
        dropped = {"transfer-encoding", "connection"} | (set() if self.command == "HEAD" else {"content-length"})
        return response.status, [pair for pair in response.getheaders() if pair[0].lower() not in dropped], answer

    def _send(self, status: int, headers: list[tuple[str, str]], body: bytes, sent: int | None = None) -> None:
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        if not any(name.lower() == "content-length" for name, _ in headers) and status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body if sent is None else body[:sent])

    def _send_open(self, status: int, headers: list[tuple[str, str]], body: bytes, *, in_chunks: bool) -> None:
        """Half of an answer that does not say before how long it is; it ends with the connection."""
        half = body[: len(body) // 2]
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() != "content-length":
                self.send_header(name, value)
        self.send_header("Transfer-Encoding", "chunked") if in_chunks else self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(b"%x\r\n%b\r\n" % (len(half), half) if in_chunks else half)
        self._end()

    def _end(self) -> None:
        self.close_connection = True

    def _reset(self) -> None:
        """Close so that the other side sees a reset, not an end."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = MOST_CONNECTIONS

    def __init__(self, proxy: FaultyProxy, store: tuple[str, int]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.proxy = proxy
        self.store = store
        self._room = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._open: set[socket.socket] = set()

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._open.discard(request)
            self._room.release()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._room.acquire()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close without the goodbye of the base class: after SO_LINGER that is the reset."""
        request.close()

    def end(self) -> None:
        """Take no more connections, and end those that are open."""
        self.shutdown()
        self.server_close()
        for each in list(self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@lru_cache(maxsize=8)
def plain_client(settings: S3Settings) -> Any:
    """A client of boto3 that does what it is told, also what no archive should: write over objects, delete them.

    It is kept, for to make one takes longer than most of what it is asked for.
    """
    session = boto3.session.Session(settings.access_key, settings.secret_key, region_name=settings.region)
    path = Config(s3={"addressing_style": "path"}, proxies={})
    return session.client("s3", endpoint_url=settings.endpoint_url, config=path)


@contextlib.contextmanager
def faulty_proxy(settings: S3Settings) -> Iterator[FaultyProxy]:
    """A proxy before the store of these settings, on a free port of this machine, until the block ends."""
    store = urlsplit(settings.endpoint_url or "")
    assert store.hostname
    assert store.port
    proxy = FaultyProxy(settings, plain_client(settings))
    server = _Server(proxy, (store.hostname, store.port))
    proxy.settings = S3Settings(
        access_key=settings.access_key,
        secret_key=settings.secret_key,
        endpoint_url=f"http://127.0.0.1:{server.server_address[1]}",
        region=settings.region,
        bucket=settings.bucket,
    )
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        server.end()
        thread.join(IDLE_SECONDS)
