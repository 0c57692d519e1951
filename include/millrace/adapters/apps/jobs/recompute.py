"""A sample made again by Spark in a process of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from millrace.adapters.apps.jobs.spark import Progress, SparkJob
from millrace.domain.quality.recompute import Recomputed
from millrace.domain.topics.offsets import OffsetRange

MODULE = "millrace.runtime.jobs.recompute"


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be made again: a stream, PIPELINE.NAME, and offsets of its topics as they are now."""

    stream: str
    ranges: tuple[OffsetRange, ...]


REQUESTS = msgspec.json.Decoder(Request)
_ANSWERS = msgspec.json.Decoder(Recomputed)


class RecomputeJob(SparkJob):
    """Has rows made again and compared."""

    module = MODULE

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
            UnreachableError, DeclarationError, PartFailedError: as every job.
        """
        return _ANSWERS.decode(self._ask(stream, Request(stream, tuple(ranges)), connections, progress))
