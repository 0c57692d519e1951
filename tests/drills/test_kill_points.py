"""Everything that can be killed, at every point where it matters; afterwards each record is there once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from support.dataset_project import DatasetDrill, DatasetProject
from support.drills import SERVERS, SUPERVISOR, Drill, Order, dying_supervisor
from support.drills_points import AFTER_GROUP, AFTER_SINK, ALL, BEFORE_SINK, CLAIM, DRAIN, JVM, PYTHON
from support.drills_sampler import Sampler
from support.drills_supervisor import BEFORE_ANSWER, BEFORE_SUBMIT
from support.kafka_project import KafkaDrill, KafkaProject
from support.plain_table import table

POSTGRES, BROKER, STORE = "PostgreSQL", "broker", "object store"
BATCHES_AHEAD = 20

ONE_ROUND = (AFTER_SINK, JVM, None, None)
"""The rows are in the table, and the group has committed none of them."""
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


def keep_loaded(drill: Drill) -> None:
    """Produce more where the stream would come to the topic's end before the next kill is over."""
    end = sum(drill.project.ends().values())
    if end - drill.done() < BATCHES_AHEAD * drill.project.batch:
        drill.project.produce(BATCHES_AHEAD * drill.project.batch, first=end)


def one_round(drill: Drill, point: str, victim: str, start_point: str | None, start_victim: str | None) -> None:
    drill.forget_failures()
    claiming = Order(CLAIM)
    if point == DRAIN:
        blows = [drill.hit_while_draining(victim)]
        drill.eventually(lambda: not drill.apps(), what="the end of what was stopping")
        drill.order(*([claiming] if start_point == CLAIM else []))
        drill.forget_failures()
    else:
        blows = [drill.hit(point, victim, *([claiming] if start_point == CLAIM else []))]
    if start_point == CLAIM:
        blows.append(drill.hit_while_claiming(claiming, str(start_victim)))
    elif start_point:
        blows.append(dying_supervisor(drill.project, start_point))
    drill.recovered(blows)


def dealt(drill: Drill, rounds: Sequence[Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Deal all blows, print what they did, and hold that no record was lost or doubled by any of them."""
    try:
        drill.start()
        drill.eventually(drill.running, what="the first start")
        for one in rounds:
            keep_loaded(drill)
            one_round(drill, *one)
        drill.must_be_complete()
    finally:
        report(drill, capsys)
    assert {hit.result for hit in drill.hits} == {"ok"}


def report(drill: Drill, capsys: pytest.CaptureFixture[str], more: str = "") -> None:
    """Print what the blows did."""
    with capsys.disabled():
        rows = [
            (h.point, h.victim, h.batch, h.running and f"{h.running:.1f}", f"{h.batch_after:.1f}", h.result)
            for h in drill.hits
        ]
        columns = ("point", "victim", "batch in flight", "s to running", "s to next batch", "result")
        print(table(f"kills of a loaded stream, {len(rows)} hits", columns, rows))
        print(more)


def tried(drill: Drill, rounds: Sequence[Any], capsys: pytest.CaptureFixture[str]) -> None:
    """The same, while group and record of work are looked at five times a second."""
    sampler = Sampler(drill.project)
    try:
        drill.start()
        drill.eventually(drill.running, what="the first start")
        with sampler:
            for one in rounds:
                keep_loaded(drill)
                one_round(drill, *one)
            sampler.long_enough(drill)
        drill.must_be_complete()
    finally:
        report(drill, capsys, sampler.report())
    assert {hit.result for hit in drill.hits} == {"ok"}
    sampler.must_hold()


def test_nothing_is_lost_or_doubled_when_the_driver_is_killed(
    make_drill: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    drill: Drill = make_drill(BATCHES_AHEAD * 800, batch=800)
    tried(drill, [ONE_ROUND], capsys)
    assert [hit.victim for hit in drill.hits] == [JVM]


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mode", ["mode: append", "mode: upsert, key: [id]"], ids=["append", "upsert"])
def test_nothing_is_lost_or_doubled_whatever_is_killed_wherever(
    make_drill: Any, mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each record has a key of its own, so what is upserted has to be there once as well."""
    drill: Drill = make_drill(BATCHES_AHEAD * 1_500, batch=1_500, mode=mode)
    tried(drill, EVERYTHING, capsys)
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
    dealt(drill, EVERYTHING, capsys)
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
    dealt(drill, [*EVERYTHING, *((point, STORE, None, None) for point in STARTS)], capsys)
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
