"""Where the next query of a life begins."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from millrace.domain.topics.offsets import TopicPartition
from millrace.runtime.stream.driver import Driver, _next_query

P0, P1 = (TopicPartition("t", "id", number) for number in (0, 1))
MADE_AGAIN = TopicPartition("u", "another id", 0)


def test_it_names_partitions_that_were_made_meanwhile_and_puts_them_on_record_first() -> None:
    opened: list[tuple[int, Mapping[TopicPartition, int]]] = []
    driver: Any = Driver.__new__(Driver)
    driver._stream = SimpleNamespace(reads=("t", "u"))
    driver._runner = SimpleNamespace(positions={P0: 5, TopicPartition("u", "id of u", 0): 7})
    driver._life = SimpleNamespace(log=SimpleNamespace(partitions=lambda reads: [P0, P1, MADE_AGAIN]))
    driver._sink = SimpleNamespace(open_positions=lambda timeline, new: opened.append((timeline, new)))
    batches: Any = SimpleNamespace(timeline=3)
    assert driver._with_new_partitions(batches) == {P0: 5, TopicPartition("u", "id of u", 0): 7, P1: 0}
    assert opened == [(3, {P1: 0})]
    driver._life.log.partitions = lambda reads: [P0]
    driver._with_new_partitions(batches)
    assert len(opened) == 1


def test_each_query_has_a_checkpoint_of_its_own() -> None:
    first = Path("scratch/checkpoint/offsets")
    second = _next_query(first)
    assert second == Path("scratch/checkpoint-2/offsets")
    assert _next_query(second) == Path("scratch/checkpoint-3/offsets")
