"""Puts a fault into a function of the package, by its source; every caller runs it until that is undone."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType


@contextmanager
def changed(function: FunctionType, old: str, new: str) -> Iterator[None]:
    """`function` with one place of its source replaced, which must occur exactly once."""
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(old) == 1, f"{function.__qualname__} has {source.count(old)} times `{old}`"
    module = sys.modules[function.__module__]
    scope: dict[str, FunctionType] = {}
    exec(
        compile("from __future__ import annotations\n" + source.replace(old, new), module.__file__ or "", "exec"),
        module.__dict__,
        scope,
    )
    kept = function.__code__
    made = scope[function.__name__]
    function.__code__ = getattr(made, "__func__", made).__code__  # a class method is wrapped
    try:
        yield
    finally:
        function.__code__ = kept
