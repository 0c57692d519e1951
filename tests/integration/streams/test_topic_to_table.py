"""One stream, from topic to table: releases, refusals and losses. `quarantine/test_redrive.py` has its ordinary day."""

from __future__ import annotations

import pytest

from millrace.domain.streams.supervision import ExitReason
from millrace.embedded.stack import Stack
from support.streams.apps import App


@pytest.fixture
def servers(kafka: Stack, postgres: Stack) -> Stack:
    return postgres


def numbered(first: int, end: int) -> list[dict[str, object]]:
    return [{"id": number, "name": f"name {number}"} for number in range(first, end)]


@pytest.mark.full
def test_a_new_release_adds_its_column_and_what_was_written_before_stays(servers):
    app = App(servers)
    app.produce(numbered(0, 5))
    with app.running():
        app.until(lambda: len(app.rows()) == 5, "the rows of the first release")
    app.write_transform("""
        from pyspark.sql import functions as F

        def transform(inputs, tables):
            (frame,) = inputs.values()
            return frame.withColumn("twice", F.col("id") * 2)
    """)
    app.produce(numbered(400, 405))
    with app.running():
        app.until(lambda: app.rows("twice", where="id = 404") == [(808,)], "the new column")
    assert app.rows("DISTINCT twice", where="id < 400") == [(None,)]
    assert app.rows("DISTINCT _timeline") == [(1,)]


@pytest.mark.full
def test_a_stream_that_declares_fail_stops_at_a_bad_record_and_names_it(servers):
    app = App(servers, on_bad_record="fail")
    app.produce([*numbered(0, 5), b"nope"])
    code, log = app.ends()
    assert code == ExitReason.DATA_LOSS, log
    assert "on_bad_record: quarantine" in log
    assert app.rows() == []


@pytest.mark.full
def test_an_app_that_cannot_work_is_told_from_one_that_failed(servers):
    app = App(servers, transform="def transform(inputs, tables):\n    return list(inputs.values())[0].select('id')\n")
    code, log = app.ends()
    assert code == ExitReason.DECLARATION, log
    assert f"app {app.pipeline} lost `_source`" in log


@pytest.mark.full
def test_a_second_instance_of_an_epoch_exits_before_it_reads(servers):
    app = App(servers)
    app.produce(numbered(0, 3))
    with app.running():
        app.until(lambda: len(app.rows()) == 3, "the first instance to work")
        code, log = app.ends(same_epoch=True)
        assert code == ExitReason.CLAIM_LOST, log
        assert "fence_raised" not in log
        app.produce(numbered(3, 4))
        app.until(lambda: len(app.rows()) == 4, "the first instance to go on")


@pytest.mark.full
def test_a_missing_topic_is_a_server_that_cannot_be_reached_not_an_empty_one(servers):
    app = App(servers)
    gone = f"{app.pipeline}.gone"
    text = app.declaration.read_text()
    app.declaration.write_text(text.replace(f"  {app.topic}:", f"  {gone}:").replace(f"[{app.topic}]", f"[{gone}]"))
    code, log = app.ends()
    assert code == ExitReason.UNREACHABLE, log
    assert f"topic {gone} does not exist" in log


@pytest.mark.full
def test_records_that_expired_before_they_were_read_are_loss_and_no_new_beginning(servers):
    app = App(servers)
    app.produce(numbered(0, 4), partition=0)
    with app.running():
        app.until(lambda: len(app.rows()) == 4, "the first records' rows")
    app.produce(numbered(4, 8), partition=0)
    app.expire(partition=0, before=6)
    code, log = app.ends()
    assert code == ExitReason.DATA_LOSS, log
    assert "offsets 4 to 5 expired before they were read" in log
    assert len(app.rows()) == 4
