"""Many lives of one stream: a timeline is opened by a rewind that was asked for, once, and by nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.domain.groups import CommitMetadata, Committed
from millrace.domain.offsets import TopicPartition
from millrace.domain.position import LogBounds, OpenTimeline, Refuse, Wishes, WorkRecord, open_at

STREAM = "shop.purchases"
PARTITIONS = [TopicPartition("shop.purchases", "id-one", number) for number in range(3)]
END = 100
LOG = dict.fromkeys(PARTITIONS, LogBounds(0, END))

partitions = st.sampled_from(PARTITIONS)
offsets = st.integers(0, END)
rewinds = st.tuples(st.just("rewind"), partitions, offsets)
batches = st.tuples(st.just("batch"), st.lists(st.integers(0, 20), min_size=3, max_size=3), st.booleans())
lives = st.tuples(st.just("life"), st.sampled_from(["to its end", "record", "nothing"]), st.lists(batches, max_size=3))


@dataclass
class World:
    """What sink and group hold, and what an operator is owed."""

    epoch: int = 0
    timelines: int = 0
    record: dict[TopicPartition, int] = field(default_factory=dict)
    group: dict[TopicPartition, Committed] = field(default_factory=dict)
    asked: dict[TopicPartition, int] = field(default_factory=dict)

    def rewind(self, partition: TopicPartition, offset: int) -> None:
        """By a stock tool, of a stopped stream."""
        self.group[partition] = Committed(offset)
        self.asked.pop(partition, None)
        if self.record and offset != self.record[partition]:
            self.asked[partition] = offset

    def live(self, ends: str, batches: list[tuple[str, list[int], bool]]) -> None:
        """Start, and be gone after `nothing`, after the positions are on record, or after some batches."""
        self.epoch += 1
        opening = self._open()
        positions = {partition: position.offset for partition, position in opening.positions.items()}
        if ends == "nothing":
            return
        self.record, self.asked = dict(positions), {}
        self.timelines = opening.timeline
        if ends == "record":
            return
        self._commit()
        for _, steps, committed in batches:
            for partition, step in zip(PARTITIONS, steps, strict=True):
                self.record[partition] = min(END, self.record[partition] + step)
            if not committed:
                return  # it is gone between sink and group
            self._commit()

    def _open(self):
        group = {(partition.topic, partition.partition): committed for partition, committed in self.group.items()}
        opening = open_at(STREAM, self.epoch, WorkRecord(self.timelines, self.record), group, LOG, Wishes())
        assert not isinstance(opening, Refuse), opening
        first = not self.record
        assert isinstance(opening, OpenTimeline) == (first or bool(self.asked)), (opening, self)
        if not first:
            owed = self.record | self.asked
            assert {partition: position.offset for partition, position in opening.positions.items()} == owed
        return opening

    def _commit(self) -> None:
        for partition, offset in self.record.items():
            metadata = CommitMetadata(STREAM, partition.topic_id, self.timelines, self.epoch, offset)
            self.group[partition] = Committed(offset, metadata.encode())


@settings(max_examples=300)
@given(st.lists(rewinds | lives, min_size=1, max_size=12))
def test_every_life_begins_where_the_last_one_ended_or_where_an_operator_put_it(events) -> None:
    world = World()
    for what, *details in events:
        if what == "rewind":
            world.rewind(*details)
        else:
            world.live(*details)
