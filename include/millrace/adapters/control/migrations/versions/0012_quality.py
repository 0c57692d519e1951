"""Quality: checks of streams' tables, what is proven of each, and documents that wait for the bucket."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

TIMESTAMP = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "quality_check",
        sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=True),
        sa.Column("stream", sa.Text, nullable=False),
        sa.Column("began", TIMESTAMP, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("verdict", sa.Text, nullable=False),
        sa.Column("windowed", sa.Boolean, nullable=False),
        sa.Column("body", JSONB, nullable=False),
    )
    op.create_index("quality_check_stream_began_idx", "quality_check", ["stream", "began", "actor"], unique=True)
    op.create_table(
        "quality_mark",
        sa.Column("stream", sa.Text, primary_key=True),
        sa.Column("timeline", sa.Integer, nullable=False),
        sa.Column("offsets", JSONB, nullable=False),
        sa.Column("moved_at", TIMESTAMP, nullable=False, server_default=sa.func.now()),
    )
    op.create_table(
        "quality_document",
        sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=True),
        sa.Column(
            "check_id", sa.BigInteger, sa.ForeignKey("quality_check.id", ondelete="CASCADE"), nullable=False, index=True
        ),
        sa.Column("key", sa.Text, nullable=False, unique=True),
        sa.Column("data", sa.LargeBinary, nullable=False),
        sa.Column("made_at", TIMESTAMP, nullable=False, server_default=sa.func.now()),
    )
