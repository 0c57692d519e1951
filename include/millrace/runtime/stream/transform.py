"""The app of a stream: its one pure function, and whether its output fits the sink."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.errors import PySparkException, PySparkTypeError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_type

from millrace.adapters.sinks.postgres.sink import Views
from millrace.domain.declaration.pipeline import DELETED_COLUMN, Pipeline, Stream, Topic, ValueSchema
from millrace.errors import Code, DeclarationError
from millrace.runtime.stream.source import SOURCE_TYPE, declared_type

Transform = Callable[[Mapping[str, DataFrame], Mapping[str, DataFrame]], DataFrame]

SOURCE_FIELD = "_source"
ORDINAL_FIELD = "_ordinal"
DELETED_FIELD = DELETED_COLUMN.name
_OPAQUE = (spark.UserDefinedType, spark.VariantType, spark.GeometryType, spark.GeographyType)


class NotGivenError(DeclarationError, KeyError):
    """A transform asks for an input or a table that it is not given; a KeyError too, as of any mapping."""

    usual_code = Code.WRONG_TRANSFORM


class _Given(dict[str, DataFrame]):
    """What a transform is given by name; asking for another name says what there is."""

    def __init__(self, frames: Mapping[str, DataFrame], kind: str, there: str, next_step: str, where: str) -> None:
        super().__init__(frames)
        self._kind, self._there, self._next_step, self._where = kind, there, next_step, where

    def __missing__(self, name: object) -> DataFrame:
        what = f"the transform asks for the {self._kind} {name!r}, but {self._there}"
        raise NotGivenError(what, where=self._where, next_step=self._next_step)


def load_transform(root: Path, app: str) -> Transform:
    """The function `transform(inputs, tables)` of `spark_apps/APP/transform.py`.

    Guarantees: where it asks for an input or a table that it is not given, it raises NotGivenError.

    Raises:
        DeclarationError: the file is missing, does not import, or has no such function.
    """
    path = root / "spark_apps" / app / "transform.py"
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(f"millrace_app_{app}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise DeclarationError(
            f"app {app} has no transform.py", where=str(path), next_step="add the file", code=Code.WRONG_TRANSFORM
        )
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise DeclarationError(
            f"app {app} cannot be imported: {error!r}", where=str(path), code=Code.WRONG_TRANSFORM
        ) from error
    transform: Transform | None = getattr(module, "transform", None)
    if not callable(transform):
        raise DeclarationError(
            f"app {app} has no function transform",
            where=str(path),
            next_step="add `def transform(inputs, tables): ...`",
            code=Code.WRONG_TRANSFORM,
        )
    return _naming(transform, f"spark_apps/{app}/transform.py")


def _naming(transform: Transform, where: str) -> Transform:
    """Return the transform with inputs and tables that name themselves where it asks for others."""

    def named(inputs: Mapping[str, DataFrame], tables: Mapping[str, DataFrame]) -> DataFrame:
        reads = f"the stream reads {', '.join(inputs)}"
        step = "ask for a topic that the stream reads, or add the topic to `reads`"
        none = "streams have no lookup tables yet"
        return transform(
            _Given(inputs, "input", reads, step, where),
            _Given(tables, "table", none, "take what the transform needs from `inputs`", where),
        )

    return named


def load_views(root: Path, app: str) -> Views | None:
    """What stands in `spark_apps/APP/views.sql`; None where the app has none.

    Raises:
        DeclarationError: it cannot be read, or is not UTF-8.
    """
    path = root / "spark_apps" / app / "views.sql"
    if not path.exists():
        return None
    try:
        return Views(path.read_text(encoding="utf-8"), f"spark_apps/{app}/views.sql")
    except (OSError, UnicodeDecodeError) as error:
        raise DeclarationError(
            f"app {app} has a views.sql that cannot be read: {error}", where=str(path), code=Code.WRONG_TRANSFORM
        ) from error


def output_type(session: SparkSession, pipeline: Pipeline, stream: Stream, transform: Transform) -> spark.StructType:
    """What the transform gives for empty inputs of the declared schemas, checked for what a sink needs.

    Raises:
        DeclarationError: the transform fails, loses `_source`, or `_deleted` where the sink needs it, or gives a column
            twice, or what no table can hold.
    """
    where = f"spark_apps/{stream.app}/transform.py"
    schemas = {name: _schema(pipeline, topic) for name, topic in pipeline.topics_of(stream).items()}
    inputs = {name: session.createDataFrame([], input_type(schema)) for name, schema in schemas.items()}
    try:
        output = transform(inputs, {})
        found = output.schema
    except NotGivenError:
        raise
    except Exception as error:
        raise DeclarationError(
            f"the transform fails on empty inputs: {str(error)[:500]}", where=where, code=Code.WRONG_TRANSFORM
        ) from error
    _check_names(found.names, stream.app, where)
    if SOURCE_FIELD not in found.names or found[SOURCE_FIELD].dataType != SOURCE_TYPE:
        raise DeclarationError(
            f"app {stream.app} lost `_source`, which identifies each row",
            where=where,
            next_step="keep the column `_source` unchanged in every select; a stateless transform has no aggregates",
            code=Code.WRONG_TRANSFORM,
        )
    if ORDINAL_FIELD in found.names and not isinstance(found[ORDINAL_FIELD].dataType, spark.IntegerType):
        raise DeclarationError(
            f"`_ordinal` is {found[ORDINAL_FIELD].dataType.simpleString()}, not int",
            where=where,
            next_step='cast it: col("_ordinal").cast("int")',
            code=Code.WRONG_TRANSFORM,
        )
    deletes = any(schema.tombstones for schema in schemas.values())
    _check_deleted(found, stream.app, where, needed=deletes)
    return found


def _check_names(names: Sequence[str], app: str, where: str) -> None:
    """Refuse two columns of one name, whatever their case: no batch could say which of them it takes."""
    seen: dict[str, str] = {}
    for name in names:
        if (first := seen.get(name.lower())) is not None:
            twice = f"`{name}` twice" if first == name else f"`{first}` and `{name}`, which are one name to Spark"
            raise DeclarationError(
                f"app {app} returns the column {twice}",
                where=where,
                next_step="drop or rename one of them: a join keeps the columns of both its sides",
                code=Code.WRONG_TRANSFORM,
            )
        seen[name.lower()] = name


def _check_deleted(output: spark.StructType, app: str, where: str, *, needed: bool) -> None:
    if DELETED_FIELD in output.names:
        if not isinstance(output[DELETED_FIELD].dataType, spark.BooleanType):
            raise DeclarationError(
                f"app {app} returns `_deleted` as {output[DELETED_FIELD].dataType.simpleString()}, not boolean",
                where=where,
                next_step='cast it: col("_deleted").cast("boolean")',
                code=Code.WRONG_TRANSFORM,
            )
    elif needed:
        raise DeclarationError(
            f"app {app} lost `_deleted`: a deleted key would return as a row of nulls",
            where=where,
            next_step="keep the column `_deleted` in every select",
            code=Code.WRONG_TRANSFORM,
        )


def input_type(schema: ValueSchema) -> spark.StructType:
    """What a transform sees of a topic: the declared columns, `_deleted` where records delete, and `_source`."""
    fields = [spark.StructField(column.name, declared_type(column)) for column in schema.decoded]
    return spark.StructType([*fields, spark.StructField(SOURCE_FIELD, SOURCE_TYPE)])


def output_columns(output: spark.StructType, app: str, metadata: Sequence[str] = ()) -> pa.Schema:
    """What a transform gives beside the source columns, in its order, as Arrow has it.

    Args:
        output: what it gives.
        app: its name.
        metadata: what the sink takes of a row beside its source.

    Raises:
        DeclarationError: a column has a reserved name, or a type that leaves Spark for no sink.
    """
    where = f"spark_apps/{app}/transform.py"
    columns = []
    for field in output.fields:
        if field.name in {SOURCE_FIELD, ORDINAL_FIELD, *metadata}:
            continue
        if field.name.startswith("_"):
            raise DeclarationError(
                f"column {field.name}: names that begin with `_` are reserved for Millrace",
                where=where,
                next_step="rename the column in the transform",
                code=Code.WRONG_TRANSFORM,
            )
        try:
            if opaque := next(_opaque(field.dataType), None):
                raise PySparkTypeError(f"{opaque.simpleString()} means something to its own code alone")
            columns.append(pa.field(field.name, to_arrow_type(field.dataType, timezone="UTC")))
        except PySparkException as error:
            raise DeclarationError(
                f"column {field.name} is {field.dataType.simpleString()}, which no sink supports",
                where=where,
                next_step=f'return its parts as columns, or text: col("{field.name}").cast("string")',
                code=Code.WRONG_TRANSFORM,
            ) from error
    return pa.schema(columns)


def _opaque(given: spark.DataType) -> Iterator[spark.DataType]:
    """The parts of a type, itself among them, of which Arrow would have what they are made of, for good."""
    if isinstance(given, _OPAQUE):
        yield given
    elif isinstance(given, spark.ArrayType):
        yield from _opaque(given.elementType)
    elif isinstance(given, spark.MapType):
        yield from _opaque(given.keyType)
        yield from _opaque(given.valueType)
    elif isinstance(given, spark.StructType):
        for field in given.fields:
            yield from _opaque(field.dataType)


def _schema(pipeline: Pipeline, topic: Topic) -> ValueSchema:
    if topic.value is None:
        raise DeclarationError(f"topic {topic.name} declares no value schema", where=f"pipeline {pipeline.name}")
    return topic.value
