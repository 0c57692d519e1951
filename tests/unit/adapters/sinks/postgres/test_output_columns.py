"""What a transform gives, as columns of a sink: every type that PostgreSQL has a plain column for, and no other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from millrace.adapters.sinks.postgres.types import target_columns
from millrace.errors import DeclarationError
from millrace.runtime.stream.transform import load_transform, output_columns

PLAIN = (
    (spark.StringType(), "text"),
    (spark.BooleanType(), "boolean"),
    (spark.ByteType(), "smallint"),
    (spark.ShortType(), "smallint"),
    (spark.IntegerType(), "integer"),
    (spark.LongType(), "bigint"),
    (spark.FloatType(), "real"),
    (spark.DoubleType(), "double precision"),
    (spark.DateType(), "date"),
    (spark.TimestampType(), "timestamp with time zone"),
    (spark.TimestampNTZType(), "timestamp without time zone"),
    (spark.BinaryType(), "bytea"),
    (spark.DecimalType(38, 9), "numeric(38,9)"),
)


@pytest.mark.parametrize(("given", "column"), PLAIN, ids=[column for _, column in PLAIN])
def test_a_plain_type_has_a_column(given: spark.DataType, column: str) -> None:
    source = [spark.StructField("_source", spark.StringType()), spark.StructField("_ordinal", spark.IntegerType())]
    columns = output_columns(spark.StructType([*source, spark.StructField("x", given)]), "app")
    assert [(found.name, found.type) for found in target_columns(columns, "here")] == [("x", column)]


@pytest.mark.parametrize(
    "given",
    [
        spark.ArrayType(spark.StringType()),
        spark.MapType(spark.StringType(), spark.StringType()),
        spark.StructType([spark.StructField("a", spark.StringType())]),
        spark.DayTimeIntervalType(),
        spark.NullType(),
    ],
    ids=lambda given: given.simpleString(),
)
def test_another_type_is_refused_with_a_way_out(given: spark.DataType) -> None:
    columns = output_columns(spark.StructType([spark.StructField("x", given)]), "app")
    with pytest.raises(DeclarationError, match="no plain PostgreSQL column") as caught:
        target_columns(columns, "here")
    assert 'to_json(col("x"))' in caught.value.next_step


@pytest.mark.parametrize("name", ["ctid", "xmin", "xmax", "cmin", "cmax", "tableoid"])
def test_a_name_of_postgresqls_own_is_refused_with_the_way_to_rename_it(name: str) -> None:
    with pytest.raises(
        DeclarationError, match=f"column {name}: every table of PostgreSQL has a system column"
    ) as caught:
        target_columns(pa.schema([("id", pa.string()), (name, pa.int64())]), "spark_apps/app/transform.py")
    assert caught.value.where == "spark_apps/app/transform.py"
    assert f'col("{name}").alias(' in caught.value.next_step
    assert target_columns(pa.schema([(name.upper(), pa.int64())]), "here")[0].name == name.upper()


ASKING = """
def transform(inputs, tables):
    if "rates" in tables or "shop.refunds" in inputs or inputs.get("shop.refunds") is not None:
        raise AssertionError
    return ({asked})
"""


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ('inputs["shop.nosuch"]', "asks for the input 'shop.nosuch', but the stream reads shop.purchases, shop.items"),
        ('tables["rates"]', "asks for the table 'rates', but streams have no lookup tables"),
    ],
)
def test_a_transform_that_asks_for_what_there_is_not_is_told_what_there_is(
    tmp_path: Path, asked: str, told: str
) -> None:
    path = tmp_path / "spark_apps" / "asking" / "transform.py"
    path.parent.mkdir(parents=True)
    path.write_text(ASKING.format(asked=asked))
    inputs: dict[str, Any] = {"shop.purchases": "the purchases", "shop.items": "the items"}
    with pytest.raises(DeclarationError) as caught:
        load_transform(tmp_path, "asking")(inputs, {})
    assert told in caught.value.what
    assert caught.value.where == "spark_apps/asking/transform.py"
    assert isinstance(caught.value, KeyError)  # an app that goes on without an input catches this
    path.write_text(ASKING.format(asked='inputs["shop.items"]'))
    assert load_transform(tmp_path, "asking")(inputs, {}) == "the items"


class Celsius(spark.UserDefinedType):
    """A type of an app's own over a plain one, as which Arrow has it."""

    @classmethod
    def sqlType(cls) -> spark.DataType:
        return spark.LongType()


OPAQUE = (Celsius(), spark.VariantType(), spark.GeometryType(4326), spark.GeographyType(4326))


@pytest.mark.parametrize("given", [spark.CalendarIntervalType(), *OPAQUE], ids=lambda given: type(given).__name__)
def test_what_leaves_spark_for_no_sink_is_refused(given: spark.DataType) -> None:
    with pytest.raises(DeclarationError, match=r"x is \S+, which no sink supports"):
        output_columns(spark.StructType([spark.StructField("x", given)]), "app")


@pytest.mark.parametrize("part", OPAQUE, ids=lambda part: type(part).__name__)
@pytest.mark.parametrize(
    "around",
    [
        spark.ArrayType,
        lambda part: spark.MapType(part, spark.StringType()),
        lambda part: spark.MapType(spark.StringType(), part),
        lambda part: spark.StructType([spark.StructField("a", spark.LongType()), spark.StructField("b", part)]),
        lambda part: spark.ArrayType(
            spark.MapType(spark.StringType(), spark.StructType([spark.StructField("a", part)]))
        ),
    ],
    ids=["array", "key", "value", "struct", "deeper"],
)
def test_so_is_what_has_it_inside(part: spark.DataType, around: Callable[[spark.DataType], spark.DataType]) -> None:
    with pytest.raises(DeclarationError, match=r"x is \S+, which no sink supports") as told:
        output_columns(spark.StructType([spark.StructField("x", around(part))]), "app")
    assert part.simpleString() in str(told.value.__cause__)


def test_names_that_are_reserved_or_too_long_are_refused() -> None:
    with pytest.raises(DeclarationError, match="_x: names that begin with `_`"):
        output_columns(spark.StructType([spark.StructField("_x", spark.StringType())]), "app")
    target_columns(pa.schema([("é" * 31, pa.string())]), "here")
    with pytest.raises(DeclarationError, match="longer than 63 bytes"):
        target_columns(pa.schema([("é" * 32, pa.string())]), "here")
