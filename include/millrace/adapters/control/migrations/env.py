"""Run by Alembic: the caller brings the connection and its transaction, so that a failed upgrade leaves no trace."""

from __future__ import annotations

from alembic import context

from millrace.adapters.control.database.tables import METADATA, VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    version_table=VERSION_TABLE,
)
with context.begin_transaction():
    context.run_migrations()
