"""What is committed to a group: whose it says it is, and in which parts."""

from __future__ import annotations

import pytest

from millrace.domain.groups.commits import CommitMetadata, Committed, in_parts, stream_commits
from millrace.domain.topics.offsets import TopicPartition

GROUP = "millrace.shop.backup"
BROKERS_BATCH_BYTES = 1024 * 1024
BROKERS_METADATA_BYTES = 4096


def commits_of(count: int, metadata: str) -> dict[TopicPartition, Committed]:
    return {TopicPartition("shop.purchases", "id", number): Committed(number, metadata) for number in range(count)}


def test_a_streams_commits_name_stream_epoch_timeline_and_their_own_offset() -> None:
    first, second = TopicPartition("shop.purchases", "id-one", 0), TopicPartition("shop.returns", "id-two", 3)
    found = stream_commits("shop.s", 7, 2, {first: 10, second: 20})
    assert {partition: (entry.offset, CommitMetadata.decode(entry.metadata)) for partition, entry in found.items()} == {
        first: (10, CommitMetadata("shop.s", "id-one", 2, 7, 10)),
        second: (20, CommitMetadata("shop.s", "id-two", 2, 7, 20)),
    }


@pytest.mark.parametrize(
    "metadata", ["", "m" * 200, "m" * BROKERS_METADATA_BYTES, "\u20ac" * (BROKERS_METADATA_BYTES // 3)]
)
@pytest.mark.parametrize("count", [0, 1, 10_000])
def test_parts_are_all_commits_once_in_order_and_fit_the_brokers_batch(count: int, metadata: str) -> None:
    commits = commits_of(count, metadata)
    parts = list(in_parts(GROUP, commits))
    assert [item for part in parts for item in part.items()] == list(commits.items())
    assert all(parts)
    assert all(
        sum(len(entry.metadata.encode()) + len(GROUP) + len(p.topic) for p, entry in part.items()) < BROKERS_BATCH_BYTES
        for part in parts
    )


def test_what_a_stream_of_some_hundred_partitions_commits_is_one_part() -> None:
    positions = {TopicPartition("shop.purchases", "i" * 22, number): 10**12 for number in range(500)}
    assert len(list(in_parts(GROUP, stream_commits("shop.purchases", 10**6, 100, positions)))) == 1
