"""Everything that can be killed, at every point where it matters; afterwards each record is there once.

All of it is of the second tier. The first tier kills a driver once, in `integration/rewind/test_tool_and_plan.py`.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from support.drills.crashes import SERVERS, SUPERVISOR, Drill
from support.drills.dataset_project import DatasetDrill, DatasetProject
from support.drills.dying_supervisor import BEFORE_ANSWER, BEFORE_SUBMIT
from support.drills.kafka_project import KafkaDrill, KafkaProject
from support.drills.points import AFTER_GROUP, AFTER_SINK, ALL, BEFORE_SINK, CLAIM, DRAIN, JVM, PYTHON
from support.drills.rounds import BATCHES_AHEAD, deal
from support.drills.sampler import Sampler

POSTGRES, BROKER, STORE = "PostgreSQL", "broker", "object store"
# Each round: a kill in a running stream, then one while it starts again.
STARTS = {
    BEFORE_SINK: (CLAIM, PYTHON),
    AFTER_SINK: (BEFORE_SUBMIT, SUPERVISOR),
    AFTER_GROUP: (BEFORE_ANSWER, SUPERVISOR),
    DRAIN: (None, None),
}
EVERYTHING = [
    (point, victim, *(start if victim not in SERVERS else (None, None)))  # a driver may well outlive its servers
    for victim in (JVM, PYTHON, ALL, POSTGRES, BROKER)
    for point, start in STARTS.items()
]
"""Each point of a batch with each victim, and each point of a start three times."""


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mode", ["mode: append", "mode: upsert, key: [id]"], ids=["append", "upsert"])
def test_nothing_is_lost_or_doubled_whatever_is_killed_wherever(
    make_drill: Any, mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each record has a key of its own, so what is upserted has to be there once as well."""
    drill: Drill = make_drill(BATCHES_AHEAD * 1_500, batch=1_500, mode=mode)
    deal(drill, EVERYTHING, capsys, sampler=Sampler(drill.project))
    points, victims = Counter(hit.point for hit in drill.hits), Counter(hit.victim for hit in drill.hits)
    assert set(points) == {BEFORE_SINK, AFTER_SINK, AFTER_GROUP, DRAIN, CLAIM, BEFORE_SUBMIT, BEFORE_ANSWER}
    assert min(points.values()) >= 3
    assert min(victims.values()) >= 3


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_of_what_is_written_to_kafka_nothing_is_lost_and_a_batch_a_try_comes_twice(
    make_drill: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """None of it is new twice to who reads with our reader. The database is beside the stream, not on its way."""
    batch = 1_500
    drill: KafkaDrill = make_drill(BATCHES_AHEAD * batch, KafkaProject, KafkaDrill, batch=batch)
    deal(drill, EVERYTHING, capsys)
    _, again = drill.project.written()
    with capsys.disabled():
        print(f"{again} rows were written again")
    assert 0 < again <= batch * len(drill.hits)
    assert min(Counter(hit.point for hit in drill.hits).values()) >= 3
    assert min(Counter(hit.victim for hit in drill.hits).values()) >= 3


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_of_a_dataset_nothing_is_lost_or_doubled_whatever_is_killed_wherever(
    make_drill: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The store is on its way, the database beside it; who is stopped meanwhile writes nothing when it wakes."""
    drill: DatasetDrill = make_drill(BATCHES_AHEAD * 1_500, DatasetProject, DatasetDrill, batch=1_500)
    deal(drill, [*EVERYTHING, *((point, STORE, None, None) for point in STARTS)], capsys)
    assert min(Counter(hit.point for hit in drill.hits).values()) >= 3
    assert min(Counter(hit.victim for hit in drill.hits).values()) >= 3


@pytest.mark.full
def test_a_stopped_driver_adds_nothing_to_a_dataset_that_was_taken_over(make_drill: Any) -> None:
    old: DatasetDrill = make_drill(3_000, DatasetProject, DatasetDrill)
    new: DatasetDrill = make_drill.second(old)
    old.start()
    old.eventually(old.all_done, what="the first records")
    for _ in range(3):
        assert old.stopped_and_woken(new) == []
        old, new = new, old
    assert old.project.sink_sources() == old.project.topic_sources()
