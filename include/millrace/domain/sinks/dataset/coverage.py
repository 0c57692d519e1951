"""Which rows of a dataset count.

A row of one timeline counts until a newer one has done its offset again. So nothing is ever taken away: what a rewind
reads again is covered, offset by offset, as far as it has come.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from millrace.domain.archive.proof.spans import Spans
from millrace.domain.sinks.dataset.manifest import DataObject, Held
from millrace.domain.topics.offsets import TopicPartition


@dataclass(frozen=True, slots=True, order=True)
class Covered:
    """Rows of an object that do not count any more: those of the offsets `first <= offset < next`."""

    topic_id: str
    partition: int
    first: int
    next: int


class Coverage:
    """What newer timelines have done again.

    Args:
        timelines: of each, the offsets `first <= offset < next` that it has done of each partition.
    """

    def __init__(self, timelines: Mapping[int, Mapping[TopicPartition, tuple[int, int]]]) -> None:
        self._of: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
        for timeline in sorted(timelines, reverse=True):
            for partition, (first, next_) in timelines[timeline].items():
                place = partition.topic_id, partition.partition
                self._of.setdefault(place, []).append((timeline, first, next_))

    def rest(self, timeline: int, one: DataObject) -> tuple[Covered, ...] | None:
        """What of an object does not count any more; None where nothing of it counts.

        Args:
            timeline: the one it was written on.
            one: the object.
        """
        found: list[Covered] = []
        counts = False
        for held in one.held:
            spans = list(self._covered(timeline, held))
            counts = counts or spans != [(held.first, held.next)]
            found += [Covered(held.topic_id, held.partition, *span) for span in spans]
        return tuple(found) if counts else None

    def _covered(self, timeline: int, held: Held) -> Spans:
        spans = Spans()
        for newer, first, next_ in self._of.get((held.topic_id, held.partition), ()):
            if newer <= timeline:
                break
            spans.add(max(first, held.first), min(next_, held.next))
        return spans
