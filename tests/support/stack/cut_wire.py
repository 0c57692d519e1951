"""A wire to a server of this machine that a test cuts, and mends again."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

MOST_CONNECTIONS = 32
BLOCK_BYTES = 65_536
JOIN_SECONDS = 10


@dataclass
class Wire:
    """A port that leads to a server.

    Attributes:
        port: where clients connect to.
        connected: how many connections were let through.
    """

    target: tuple[str, int]
    port: int = 0
    connected: int = 0
    is_cut: bool = False
    is_silent: bool = False
    _open: set[socket.socket] = field(default_factory=set)

    def cut(self) -> None:
        """Close every connection, and each new one at once."""
        self.is_cut = True
        self.end()

    def silence(self) -> None:
        """Let connections be, and hand nothing on: as a server that was stopped."""
        self.is_silent = True

    def mend(self) -> None:
        """Let everything through again; connections that met the silence end."""
        self.is_cut = self.is_silent = False
        self.end()

    def end(self) -> None:
        """Close every connection."""
        for each in list(self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def carry(self, client: socket.socket) -> None:
        """Hand on what comes from either side until one of them ends."""
        with client, socket.create_connection(self.target) as server:
            self._open |= {client, server}
            self.connected += 1
            back = threading.Thread(target=self._pump, args=(server, client), daemon=True)
            back.start()
            self._pump(client, server)
            back.join(JOIN_SECONDS)
            self._open -= {client, server}

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(BLOCK_BYTES):
                if not self.is_silent:
                    target.sendall(data)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def wire(host: str, port: int) -> Iterator[Wire]:
    """A wire on a free port of this machine, until the block ends."""
    found = Wire((host, port))
    with socket.create_server(("127.0.0.1", 0), backlog=MOST_CONNECTIONS) as listener:
        found.port = listener.getsockname()[1]
        room = threading.BoundedSemaphore(MOST_CONNECTIONS)

        def carry(client: socket.socket) -> None:
            try:
                with contextlib.suppress(OSError):
                    found.carry(client)
            finally:
                room.release()

        def accept() -> None:
            with contextlib.suppress(OSError):  # the listener was closed
                while True:
                    client, _ = listener.accept()
                    if found.is_cut or not room.acquire(blocking=False):
                        client.close()
                        continue
                    threading.Thread(target=carry, args=(client,), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield found
        finally:
            found.end()
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
    thread.join(JOIN_SECONDS)
