"""Rows of a stream made again from a sample of its records, and what differs from what is stored."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from millrace.domain.declaration.pipeline import Pipeline, Stream
from millrace.domain.quality.recompute import MOST_SAMPLED, Recomputed, readable, sampled
from millrace.domain.sinks.capabilities import Capability
from millrace.errors import UsageError
from millrace.usecases.sinks.required import table_of

if TYPE_CHECKING:
    from millrace.ports.platform import Platform

Progress = Callable[[int, int], object]
"""Told how many offsets are done, and of how many."""


def recompute(
    platform: Platform,
    pipeline: Pipeline,
    stream: Stream,
    *,
    sample: int,
    seed: int,
    progress: Progress = lambda done, total: None,
) -> Recomputed:
    """Read records again that a stream has worked on, make their rows with the app as it is now, and compare.

    Only what the topics hold now can be read: what expired, or is of a former topic of the same name, is left out.
    Nothing that is stored changes.

    Args:
        platform: the adapters.
        pipeline: whose stream it is.
        stream: whose rows they are.
        sample: about how many offsets; all there are, where there are no more.
        seed: which ones: the same ones for the same seed, while log and record of work are the same.
        progress: told how it gets on.

    Raises:
        UsageError: the sample is none, or too large.
        RefusedError: its sink lacks the capability.
        UnreachableError: Kafka or the sink does not answer.
        DeclarationError: the app or its table is not what it has to be.
        PartFailedError: Spark ended without an answer.
    """
    if not 1 <= sample <= MOST_SAMPLED:
        raise UsageError(f"{sample:,} is not a sample size: give 1 to {MOST_SAMPLED:,} offsets")
    sink = table_of(stream, Capability.RECOMPUTE)
    work, _ = platform.sinks.tables(sink.connection).work(stream.qualified_name)
    log = platform.kafka.logs(pipeline.kafka)
    ranges = sampled(readable(work, log.bounds(log.partitions(stream.reads))), sample, Random(seed))
    if not ranges:
        return Recomputed()
    total = sum(map(len, ranges))
    return platform.apps.recomputation().run(
        stream.qualified_name,
        ranges,
        (pipeline.kafka, *stream.connections),
        lambda done: progress(done, total),
    )
