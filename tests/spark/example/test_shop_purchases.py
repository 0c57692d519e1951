"""The shop's transform as a batch on small frames."""

from __future__ import annotations

import importlib.util
from datetime import date
from decimal import ROUND_HALF_UP, Decimal
from itertools import product
from pathlib import Path
from types import ModuleType

import pytest
from pyspark.sql import DataFrame, SparkSession

from support.example.purchases import PURCHASE

ROOT = Path(__file__).parents[3]
SHOP = ROOT / "spark_apps" / "shop_purchases"
ENRICHED = ROOT / "docs" / "examples" / "fan-out" / "spark_apps" / "customers_enriched"
SCHEMA = (
    f"{PURCHASE.ddl}, "
    "_source STRUCT<topic: STRING, topic_id: STRING, partition: INT, offset: BIGINT, timestamp: TIMESTAMP> NOT NULL"
)


def load(folder: Path) -> ModuleType:
    specification = importlib.util.spec_from_file_location(f"{folder.name}_transform", folder / "transform.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def app() -> ModuleType:
    return load(SHOP)


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


LARGEST, LARGEST_INT = "9999999999.99", 2**31 - 1
AMOUNTS = (LARGEST, f"-{LARGEST}", "100000000.00", "-100000000.00", "0.01", "-0.01", "0.00")
QUANTITIES = (-(2**31), -3, -1, 0, 1, 3, 1000, LARGEST_INT)
DAYS = (date(1, 1, 1), date(1, 12, 31), date(1582, 10, 15), date(2000, 2, 29), date(9999, 12, 31))
EXTREMES = [
    *(("00004", day, quantity, amount) for amount, quantity, day in product(AMOUNTS, QUANTITIES, DAYS)),
    ("", date(2000, 1, 1), LARGEST_INT, "19649475.37"),  # its unit amount lies just below 0.00915
]


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_every_record_that_the_schema_allows_has_its_row(spark: SparkSession, app: ModuleType, ansi: str) -> None:
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    rows = app.transform({"shop.purchases": purchases(spark, *EXTREMES)}, {}).drop("_source").collect()
    assert [tuple(row) for row in rows] == [
        (customer, day, quantity, Decimal(amount), unit(amount, quantity), day.isoweekday(), day.replace(day=1))
        for customer, day, quantity, amount in EXTREMES
    ]


def test_the_enriched_example_has_a_row_for_every_record_too(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.ansi.enabled", "true")
    last = purchases(spark, *EXTREMES).selectExpr("*", "CAST(NULL AS DECIMAL(14,4)) unit_amount", "false _deleted")
    rows = load(ENRICHED).transform({"customers.last": last}, {}).select("amount", "unit_amount").collect()
    assert [tuple(row) for row in rows] == [
        (Decimal(amount), unit(amount, quantity)) for _, _, quantity, amount in EXTREMES
    ]


def unit(amount: str, quantity: int) -> Decimal | None:
    return (Decimal(amount) / quantity).quantize(Decimal("0.0001"), ROUND_HALF_UP) if quantity else None


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
        "unit_amount": "decimal(14,4)",
        "weekday": "int",
        "month": "date",
    }
