"""Many lives of one stream: a timeline is opened by a rewind that was asked for, once, and by nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.domain.groups.commits import CommitMetadata, Committed
from millrace.domain.streams.position import LogBounds, OpenTimeline, Refuse, Wishes, WorkRecord, open_at
from millrace.domain.topics.offsets import TopicPartition
from support.checks.tiers import examples

STREAM = "shop.purchases"
PARTITIONS = [TopicPartition("shop.purchases", "id-one", number) for number in range(3)]

partitions = st.sampled_from(PARTITIONS)
steps = st.lists(st.integers(0, 20), min_size=3, max_size=3)
rewinds = st.tuples(st.just("rewind"), partitions, st.integers(0, 200))
grown = st.tuples(st.just("grow"), steps)
expired = st.tuples(st.just("expire"), steps)
batches = st.tuples(steps, st.booleans())
lives = st.tuples(st.just("live"), st.sampled_from(["nothing", "record", "commit"]), st.lists(batches, max_size=3))


@dataclass
class Asked:
    """An operator's commit that lies in the group; `served`: the timeline it opened is on record."""

    offset: int
    served: bool = False


@dataclass
class World:
    """What log, sink and group hold, and what an operator is owed."""

    epoch: int = 0
    timeline: int = 0
    log: dict[TopicPartition, LogBounds] = field(default_factory=lambda: dict.fromkeys(PARTITIONS, LogBounds(20, 100)))
    first: dict[TopicPartition, int] = field(default_factory=dict)
    next: dict[TopicPartition, int] = field(default_factory=dict)
    group: dict[TopicPartition, Committed] = field(default_factory=dict)
    asked: dict[TopicPartition, Asked] = field(default_factory=dict)

    def rewind(self, partition: TopicPartition, offset: int) -> None:
        """By a stock tool, of a stopped stream."""
        self.group[partition] = Committed(offset)
        self.asked[partition] = Asked(offset)

    def grow(self, steps: list[int]) -> None:
        """Records come in."""
        for partition, step in zip(PARTITIONS, steps, strict=True):
            bounds = self.log[partition]
            self.log[partition] = LogBounds(bounds.start, bounds.end + step)

    def expire(self, steps: list[int]) -> None:
        """Old records go, but none that is still to be read."""
        for partition, step in zip(PARTITIONS, steps, strict=True):
            bounds = self.log[partition]
            start = min(bounds.start + step, self.next.get(partition, bounds.end))
            self.log[partition] = LogBounds(start, bounds.end)

    def live(self, until: str, batches: list[tuple[list[int], bool]]) -> None:
        """Start, and be gone after nothing, after the record, after the first commit, or in or after a batch."""
        self.epoch += 1
        self._open(on_record=until != "nothing")
        if until != "commit":
            return
        self._commit()
        for steps, committed in batches:
            for partition, step in zip(PARTITIONS, steps, strict=True):
                self.next[partition] = min(self.log[partition].end, self.next[partition] + step)
            if not committed:
                return
            self._commit()

    def _open(self, *, on_record: bool) -> None:
        record = WorkRecord(self.timeline, dict(self.next), dict(self.first))
        group = {(partition.topic, partition.partition): committed for partition, committed in self.group.items()}
        opening = open_at(STREAM, self.epoch, record, group, self.log, Wishes())
        assert not isinstance(opening, Refuse), opening
        found = {partition: position.offset for partition, position in opening.positions.items()}
        for partition, offset in found.items():
            assert offset in self._owed(partition), (partition, opening, self)
        opened = isinstance(opening, OpenTimeline)
        assert opened == (found != self.next), (opening, self)
        assert opening.timeline == self.timeline + opened
        if on_record:
            self.first = dict(found) if opened else self.first
            self.next, self.timeline = found, opening.timeline
            for asked in self.asked.values():
                asked.served = True

    def _owed(self, partition: TopicPartition) -> set[int]:
        """Where it may begin: one offset, but for two wishes that look alike."""
        bounds, asked, done = self.log[partition], self.asked.get(partition), self.next.get(partition)
        if asked is None:
            return {bounds.start if done is None else done}
        target = min(max(asked.offset, bounds.start), bounds.end)
        if done is None:
            return {target}
        idle = done == self.first[partition]
        if asked.offset > bounds.end and idle:
            return {done}  # the same as what opened this timeline at the end of then: nothing may be skipped
        if not asked.served:
            return {target}
        # Served at the end of then. Since the log has reached it, it looks like a new one, and names what to skip.
        return {target} if idle and done < asked.offset <= bounds.end else {done}

    def _commit(self) -> None:
        self.asked.clear()
        for partition, offset in self.next.items():
            metadata = CommitMetadata(STREAM, partition.topic_id, self.timeline, self.epoch, offset)
            self.group[partition] = Committed(offset, metadata.encode())


@settings(max_examples=examples(600))
@given(st.lists(rewinds | grown | expired | lives, min_size=1, max_size=15))
def test_every_life_begins_where_the_last_one_ended_or_where_an_operator_put_it(events) -> None:
    world = World()
    for what, *details in events:
        getattr(world, what)(*details)
