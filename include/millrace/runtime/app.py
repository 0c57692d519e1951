"""The app of a stream: its one pure function, and whether its output fits the sink."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as spark

from millrace.adapters.postgres_tables import TargetColumn
from millrace.domain.declaration import Pipeline, Stream, ValueSchema
from millrace.errors import DeclarationError
from millrace.runtime.source import SOURCE_TYPE, declared_type

Transform = Callable[[Mapping[str, DataFrame], Mapping[str, DataFrame]], DataFrame]

SOURCE_FIELD = "_source"
ORDINAL_FIELD = "_ordinal"

_POSTGRES_TYPES: dict[type[spark.DataType], str] = {
    spark.StringType: "text",
    spark.BooleanType: "boolean",
    spark.ByteType: "smallint",
    spark.ShortType: "smallint",
    spark.IntegerType: "integer",
    spark.LongType: "bigint",
    spark.FloatType: "real",
    spark.DoubleType: "double precision",
    spark.DateType: "date",
    spark.TimestampType: "timestamp with time zone",
    spark.TimestampNTZType: "timestamp without time zone",
    spark.BinaryType: "bytea",
}


def load_transform(root: Path, app: str) -> Transform:
    """The function `transform(inputs, tables)` of `spark_apps/APP/transform.py`.

    Raises:
        DeclarationError: the file is missing, does not import, or has no such function.
    """
    path = root / "spark_apps" / app / "transform.py"
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(f"millrace_app_{app}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise DeclarationError(f"app {app} has no transform.py", where=str(path), next_step="add the file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise DeclarationError(f"app {app} does not import: {error!r}", where=str(path)) from error
    transform: Transform | None = getattr(module, "transform", None)
    if not callable(transform):
        raise DeclarationError(
            f"app {app} has no function transform", where=str(path), next_step="def transform(inputs, tables): ..."
        )
    return transform


def load_views(root: Path, app: str) -> str | None:
    """The text of `spark_apps/APP/views.sql`; None where the app has none.

    Raises:
        DeclarationError: it cannot be read, or is not UTF-8.
    """
    path = root / "spark_apps" / app / "views.sql"
    if not path.exists():
        return None
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DeclarationError(f"app {app} has a views.sql that cannot be read: {error}", where=str(path)) from error


def output_type(session: SparkSession, pipeline: Pipeline, stream: Stream, transform: Transform) -> spark.StructType:
    """What the transform gives for empty inputs of the declared schemas, checked for what a sink needs.

    Raises:
        DeclarationError: the transform fails, loses `_source`, or gives what no table can hold.
    """
    where = f"spark_apps/{stream.app}/transform.py"
    inputs = {topic: session.createDataFrame([], input_type(_schema(pipeline, topic))) for topic in stream.reads}
    try:
        output = transform(inputs, {})
        found = output.schema
    except Exception as error:
        raise DeclarationError(f"the transform fails on empty inputs: {str(error)[:500]}", where=where) from error
    if SOURCE_FIELD not in found.names or found[SOURCE_FIELD].dataType != SOURCE_TYPE:
        raise DeclarationError(
            f"app {stream.app} lost `_source`: without it no row can be told from another",
            where=where,
            next_step="keep the column `_source` as it came in every select; a stateless transform has no aggregates",
        )
    if ORDINAL_FIELD in found.names and not isinstance(found[ORDINAL_FIELD].dataType, spark.IntegerType):
        raise DeclarationError(
            f"`_ordinal` is {found[ORDINAL_FIELD].dataType.simpleString()}, not int",
            where=where,
            next_step='cast it: col("_ordinal").cast("int")',
        )
    return found


def input_type(schema: ValueSchema) -> spark.StructType:
    """What a transform sees of a topic: the declared columns and `_source`."""
    fields = [spark.StructField(column.name, declared_type(column)) for column in schema.columns]
    return spark.StructType([*fields, spark.StructField(SOURCE_FIELD, SOURCE_TYPE)])


def target_columns(output: spark.StructType, app: str) -> tuple[TargetColumn, ...]:
    """The table columns for a transform's output, in its order.

    Raises:
        DeclarationError: a column has a name that is reserved or too long, or a type that PostgreSQL has no plain
            column for.
    """
    where = f"spark_apps/{app}/transform.py"
    columns = []
    for field in output.fields:
        if field.name in {SOURCE_FIELD, ORDINAL_FIELD}:
            continue
        if field.name.startswith("_") or len(field.name.encode()) > 63:
            raise DeclarationError(
                f"column {field.name}: names that begin with `_` are Millrace's own, and 63 bytes are the longest",
                where=where,
                next_step="rename the column in the transform",
            )
        columns.append(TargetColumn(field.name, _postgres_type(field, where)))
    return tuple(columns)


def _postgres_type(field: spark.StructField, where: str) -> str:
    if isinstance(field.dataType, spark.DecimalType):
        return f"numeric({field.dataType.precision},{field.dataType.scale})"
    found = _POSTGRES_TYPES.get(type(field.dataType))
    if found is None:
        raise DeclarationError(
            f"column {field.name} is {field.dataType.simpleString()}, which has no plain PostgreSQL column",
            where=where,
            next_step=f'give its parts as columns, or text: to_json(col("{field.name}"))',
        )
    return found


def _schema(pipeline: Pipeline, topic: str) -> ValueSchema:
    schema = pipeline.topic(topic).value
    if schema is None:
        raise DeclarationError(f"topic {topic} declares no value schema", where=f"pipeline {pipeline.name}")
    return schema
