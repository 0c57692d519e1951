"""What the pages need of the server that carries them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from starlette.requests import Request

from millrace.ports.platform import Platform


class StrangerError(Exception):
    """Who asks is not logged in, or no longer."""


@dataclass(frozen=True, slots=True)
class StreamDags:
    """The ids of the DAGs about one stream."""

    watch: str
    operate: str
    rewind: str
    topics: str


class Host(Protocol):
    """The server that carries the pages: it knows its users and what they may see.

    Its blocking methods are called in a thread of the pages' own.
    """

    @property
    def base(self) -> str:
        """The path under which the host's own pages are, without a slash at its end; empty for the root."""
        ...

    async def user(self, request: Request) -> object:
        """Who asks.

        Raises:
            StrangerError: nobody the host knows.
        """
        ...

    def readable(self, user: object, names: set[str]) -> set[str]:
        """Those of these streams and pipelines, PIPELINE.STREAM and PIPELINE, that the user may see. Blocks."""
        ...

    def dags(self, stream: str) -> StreamDags:
        """The DAGs about a stream, or about a pipeline's topics."""
        ...

    def platform(self) -> Platform:
        """The adapters. Blocks at the first call."""
        ...

    def forget(self) -> None:
        """Look connections up anew at the next use: one that did not answer may have moved."""
        ...

    def last_words(self, stream: str, epoch: int) -> str:
        """What the driver of an epoch said last, its secrets masked. Blocks."""
        ...
