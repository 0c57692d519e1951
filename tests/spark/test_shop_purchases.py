"""The shop's transform as a batch on small frames."""

from __future__ import annotations

import importlib.util
from datetime import date
from decimal import Decimal
from pathlib import Path
from types import ModuleType

import pytest
from pyspark.sql import DataFrame, SparkSession

PATH = Path(__file__).parents[2] / "spark_apps" / "shop_purchases" / "transform.py"
SCHEMA = (
    "customer_id STRING NOT NULL, purchased_on DATE NOT NULL, quantity INT NOT NULL, amount DECIMAL(12,2) NOT NULL, "
    "_source STRUCT<topic: STRING, topic_id: STRING, partition: INT, offset: BIGINT, timestamp: TIMESTAMP> NOT NULL"
)


@pytest.fixture(scope="module")
def app() -> ModuleType:
    specification = importlib.util.spec_from_file_location("shop_purchases_transform", PATH)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def purchases(spark: SparkSession, *rows: tuple[str, date, int, str]) -> DataFrame:
    sources = [("shop.purchases", "A" * 22, 1, offset, None) for offset in range(len(rows))]
    return spark.createDataFrame(
        [
            (c, day, quantity, Decimal(amount), source)
            for (c, day, quantity, amount), source in zip(rows, sources, strict=True)
        ],
        SCHEMA,
    )


def test_a_purchase_gets_unit_amount_weekday_and_month(spark: SparkSession, app: ModuleType) -> None:
    frame = purchases(spark, ("00002", date(1997, 1, 12), 5, "77.00"), ("00001", date(1997, 12, 1), 3, "20.00"))
    rows = app.transform({"shop.purchases": frame}, {}).collect()
    assert [tuple(row)[:7] for row in rows] == [
        ("00002", date(1997, 1, 12), 5, Decimal("77.00"), Decimal("15.4000"), 7, date(1997, 1, 1)),
        ("00001", date(1997, 12, 1), 3, Decimal("20.00"), Decimal("6.6667"), 1, date(1997, 12, 1)),
    ]


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_no_quantity_means_no_unit_amount(spark: SparkSession, app: ModuleType, ansi: str) -> None:
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    frame = purchases(spark, ("00003", date(1998, 6, 30), 0, "12.00"))
    (row,) = app.transform({"shop.purchases": frame}, {}).collect()
    assert row.unit_amount is None
    assert row.amount == Decimal("12.00")


def test_the_largest_amount_fits(spark: SparkSession, app: ModuleType) -> None:
    spark.conf.set("spark.sql.ansi.enabled", "true")
    frame = purchases(spark, ("00004", date(1998, 2, 28), 1000, "9999999999.99"))
    (row,) = app.transform({"shop.purchases": frame}, {}).collect()
    assert row.unit_amount == Decimal("10000000.0000")


def test_every_row_keeps_its_source_and_the_columns_have_their_types(spark: SparkSession, app: ModuleType) -> None:
    frame = purchases(spark, *[("00005", date(1998, 1, day), 1, "1.00") for day in range(1, 8)])
    result = app.transform({"shop.purchases": frame}, {})
    assert [(row._source.partition, row._source.offset) for row in result.collect()] == [(1, n) for n in range(7)]
    assert [row.weekday for row in result.collect()] == [4, 5, 6, 7, 1, 2, 3]
    assert {name: kind for name, kind in result.dtypes if name != "_source"} == {
        "customer_id": "string",
        "purchased_on": "date",
        "quantity": "int",
        "amount": "decimal(12,2)",
        "unit_amount": "decimal(12,4)",
        "weekday": "int",
        "month": "date",
    }
