"""A stream that is stopped under load finishes its batch, and nothing of what it has done is done again."""

from __future__ import annotations

import re
from typing import Any

import pytest

from millrace.adapters.sinks.s3.reading import DatasetReader
from millrace.domain.streams.supervision import ExitReason
from millrace.usecases.streams import supervise as streams
from support.drills.crashes import ACTOR, Drill, Order
from support.drills.dataset_project import DatasetDrill, DatasetProject
from support.drills.kafka_project import KafkaDrill, KafkaProject
from support.drills.points import BEFORE_SINK, DRAIN
from support.streams.project import committed

pytestmark = pytest.mark.full
BATCH = 1_500
AHEAD = 20


@pytest.mark.parametrize("mode", ["mode: append", "mode: upsert, key: [id]"], ids=["append", "upsert"])
def test_rows_of_a_table_stay_as_they_were_written(make_drill: Any, mode: str) -> None:
    drill: Drill = make_drill(AHEAD * BATCH, batch=BATCH, mode=mode)
    rows = f"SELECT _partition, _offset, xmin::text FROM {drill.project.name}.rows"
    stopped_in_a_batch(drill)
    before = set(drill.project.query(rows))
    begins_where_it_stopped(drill)
    assert before
    assert before < set(drill.project.query(rows))


def test_no_record_is_written_to_kafka_twice(make_drill: Any) -> None:
    drill: KafkaDrill = make_drill(AHEAD * BATCH, KafkaProject, KafkaDrill, batch=BATCH)
    stopped_in_a_batch(drill)
    begins_where_it_stopped(drill)
    assert drill.project.written()[1] == 0


def test_no_object_of_a_dataset_is_written_again(make_drill: Any) -> None:
    drill: DatasetDrill = make_drill(AHEAD * BATCH, DatasetProject, DatasetDrill, batch=BATCH)
    stopped_in_a_batch(drill)
    begins_where_it_stopped(drill)
    snapshot = DatasetReader(drill.project.store, drill.project.dataset).snapshot()
    assert snapshot is not None
    named = {entry.key for entry in snapshot.files}
    there = {found.key for found in drill.project.store.list(f"{drill.project.dataset.prefix}/data/")}
    assert there == named


def stopped_in_a_batch(drill: Drill) -> None:
    """Stop it as an operator does while a batch is in flight that is not on record yet; that batch is the last."""
    drill.start()
    held, draining = Order(BEFORE_SINK, passing=2), Order(DRAIN)
    drill.order(held)
    drill.reached(held)
    before, epoch = drill.done(), drill.running_alone().epoch
    drill.order(draining)
    streams.stop(drill.platform, drill.project.stream, ACTOR, "a drill: stopped under load")
    drill.reached(draining)
    drill.order()
    drill.go_on(draining)
    drill.go_on(held)
    drill.eventually(lambda: not drill.apps(), what="the end of what was stopped")
    assert drill.exit_code(epoch) == ExitReason.STOPPED
    assert before < drill.done() < AHEAD * BATCH, "it was stopped before or after its load: this drill shows nothing"
    assert committed(drill.project) == drill.project.record_of_work()
    assert drill.rows_against_record() == []


def begins_where_it_stopped(drill: Drill) -> None:
    """Start it again, and let it do the rest."""
    stopped = drill.project.record_of_work()
    drill.start()
    drill.must_be_complete()
    folder = drill.project.root / ".millrace" / "streams" / drill.project.stream
    log = (folder / str(drill.running_alone().epoch) / "driver.log").read_text(errors="replace")
    begun = re.findall(r"event=begins .*partition=\S+/(\d+) offset=(\d+)", log)
    assert {int(partition): int(offset) for partition, offset in begun} == stopped
