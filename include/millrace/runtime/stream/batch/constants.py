"""The constants of a stream: what its batches have in common, whatever engine runs them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame

from millrace.domain.declaration.pipeline import Stream, Topic
from millrace.runtime.stream.source import decoded
from millrace.runtime.stream.transform import Transform


@dataclass(frozen=True, slots=True)
class StreamConstants:
    """The values that stay the same from batch to batch in one life of a driver.

    Attributes:
        stream: the stream, as declared.
        topics: the topics that it reads, by name.
        transform: makes rows of their records.
        columns: the columns of the transform's output, as the sink has prepared for them.
        epoch: the driver's epoch.
        timeline: the timeline that the driver writes to.
        in_order: True where the transform hands on the rows of each source partition as they come.
    """

    stream: Stream
    topics: Mapping[str, Topic]
    transform: Transform
    columns: tuple[str, ...]
    epoch: int
    timeline: int
    in_order: bool

    def decode(self, by_topic: Mapping[str, DataFrame], ids: Mapping[str, str]) -> dict[str, DataFrame]:
        """Return the decoded records of each topic that the stream reads (`runtime.stream.source.decoded`).

        Args:
            by_topic: the raw records, by topic.
            ids: the id of each topic.
        """
        return {name: decoded(by_topic[name], self.topics[name], ids[name]) for name in self.stream.reads}
