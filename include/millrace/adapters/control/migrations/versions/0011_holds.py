"""Holds: topics that for a time keep all they have. What was set before stays with the row, to be set again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

TIMESTAMP = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "topic_hold",
        sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=True),
        sa.Column("connection", sa.Text, nullable=False),
        sa.Column("topic", sa.Text, nullable=False),
        sa.Column("topic_id", sa.Text, nullable=False),
        sa.Column("before", JSONB, nullable=False),
        sa.Column("found", JSONB, nullable=False),
        sa.Column("after", JSONB, nullable=False),
        sa.Column("began_at", TIMESTAMP, nullable=False),
        sa.Column("until", TIMESTAMP, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("ended_at", TIMESTAMP),
    )
    op.create_index(
        "topic_hold_open_idx",
        "topic_hold",
        ["connection", "topic"],
        unique=True,
        postgresql_where=sa.text("ended_at is null"),
    )
