"""Advisory locks of the control database, held by one transaction on a connection of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import sqlalchemy as sa
from sqlalchemy import exc

from millrace.adapters.control.database.connection import translated
from millrace.settings import PostgresSettings

_TRY = sa.text("select pg_try_advisory_xact_lock(hashtextextended(:name, 0))")


@contextmanager
def transaction_lock(engine: sa.Engine, settings: PostgresSettings, name: str) -> Iterator[bool]:
    """Whether the lock `name` is ours until the block ends; never waits for it.

    Does not guarantee: that it is still ours at the block's end. A lost connection gives it away, so what
    is done under it must be safe to do twice.
    """
    with translated(settings):
        connection = engine.connect()
    try:
        with translated(settings):
            mine = bool(connection.scalar(_TRY, {"name": name}))
        yield mine
    finally:
        with suppress(exc.DBAPIError):  # the connection died, and the lock with it: nothing is left to give back
            connection.close()
