"""A pool without threads: what is asked of it is done at once, so that a story told twice goes the same way."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class SameThread(Executor):
    """In place of a pool of threads, where no server is waited for."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """As many threads as anybody likes, under any name."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Do it now; what it raises is raised by whoever takes the result."""
        answer: Future[Any] = Future()
        try:
            answer.set_result(work(*args, **kwargs))
        except Exception as error:
            answer.set_exception(error)
        return answer
