"""Expectations that Great Expectations has not, or not as exact, with the metrics they need. All are for PostgreSQL.

None of them reads a value of a row: conditions are counted in the database, of times their age alone comes back.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, ClassVar

import sqlalchemy as sa
from great_expectations import expectations as gxe  # noqa: TID253  loaded by checks alone
from great_expectations.execution_engine import SqlAlchemyExecutionEngine  # noqa: TID253
from great_expectations.expectations.expectation import BatchExpectation, ColumnMapExpectation  # noqa: TID253
from great_expectations.expectations.metrics import ColumnMapMetricProvider  # noqa: TID253
from great_expectations.expectations.metrics.map_metric_provider import column_condition_partial  # noqa: TID253
from great_expectations.expectations.metrics.metric_provider import metric_value  # noqa: TID253
from great_expectations.expectations.metrics.table_metric_provider import TableMetricProvider  # noqa: TID253

AHEAD_SECONDS = 300
"""A time that lies further in the future is no event's: it would make any table look fresh for ever."""


class _Number(sa.types.TypeDecorator[str]):
    """Text that is bound as a Decimal, which makes it a `numeric`."""

    impl = sa.Numeric
    cache_ok = True

    def process_bind_param(self, value: str | None, _: Any) -> Decimal | None:
        return None if value is None else Decimal(value)


class Exact(str):
    """A number as text, for bounds and sets: the library keeps it as it is, and the database gets a `numeric`.

    The library names what it counts by the float of a Decimal, so two bounds that share a float would share a count; to
    make that float it walks the stack, which takes 50 ms. SQLAlchemy casts an int to `bigint`, which may be too small.
    """

    __slots__ = ()
    __sa_type_engine__ = _Number()  # SQLAlchemy asks a value for its type by this name

    # The library refuses a range that begins behind its end; the other bound may be an int. Equal is what is written
    # alike: by that the library names what it counts.
    def __gt__(self, other: str | int) -> bool:
        return Decimal(self) > Decimal(other)

    def __ge__(self, other: str | int) -> bool:
        return Decimal(self) >= Decimal(other)

    def __lt__(self, other: str | int) -> bool:
        return Decimal(self) < Decimal(other)

    def __le__(self, other: str | int) -> bool:
        return Decimal(self) <= Decimal(other)


class ExpectValuesInRange(gxe.ExpectColumnValuesToBeBetween):
    """As its parent, with bounds of any type: there an int is a float, a time a date, and a text nothing."""

    min_value: Any = None
    max_value: Any = None


class ExpectValuesInSet(gxe.ExpectColumnValuesToBeInSet):
    """As its parent, with values of any type."""

    value_set: Any = None


class ConditionOfRows(ColumnMapMetricProvider):
    """Rows of which an SQL condition over their columns is not false."""

    condition_metric_name = "column_values.millrace_condition"
    condition_value_keys = ("condition",)
    filter_column_isnull = False

    @column_condition_partial(engine=SqlAlchemyExecutionEngine)
    def _in_database(cls, column: Any, condition: str, **_: Any) -> Any:
        return sa.literal_column(f"(({condition}\n) IS NOT FALSE)", sa.Boolean)


class ExpectRowsToMeetCondition(ColumnMapExpectation):
    """No row makes the condition false. `column` is one that is never null: the rows are counted by it."""

    condition: str
    map_metric: ClassVar[str] = "column_values.millrace_condition"
    success_keys: ClassVar[tuple[str, ...]] = ("condition", "mostly")


class RowsOfQuery(TableMetricProvider):
    """How many rows a query has."""

    metric_name = "millrace.query.rows"
    value_keys = ("query",)

    @metric_value(engine=SqlAlchemyExecutionEngine)
    def _in_database(
        cls,
        execution_engine: Any,
        metric_domain_kwargs: Any,
        metric_value_kwargs: Any,
        metrics: Any,
        runtime_configuration: Any,
    ) -> int:
        return int(_scalar(execution_engine, escaped(metric_value_kwargs["query"])))


class ExpectQueryToFindNothing(BatchExpectation):
    """A query that finds what is wrong has no rows. `query` counts them."""

    query: str
    metric_dependencies: ClassVar[tuple[str, ...]] = ("millrace.query.rows", "table.row_count")
    success_keys: ClassVar[tuple[str, ...]] = ("query",)
    domain_keys: ClassVar[tuple[str, ...]] = ("batch_id",)

    def _validate(self, metrics: Any, runtime_configuration: Any = None, execution_engine: Any = None) -> Any:
        found = metrics["millrace.query.rows"]
        result = {"element_count": metrics["table.row_count"], "unexpected_count": found, "observed_value": found}
        return {"success": found == 0, "result": result}


class ExpectValuesToExistElsewhere(ExpectQueryToFindNothing):
    """Each value of a column is in a column of another table of the same database. The library has none of this."""


