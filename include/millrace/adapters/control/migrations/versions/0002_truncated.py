"""How many records of a batch had timestamps that were cut to microseconds."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # The default lets drivers of an older release, which may still run, go on writing.
    op.add_column("stream_progress", sa.Column("truncated", sa.BigInteger, nullable=False, server_default="0"))
