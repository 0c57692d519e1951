"""Rules against the columns a table has."""

from __future__ import annotations

from datetime import timedelta

import pytest

from millrace.domain.quality.columns import canonical, problems
from millrace.domain.quality.rules import (
    Check,
    Compare,
    Comparison,
    Exists,
    Fresh,
    HasType,
    InSet,
    Matches,
    NotNull,
    Query,
    Range,
    RowCondition,
    RowCount,
    Rule,
    Unique,
    Volume,
)

COLUMNS = {
    "id": "text",
    "amount": "numeric(12,2)",
    "quantity": "integer",
    "day": "date",
    "at": "timestamp with time zone",
    "paid": "boolean",
    "code": "uuid",
}
OTHERS = {"shop.customers": {"id": "text", "number": "bigint"}, "shop.gone": {}}


def _problem(check: Check) -> str:
    return problems([Rule("it", check)], COLUMNS, OTHERS).get("it", "")


@pytest.mark.parametrize(
    "check",
    [
        NotNull("id"),
        HasType("amount", "DECIMAL(12, 2)"),
        HasType("at", "timestamptz"),
        InSet("quantity", (1, 2)),
        InSet("paid", (True,)),
        InSet("code", ("x",)),
        Range("amount", 0, 1.5),
        Range("day", "1997-01-01", None),
        Range("at", "1997-01-01", "2026-01-31T12:00:00Z"),
        Matches("id", "^[0-9]+$"),
        Unique(("id", "day")),
        RowCondition("nothing > 0"),
        RowCount(1),
        Fresh(timedelta(hours=1)),
        Fresh(timedelta(hours=1), "day"),
        Volume(0.5),
        Compare("amount", Comparison.LESS, "quantity"),
        Compare("day", Comparison.LESS, "at"),
        Exists("id", "shop.customers", "id"),
        Exists("quantity", "shop.customers", "number"),
        Exists("id", "shop.not_looked_at", "id"),
        Query("select nothing from {rows}"),
    ],
)
def test_what_fits_has_no_problem(check: Check) -> None:
    assert _problem(check) == ""


@pytest.mark.parametrize(
    ("check", "problem"),
    [
        (NotNull("amout"), "column `amout` does not exist; did you mean `amount`?"),
        (Unique(("id", "zzzz")), "column `zzzz` does not exist"),
        (HasType("amount", "numeric(12,3)"), "`amount` is numeric(12,2), not numeric(12,3)"),
        (Matches("quantity", "1"), "`quantity` is integer, and `regex` is for text"),
        (Range("day", "1997-02-30"), "`day` is date, and the bound at place 1 is no date like 2026-01-31"),
        (Range("day", "1997-01-01T10:00"), "`day` is date, and the bound at place 1 is no date like 2026-01-31"),
        (Range("at", "1997-W01"), "is no timestamp like 2026-01-31T12:00:00Z"),
        (Range("id", 1, 2), "`id` is text, and text has no range: use `condition`"),
        (Range("amount", 0, "9"), "`amount` is numeric(12,2), and the bound at place 2 is no number"),
        (Range("paid", "a"), "`paid` is boolean, which has no range"),
        (InSet("quantity", (1, True)), "`quantity` is integer, and the value at place 2 is no number"),
        (InSet("paid", (1,)), "`paid` is boolean, and the value at place 1 is neither true nor false"),
        (Fresh(timedelta(hours=1), "id"), "`id` is text, and `freshness` is for dates and timestamps"),
        (Compare("id", Comparison.EQUAL, "amount"), "`id` is text and `amount` is numeric(12,2): not comparable"),
        (Exists("id", "shop.gone", "id"), "table `shop.gone` does not exist"),
        (Exists("id", "shop.customers", "ids"), "`shop.customers`: column `ids` does not exist; did you mean `id`?"),
        (Exists("id", "shop.customers", "number"), "`shop.customers.number` is bigint, which cannot be compared"),
    ],
)
def test_what_does_not_fit_is_told(check: Check, problem: str) -> None:
    assert problem in _problem(check)


@pytest.mark.parametrize(
    ("written", "spelled"),
    [
        ("VARCHAR( 10 )", "character varying(10)"),
        ("int8", "bigint"),
        ("timestamp(3) with time zone", "timestamp(3) with time zone"),
        ("timestamptz(3)", "timestamp(3) with time zone"),
        ("decimal(9)", "numeric(9,0)"),
        ("double  precision", "double precision"),
    ],
)
def test_types_are_spelled_as_postgresql_does(written: str, spelled: str) -> None:
    assert canonical(written) == spelled