class ExpectColumnsToBeUniqueTogether(ExpectQueryToFindNothing):
    """No two rows have the same values in some columns.

    The library's own joins the rows with their counts; on a table that was never analysed PostgreSQL does that row by
    row, and seventy thousand rows take longer than anybody waits.
    """


class TypeOfColumn(TableMetricProvider):
    """How PostgreSQL spells the type of a table's column; None where there is no such column."""

    metric_name = "millrace.column.type"
    value_keys = ("table", "column")

    @metric_value(engine=SqlAlchemyExecutionEngine)
    def _in_database(
        cls,
        execution_engine: Any,
        metric_domain_kwargs: Any,
        metric_value_kwargs: Any,
        metrics: Any,
        runtime_configuration: Any,
    ) -> str | None:
        query = (
            "SELECT format_type(atttypid, atttypmod) FROM pg_attribute "
            "WHERE attrelid = to_regclass(:table) AND attname = :column AND attnum > 0 AND NOT attisdropped"
        )
        found = _scalar(execution_engine, query, **metric_value_kwargs)
        return None if found is None else str(found)


class ExpectColumnToHaveType(BatchExpectation):
    """A column of the table is of this type, as PostgreSQL spells it."""

    table: str
    column: str
    type_: str
    metric_dependencies: ClassVar[tuple[str, ...]] = ("millrace.column.type",)
    success_keys: ClassVar[tuple[str, ...]] = ("table", "column", "type_")
    domain_keys: ClassVar[tuple[str, ...]] = ("batch_id",)

    def _validate(self, metrics: Any, runtime_configuration: Any = None, execution_engine: Any = None) -> Any:
        found = metrics["millrace.column.type"]
        return {"success": found == self.type_, "result": {"observed_value": found}}


class AgeOfNewest(TableMetricProvider):
    """How many seconds the newest time of a column is old; None where no row has one that may be."""

    metric_name = "millrace.column.age"
    value_keys = ("column", "now")

    @metric_value(engine=SqlAlchemyExecutionEngine)
    def _in_database(
        cls,
        execution_engine: Any,
        metric_domain_kwargs: Any,
        metric_value_kwargs: Any,
        metrics: Any,
        runtime_configuration: Any,
    ) -> float | None:
        rows = execution_engine.get_domain_records(domain_kwargs=metric_domain_kwargs)
        column: sa.ColumnClause[Any] = sa.column(metric_value_kwargs["column"])
        now = sa.literal(metric_value_kwargs["now"]).cast(_TIME)
        newest = sa.func.max(column.cast(_TIME)).filter(column.cast(_TIME) <= now + _AHEAD)
        found = execution_engine.execute_query(sa.select(sa.extract("epoch", now - newest)).select_from(rows)).scalar()
        return None if found is None else float(found)


class ExpectNewestEventToBeFresh(BatchExpectation):
    """The newest event is at most so many seconds old.

    Args:
        column: holds the events' times.
        now: the moment that they are old at, in ISO 8601.
        at_most: seconds.
        known_age: of the newest event of rows before these, in seconds; None: nobody has seen one.
    """

    column: str
    now: str
    at_most: float
    known_age: float | None = None
    metric_dependencies: ClassVar[tuple[str, ...]] = ("millrace.column.age",)
    success_keys: ClassVar[tuple[str, ...]] = ("column", "now", "at_most", "known_age")
    domain_keys: ClassVar[tuple[str, ...]] = ("batch_id",)

    def _validate(self, metrics: Any, runtime_configuration: Any = None, execution_engine: Any = None) -> Any:
        ages = [age for age in (metrics["millrace.column.age"], self.known_age) if age is not None]
        return _fresh(min(ages, default=None), self.at_most)


class ExpectNewestRecordToBeFresh(BatchExpectation):
    """The newest record that is done is at most so many seconds old, by its timestamp in Kafka.

    Args:
        at_most: seconds.
        age: of that record, in seconds; None: there is none, or nobody knows it.
    """

    at_most: float
    age: float | None = None
    success_keys: ClassVar[tuple[str, ...]] = ("at_most", "age")
    domain_keys: ClassVar[tuple[str, ...]] = ("batch_id",)

    def _validate(self, metrics: Any, runtime_configuration: Any = None, execution_engine: Any = None) -> Any:
        return _fresh(self.age, self.at_most)


def _fresh(age: float | None, at_most: float) -> dict[str, Any]:
    return {"success": age is not None and age <= at_most, "result": {"observed_value": age}}


_TIME = sa.DateTime(timezone=True)
_AHEAD = sa.text(f"interval '{AHEAD_SECONDS} seconds'")


def escaped(text: str) -> str:
    """SQL as the library may have it: a colon would begin a parameter."""
    return text.replace(":", r"\:")


def _scalar(execution_engine: Any, query: str, **parameters: object) -> Any:
    return execution_engine.execute_query(sa.text(query).bindparams(**parameters)).scalar()
