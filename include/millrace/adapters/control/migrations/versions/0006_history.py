"""What pages show of streams: the last look at each, what their batches did second by second, and their lag."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

TIMESTAMP = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.add_column("stream_progress", sa.Column("lag", sa.BigInteger))
    op.create_table(
        "stream_look",
        sa.Column("stream", sa.Text, primary_key=True),
        sa.Column("at", TIMESTAMP, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("epoch", sa.BigInteger),
        sa.Column("since", TIMESTAMP),
        sa.Column("why", sa.Text, nullable=False),
        sa.Column("until", TIMESTAMP),
    )
    op.create_table(
        "batch_second",
        sa.Column("stream", sa.Text, primary_key=True),
        sa.Column("at", TIMESTAMP, primary_key=True),
        sa.Column("epoch", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("batches", sa.Integer, nullable=False),
        sa.Column("rows_in", sa.BigInteger, nullable=False),
        sa.Column("rows_out", sa.BigInteger, nullable=False),
        sa.Column("quarantined", sa.BigInteger, nullable=False),
        sa.Column("seconds", sa.Double, nullable=False),
        sa.Column("steps", JSONB, nullable=False),
        sa.Column("lag", sa.BigInteger),
    )
    op.create_index("batch_second_at_idx", "batch_second", ["at"])
    op.create_index("batch_second_quarantined_idx", "batch_second", ["at"], postgresql_where=sa.text("quarantined > 0"))
    op.create_index("plan_kind_idx", "plan", ["kind", "target", "created_at"])
