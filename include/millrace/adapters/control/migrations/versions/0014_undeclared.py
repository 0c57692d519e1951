"""Fields of a batch's records that no schema names."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # The default lets drivers of an older release, which may still run, go on writing.
    op.add_column("stream_progress", sa.Column("undeclared", JSONB, nullable=False, server_default="{}"))
