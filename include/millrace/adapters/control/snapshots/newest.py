"""The newest row of each thing that snapshots saw.

A day has a row a minute of one that changes: the index is skipped through from key to key, and not all rows read.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

Only = tuple[str, Sequence[str]] | None


def newest_rows(
    session: sa.Connection,
    table: sa.Table,
    connection: str,
    first: datetime,
    last: datetime,
    only: Only = None,
) -> Sequence[Any]:
    """The newest row of each key with `first <= at <= last`, in the order of the keys; all columns.

    Args:
        session: a transaction.
        table: one of `adapters.control.snapshots.tables`. Its key is the connection, names, and the time.
        connection: whose.
        first: the beginning.
        last: the end.
        only: a column of the key, and the values of it that are wanted; default: all.
    """
    keys = [column.name for column in table.primary_key.columns if column.name not in ("connection", "at")]

    def listed(alias: str, after: str = "") -> str:
        return ", ".join(f"{alias}.{key}{after}" for key in keys)

    mine = "t.connection = :connection and t.at between :first and :last"
    mine += "" if only is None else f" and t.{only[0]} = any(:wanted)"
    statement = f"""
        with recursive k as (
            (select {listed("t")} from {table.name} t where {mine} order by {listed("t")} limit 1)
            union all
            select n.* from k cross join lateral (
                select {listed("t")} from {table.name} t
                where {mine} and ({listed("t")}) > ({listed("k")}) order by {listed("t")} limit 1
            ) n
        )
        select s.* from k cross join lateral (
            select t.* from {table.name} t
            where {mine} and ({listed("t")}) = ({listed("k")}) order by t.at desc limit 1
        ) s
    """
    bound: dict[str, object] = {"connection": connection, "first": first, "last": last}
    if only is not None:
        bound["wanted"] = list(only[1])
    return session.execute(sa.text(statement).columns(*table.c), bound).all()
