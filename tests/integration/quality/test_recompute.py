"""Rows of a real stream, made again: alike until somebody changes them, the app or the schema."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from millrace import declarations
from millrace.adapters.apps.jobs.recompute import MODULE, RecomputeJob
from millrace.domain.quality.books import Balance
from millrace.domain.quality.recompute import Difference, Likeness
from millrace.domain.topics.offsets import OffsetRange, TopicPartition
from millrace.embedded.stack import Stack
from millrace.errors import RecreatedTopicError
from millrace.usecases.quality import books as quality_books
from millrace.wiring import open_platform
from support.quality.recomputing import differences, recompute
from support.streams.apps import App
from support.waiting import Deadline, exit_code_of

SCHEMA = (
    "id INT NOT NULL, name STRING NOT NULL, amount DECIMAL(12,2), score DOUBLE, small FLOAT, day DATE, at TIMESTAMP, "
    "flag BOOLEAN, big BIGINT"
)
TRANSFORM = """
    from pyspark.sql import functions as F
    from shared_by_apps import factor

    def transform(inputs, tables):
        (frame,) = inputs.values()
        several = F.when(F.col("id") % 10 == 3, F.array(F.lit(0), F.lit(1))).otherwise(F.array(F.lit(0)))
        kept = frame.where("id % 10 <> 7").withColumn("_ordinal", F.explode(several))
        named = F.when(F.col("id") == 42, F.char(F.lit(0))).otherwise(F.col("name"))
        raising = F.when(F.col("id") == 44, F.raise_error(F.lit("no 44"))).otherwise(F.col("id"))
        return kept.select(
            raising.cast("int").alias("id"), named.alias("name"), "score", "small", "day", "at", "flag", "big",
            (F.col("amount") * factor(F)).cast("decimal(14,2)").alias("twice"),
            F.expr("try_divide(score, 3)").alias("third"), F.encode("name", "UTF-8").alias("bytes"),
            F.col("at").cast("timestamp_ntz").alias("plain"), F.col("_source.timestamp").alias("taken"),
            "_source", "_ordinal",
        )
"""
JANUARY, JUNE = 1_767_225_600_000, 1_780_272_000_000


@pytest.fixture
def servers(kafka: Stack, postgres: Stack) -> Stack:
    return postgres


def events(first: int, end: int) -> list[dict[str, object]]:
    return [
        {
            "id": n,
            "name": f'n "{n}", ü\n',
            "amount": n / 4,
            "score": n / 7,
            "small": n / 7,
            "day": f"2026-01-{n % 28 + 1:02}",
            "at": f"2026-01-01T00:00:00.{n:06}Z",
            "flag": n % 2 == 0 if n % 5 else None,
            "big": 2**53 + n,
        }
        for n in range(first, end)
    ]


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


@pytest.mark.full  # first tier: rows changed by hand in test_redrive.py, each difference in test_sink_comparison.py
def test_rows_that_the_app_or_the_schema_or_somebody_changed_are_told_from_those_alike(servers: Stack) -> None:
    app = App(servers, schema=SCHEMA, transform=TRANSFORM)
    shared = app.root / "spark_apps" / "shared_by_apps.py"
    shared.write_text("def factor(F):\n    return F.lit(2)\n")
    nameless = [{key: value for key, value in event.items() if key != "name"} for event in events(900, 903)]
    app.produce([*events(0, 50), b"nope", None], timestamp=JANUARY)
    app.produce([*events(50, 100), *nameless], timestamp=JUNE)
    expected = sum(2 if n % 10 == 3 else 1 for n in range(100) if n % 10 != 7 and n not in {42, 44})
    assert recompute(app).likeness is Likeness.NOTHING  # there is no record of work yet
    with app.running():
        app.until(lambda: (len(app.rows()), len(app.quarantine())) == (expected, 7), "all rows")

    shared.write_text("def factor(F):\n    return F.when(F.col('id') < 50, 2).otherwise(3)\n")
    replace(app.declaration, "name STRING NOT NULL", "name STRING")
    with app.database() as connection:
        connection.execute(f"UPDATE {app.table} SET bytes = 'x', flag = NOT flag WHERE id = 11")
        connection.execute(f"DELETE FROM {app.table} WHERE id = 12 OR (id = 13 AND _ordinal = 1)")
        connection.execute(f"UPDATE {app.table} SET _ordinal = 5 WHERE id = 14")
        quarantine = "millrace.quarantine WHERE stream = %s AND rule ="
        connection.execute(f"DELETE FROM {quarantine} 'null_value'", (app.stream,))
        connection.execute(
            "UPDATE millrace.quarantine SET rule = 'wrong_type' WHERE stream = %s AND rule = 'not_json'", (app.stream,)
        )
    found = recompute(app)
    differ = differences(found)
    assert (found.likeness, found.offsets, found.records, found.unread) == (Likeness.DIFFERENT, 105, 105, 0)
    assert (found.lacking, found.retyped, found.idle) == ((), (), ())
    assert found.alike == 44 + 2  # rows of January, and what the table and the transform refuse again
    assert {key: one.rows for key, one in differ.items()} == {
        (Difference.CHANGED, "twice"): sum(2 if n % 10 == 3 else 1 for n in range(50, 100) if n % 10 != 7),
        (Difference.CHANGED, "bytes"): 1,
        (Difference.CHANGED, "flag"): 1,
        (Difference.UNSTORED, ""): 3,  # 12, a row of 13, and the one of 14 that has another ordinal
        (Difference.UNMADE, ""): 1,
        (Difference.BAD, ""): 1,
        (Difference.GOOD, ""): 3,
        (Difference.OTHER_RULE, ""): 1,
    }
    twice = differ[Difference.CHANGED, "twice"]
    assert twice.since is not None
    assert twice.since == twice.until
    assert twice.since.timestamp() * 1000 == JUNE
    # 48 rows of January, 4 records in quarantine, and of 14 the row that is stored and the one that is made
    assert (twice.before, twice.after) == (48 + 4 + 1, 0)


SHUFFLING = """
    from pyspark.sql import functions as F

    def transform(inputs, tables):
        (frame,) = inputs.values()
        kept = frame.where("id % 10 <> 7").repartition(3)
        return kept.groupBy("_source").agg(F.max("id").alias("id"), F.max(F.upper("name")).alias("name"))
