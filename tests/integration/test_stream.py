"""One stream, from topic to table: what a user of it would see."""

from __future__ import annotations

import pytest

from millrace.domain.streams import ExitReason
from millrace.embedded.stack import Stack
from support.apps import App


@pytest.fixture
def servers(kafka: Stack, postgres: Stack) -> Stack:
    return postgres


MICROSECONDS, NANOSECONDS = 1_764_000_000_000_000, 1_764_000_000_000_000_000


def numbered(first: int, end: int) -> list[dict[str, object]]:
    return [{"id": number, "name": f"name {number}"} for number in range(first, end)]


def test_records_become_rows_bad_ones_go_aside_and_a_refused_row_holds_nothing_up(servers):
    app = App(
        servers,
        transform="""
            from pyspark.sql import functions as F

            def transform(inputs, tables):
                (frame,) = inputs.values()
                several = F.when(F.col("id") % 10 == 3, F.array(F.lit(0), F.lit(1))).otherwise(F.array(F.lit(0)))
                kept = frame.where("id % 10 != 7").withColumn("_ordinal", F.explode(several))
                raising = F.when(F.col("id") == 88, F.raise_error(F.lit("no 88"))).otherwise(F.col("id"))
                kept = kept.withColumn("id", raising.cast("int"))
                # A zero character only the transform makes: COPY refuses it.
                return kept.withColumn("name", F.when(F.col("id") == 42, F.char(F.lit(0))).otherwise(F.col("name")))
        """,
    )
    aside = {42, 88}
    expected = sorted(n for n in range(100) if n % 10 != 7 and n not in aside for _ in range(2 if n % 10 == 3 else 1))
    app.produce([*numbered(0, 50), b"nope", None, *numbered(50, 100)])
    with app.running():
        app.until(lambda: len(app.rows()) >= len(expected), "all rows")
        assert [number for (number,) in app.rows()] == expected
        assert app.quarantine() == [("not_json",), ("null_value",), ("sink_refused",), ("transform_failed",)]
        [(error,)] = [found[1:] for found in app.quarantine("rule, error") if found[0] == "transform_failed"]
        assert error == "[USER_RAISED_EXCEPTION] no 88 SQLSTATE: P0001"

        with app.database() as connection:
            connection.execute(f"ALTER TABLE {app.table} ADD CHECK (id <> 205)")
        app.produce(numbered(200, 210))
        app.until(lambda: len(app.quarantine()) == 5, "the refused row in quarantine")
        app.until(lambda: app.rows(where="id = 209"), "its neighbours in the table")
        assert app.rows(where="id = 205") == []
        assert (b'{"id": 205, "name": "name 205"}',) in app.quarantine("value")

        app.grow(3)
        app.produce(numbered(300, 310), partition=2)
        app.until(lambda: app.rows("_partition", where="id = 309") == [(2,)], "the rows of the new partition")

        # Two records whose producers count time otherwise: one that Spark holds, and one that it cannot even read.
        app.produce(numbered(310, 311), partition=2, timestamp=MICROSECONDS)
        app.produce([*numbered(311, 316), {"id": 205, "name": "again refused"}], partition=2)
        app.produce(numbered(316, 317), partition=2, timestamp=NANOSECONDS)
        app.produce(numbered(318, 320), partition=2)
        app.until(lambda: app.rows(where="id = 319"), "the records behind them")
        kept = [number for (number,) in app.rows(where="id BETWEEN 310 AND 319")]
        assert kept == [311, 312, 313, 313, 314, 315, 318, 319]
        far = app.quarantine("timestamp_ms, timestamp, value")[:2]
        assert far == [
            (MICROSECONDS, None, b'{"id": 310, "name": "name 310"}'),
            (NANOSECONDS, None, b'{"id": 316, "name": "name 316"}'),
        ]
        assert len(app.quarantine()) == 8


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
    assert f"there is no topic {gone}" in log


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
