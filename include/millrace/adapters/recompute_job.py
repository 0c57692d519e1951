"""A sample made again by Spark in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import msgspec

from millrace.adapters.spark_job import LONGEST_SILENCE, Progress, SparkJob
from millrace.domain.offsets import OffsetRange
from millrace.domain.quality.recompute import Recomputed
from millrace.settings import Settings

MODULE = "millrace.runtime.recompute"


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be made again: a stream, PIPELINE.NAME, and offsets of its topics as they are now."""

    stream: str
    ranges: tuple[OffsetRange, ...]


REQUESTS = msgspec.json.Decoder(Request)
_ANSWERS = msgspec.json.Decoder(Recomputed)


class RecomputeJob:
    """Has rows made again and compared.

    Args:
        settings: the project's.
        command: what runs the module; default this Python.
        silence: how long the job may say nothing.
    """

    def __init__(
        self,
        settings: Settings,
        command: Sequence[str] = (sys.executable, "-m", MODULE),
        *,
        silence: timedelta = LONGEST_SILENCE,
    ) -> None:
        self._job = SparkJob(settings, command, silence=silence)

    def run(
        self, stream: str, ranges: Sequence[OffsetRange], connections: Sequence[str], progress: Progress
    ) -> Recomputed:
        """Make the rows of these ranges again and hold them against the stored ones.

        Args:
            stream: PIPELINE.NAME.
            ranges: offsets of its topics.
            connections: the Connections that the job may see.
            progress: told how many offsets are done.

        Raises:
            UnreachableError, DeclarationError, PartFailedError: as `SparkJob.run`.
        """
        return _ANSWERS.decode(self._job.run(stream, Request(stream, tuple(ranges)), connections, progress))
