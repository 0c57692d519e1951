"""The verdict on the rows of the example's table, in a line for `up`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from millrace.domain.declaration.pipeline import Pipeline, Stream
from millrace.domain.quality.ranges import gained
from millrace.domain.quality.results import QualityCheck, Verdict
from millrace.usecases.quality.check import check_on

if TYPE_CHECKING:
    from millrace.ports.platform import Platform

ACTOR = "up"


@dataclass(frozen=True, slots=True)
class TableVerdict:
    """A verdict in a line; `faults` are the rules that turn it red, none where it is not."""

    line: str
    faults: tuple[str, ...] = ()


def verdict_on(platform: Platform, pipeline: Pipeline, stream: Stream) -> TableVerdict | None:
    """What the newest check of the rows found; they are checked now where none has seen them all. None: nobody asks.

    Raises:
        UnreachableError: sink or control database do not answer.
    """
    if stream.quality is None:
        return None
    found = _seen(platform, stream) or check_on(platform, pipeline, stream, actor=ACTOR)[-1].check
    faults = tuple(f"quality: {result}" for result in found.red)
    return TableVerdict(str(found), (f"quality: {found.problem}",) if found.problem else faults)


def _seen(platform: Platform, stream: Stream) -> QualityCheck | None:
    """The newest check that saw rows, where it passed and nothing came since the last look."""
    history = platform.control.quality.history(stream.qualified_name)
    connection = stream.quality.connection if stream.quality else None
    work, _ = platform.sinks.tables(connection or stream.sink.connection).work(stream.qualified_name)
    if not history or gained(history[0].reached, work):
        return None
    newest = next((one for one in history if one.verdict is not Verdict.EMPTY), None)
    return newest if newest is not None and newest.verdict is Verdict.PASSED else None
