"""A server that speaks TLS with a certificate of a test's own, and passes on what it hears to one that does not."""

from __future__ import annotations

import select
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field

from support.stack.certificates import Certificates
from support.waiting import Deadline

_SSL_REQUEST_BYTES = 8  # what PostgreSQL's client asks before it begins TLS; `S` says yes


@dataclass
class TlsFront:
    """The server.

    Attributes:
        port: on 127.0.0.1.
        refused: why handshakes failed, in OpenSSL's words.
        users: the common names of client certificates; None for a client without one.
        heard: set when a client has said something behind its handshake.
    """

    port: int
    refused: list[str] = field(default_factory=list)
    users: list[str | None] = field(default_factory=list)
    heard: threading.Event = field(default_factory=threading.Event)


@contextmanager
def tls_front(
    made: Certificates, target: tuple[str, int], *, asks_first: bool = False, wants_certificate: bool = False
) -> Iterator[TlsFront]:
    """Listen until the test is done.

    Args:
        made: the server's certificate, and the authority of clients.
        target: where it is all passed on to.
        asks_first: whether clients ask for TLS first, as PostgreSQL's do.
        wants_certificate: whether a client has to have a certificate of the authority.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.certificate, made.key)
    if wants_certificate:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(made.authority)
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        front = TlsFront(listener.getsockname()[1])

        def serve() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:  # the test is done
                    return
                threading.Thread(
                    target=_pass_on, args=(front, context, client, target, asks_first), daemon=True
                ).start()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield front
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(Deadline.THREAD.seconds)


def _pass_on(
    front: TlsFront, context: ssl.SSLContext, client: socket.socket, target: tuple[str, int], asks_first: bool
) -> None:
    client.settimeout(Deadline.THREAD.seconds)
    with closing(client), suppress(OSError):
        if asks_first:
            client.recv(_SSL_REQUEST_BYTES, socket.MSG_WAITALL)
            client.sendall(b"S")
        try:
            spoken = context.wrap_socket(client, server_side=True)
        except ssl.SSLError as error:
            front.refused.append(str(error))
            return
        front.users.append(_common_name(spoken))
        with closing(spoken), closing(socket.create_connection(target)) as server:
            _pump(front, spoken, server)


def _common_name(spoken: ssl.SSLSocket) -> str | None:
    subject = (spoken.getpeercert() or {}).get("subject", ())
    names = [value for part in subject for key, value in part if key == "commonName"]
    return str(names[0]) if names else None


def _pump(front: TlsFront, client: ssl.SSLSocket, server: socket.socket) -> None:
    while True:
        ready = [client] if client.pending() else select.select([client, server], [], [])[0]
        for one in ready:
            data = one.recv(65536)
            if not data:
                return
            if one is client:
                front.heard.set()
            (server if one is client else client).sendall(data)
