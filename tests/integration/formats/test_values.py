"""Values on their way from a topic to a table or dataset: each arrives as it is, or its record is in quarantine."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from millrace.adapters.control.store import ControlStore
from millrace.domain.formats.undeclared import UndeclaredFields, UndeclaredName
from millrace.embedded.stack import Stack
from support.sinks.dataset_apps import DatasetApp
from support.streams.apps import App

SCHEMA = "n INT NOT NULL, amount DECIMAL(12,2), at TIMESTAMP, day DATE, seconds BIGINT, raw STRING, quantity INT"
# Spark makes what a target may not hold: times of any year, text of any bytes, numbers that outgrow their type.
TRANSFORM = """
    from pyspark.sql import functions as F

    def transform(inputs, tables):
        (frame,) = inputs.values()
        return frame.select(
            "n", "amount", "at", "day",
            F.timestamp_seconds("seconds").alias("far"),
            F.date_add("day", F.coalesce(F.col("quantity"), F.lit(0))).alias("later"),
            F.unbase64("raw").cast("string").alias("text"),
            (F.col("amount") * F.coalesce(F.col("quantity"), F.lit(1))).cast("DECIMAL(12,2)").alias("total"),
            "_source",
        )
"""
JAVA = "4000.09999999999990905052982270717620849609375"  # what Java prints for new BigDecimal(4000.1)
NOTHING: dict[str, Any] = dict.fromkeys(("amount", "at", "day", "far", "later", "text", "total"))

AMOUNTS: dict[str, str] = {  # as it stands in the record, and as it is stored
    "4000.10": "4000.10",
    "1.500": "1.50",
    "1." + "5".ljust(80, "0"): "1.50",
    "-0.0": "0.00",
    "0e-60": "0.00",
    "1e2": "100.00",
    "9999999999.99": "9999999999.99",
    '"+001.50"': "1.50",
    '"1E1"': "10.00",
}
BAD_FIELDS = {
    f'"amount":{JAVA}': "out_of_range",
    f'"amount":"{JAVA}"': "out_of_range",
    f'"amount":1.{"1" * 39}': "out_of_range",
    f'"amount":0.{"0" * 103}1': "out_of_range",
    '"amount":9999999999.995': "out_of_range",
    '"amount":1e30': "out_of_range",
    '"amount":"1_000"': "wrong_type",
    '"amount":"_1"': "wrong_type",
    '"amount":" 1 "': "wrong_type",
    '"amount":"\uff11"': "wrong_type",  # a full-width 1
    '"amount":"\u0663"': "wrong_type",  # an Arabic-Indic 3
    '"amount":"NaN"': "wrong_type",
    '"seconds":2066000000000': "sink_refused",  # Arrow prints its year as 1902
    '"seconds":-62135596801': "sink_refused",
    '"day":"9999-12-31","quantity":1': "sink_refused",
    '"day":"0001-01-01","quantity":-1': "sink_refused",
    '"raw":"/w=="': "sink_refused",
    '"amount":9999999999.99,"quantity":2': "transform_failed",
    '"seconds":9223372036854775807': "transform_failed",
}
GOOD_FIELDS: dict[str, dict[str, Any]] = {
    '"seconds":253402300799': {"far": datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)},
    '"seconds":-62135596800': {"far": datetime(1, 1, 1, tzinfo=UTC)},
    '"day":"9999-12-31"': {"day": date(9999, 12, 31), "later": date(9999, 12, 31)},
    '"at":"0001-01-01T00:00:00Z","day":"0001-01-01"': {
        "at": datetime(1, 1, 1, tzinfo=UTC),
        "day": date(1, 1, 1),
        "later": date(1, 1, 1),
    },
    '"raw":"w7zwn5iA"': {"text": "ü😀"},
    '"Quantity":2,"day":"2026-01-31"': {"day": date(2026, 1, 31), "later": date(2026, 1, 31)},
}


def records() -> tuple[list[bytes], dict[int, dict[str, Any]], dict[int, str]]:
    """The values of all records, by number the rows expected of them, and the rules."""
    values, rows, rules = list[bytes](), dict[int, dict[str, Any]](), dict[int, str]()

    def add(fields: str) -> int:
        values.append(f'{{"n":{len(values)},{fields}}}'.encode())
        return len(values) - 1

    for text, amount in AMOUNTS.items():
        rows[add(f'"amount":{text}')] = NOTHING | {"amount": Decimal(amount), "total": Decimal(amount)}
    for fields, row in GOOD_FIELDS.items():
        rows[add(fields)] = NOTHING | row
    for fields, rule in BAD_FIELDS.items():
        rules[add(fields)] = rule
    return values, rows, rules


@pytest.fixture
def servers(kafka: Stack, postgres: Stack) -> Stack:
    return postgres


def undeclared(app: App) -> UndeclaredFields:
    """Return the undeclared fields of the stream's last batch; all records were produced before it began."""
    store = ControlStore(app.settings.postgres("millrace_control"))
    try:
        progress = store.streams.progress(app.stream)
        return progress.undeclared if progress else UndeclaredFields()
    finally:
        store.close()


@pytest.mark.full  # first tier: the dataset below; what COPY stores is in contract/postgres/sinks/test_values.py
def test_every_value_is_stored_as_it_is_or_its_record_is_quarantined_by_name(servers: Stack) -> None:
    app = App(servers, schema=SCHEMA, transform=TRANSFORM, partitions=1)
    values, rows, rules = records()
    app.produce(values)
    with app.running():
        app.until(lambda: len(app.rows("n")) + len(app.quarantine()) == len(values), "all records")
        app.until(lambda: undeclared(app).records, "the progress")
    assert undeclared(app).names == (UndeclaredName(app.topic, "Quantity", 1, "quantity"),)
    found = app.rows(f"n, {', '.join(NOTHING)}")
    assert len(found) == len(rows)
    assert {n: dict(zip(NOTHING, row, strict=True)) for n, *row in found} == rows
    assert {values.index(value): rule for rule, value in app.quarantine("rule, value")} == rules


def test_a_dataset_gets_every_value_as_it_is_or_its_record_is_quarantined_by_name(servers: Stack, s3: Stack) -> None:
    app = DatasetApp(servers, schema=SCHEMA, transform=TRANSFORM, partitions=1)
    values, rows, rules = records()
    app.produce(values)
    with app.running():
        app.until(lambda: app.done() == len(values), "all records to be done")
        app.until(lambda: undeclared(app).records, "the progress")
    assert undeclared(app).names == (UndeclaredName(app.topic, "Quantity", 1, "quantity"),)
    found = app.rows_by_another_reader()
    assert len(found) == len(rows)
    assert {row["n"]: {name: row[name] for name in NOTHING} for row in found} == rows
    assert {values.index(value): rule for rule, value in app.quarantine("rule, value")} == rules