"""


@pytest.mark.full
def test_a_transform_that_shuffles_has_books_that_balance_and_rows_that_are_made_again_alike(servers: Stack) -> None:
    app = App(servers, transform=SHUFFLING)
    app.produce([*({"id": n, "name": f"n {n}"} for n in range(200)), b"nope"])
    with app.running():
        app.until(lambda: (len(app.rows()), len(app.quarantine())) == (180, 1), "all rows")
    platform = open_platform(app.settings)
    pipeline = declarations.load_pipeline(app.root, app.pipeline)
    found = quality_books.reconcile(platform, pipeline, pipeline.stream("events"), actor="tests")
    assert (found.balance, found.findings) == (Balance.BALANCED, ())
    assert (found.sums.rows, found.sums.quarantined, found.sums.dropped) == (180, 1, 20)
    again = recompute(app, sample=100)
    assert (again.likeness, again.alike) == (Likeness.ALIKE, again.compared)
    assert again.offsets >= 100
    with app.database() as connection:
        connection.execute(f"UPDATE {app.table} SET name = 'x' WHERE id = 11")
    assert {key: one.rows for key, one in differences(recompute(app)).items()} == {(Difference.CHANGED, "name"): 1}


@pytest.mark.full
def test_what_expired_is_not_read_and_a_column_that_the_table_lacks_is_named(servers: Stack) -> None:
    app = App(servers, partitions=1)
    app.produce([{"id": n, "name": "n"} for n in range(100)])
    with app.running():
        app.until(lambda: len(app.rows()) == 100, "all rows")
    app.expire(partition=0, before=30)
    app.write_transform("""
        from pyspark.sql import functions as F

        def transform(inputs, tables):
            (frame,) = inputs.values()
            return frame.select("id", F.lit(1).alias("more"), "_source")
    """)
    found = recompute(app)
    assert (found.likeness, found.offsets, found.compared, found.alike) == (Likeness.DIFFERENT, 70, 70, 70)
    assert (found.lacking, found.idle, found.apart) == (("more",), ("name",), ())
    few = recompute(app, sample=20)
    assert few.offsets == few.compared in range(1, 21)

    former = [OffsetRange(TopicPartition(app.topic, "of-a-former-topic", 0), 30, 40)]
    with pytest.raises(RecreatedTopicError, match=f"{app.topic} was deleted"):
        RecomputeJob(app.settings).run(app.stream, former, ("millrace_kafka", "millrace_sink"), lambda done: None)


def test_a_job_ends_with_who_asked_it(servers: Stack) -> None:
    environment = {**os.environ, "MILLRACE_ROOT": str(servers.root)}
    job = subprocess.Popen([sys.executable, "-m", MODULE, "scratch"], stdin=subprocess.PIPE, env=environment)
    assert job.stdin is not None
    job.stdin.write(b'{"stream": "nobody.s", "ranges": []}')  # no line's end: it goes on reading
    job.stdin.close()
    assert exit_code_of(job, within=Deadline.SPARK, what="the job's end") != 0
