"""Books: runs over the books of streams, and up to where those of each are proven."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

TIMESTAMP = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "books_run",
        sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=True),
        sa.Column("stream", sa.Text, nullable=False),
        sa.Column("began", TIMESTAMP, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("balance", sa.Text, nullable=False),
        sa.Column("body", JSONB, nullable=False),
    )
    op.create_index("books_run_stream_began_idx", "books_run", ["stream", "began", "actor"], unique=True)
    op.create_table(
        "books_mark",
        sa.Column("stream", sa.Text, primary_key=True),
        sa.Column("timeline", sa.Integer, nullable=False),
        sa.Column("offsets", JSONB, nullable=False),
        sa.Column("moved_at", TIMESTAMP, nullable=False, server_default=sa.func.now()),
    )
