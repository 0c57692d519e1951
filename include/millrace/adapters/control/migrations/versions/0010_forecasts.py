"""Forecasts of topics: what each was day by day, what was expected of it, and how far that was off."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

TIMESTAMP = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "topic_day",
        sa.Column("connection", sa.Text, primary_key=True),
        sa.Column("topic", sa.Text, primary_key=True),
        sa.Column("day", sa.Date, primary_key=True),
        sa.Column("at", TIMESTAMP, nullable=False),
        sa.Column("topic_id", sa.Text, nullable=False),
        sa.Column("ends", sa.BigInteger, nullable=False),
        sa.Column("record_bytes", sa.Double),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("partitions", sa.Integer, nullable=False),
    )
    op.create_table(
        "forecast",
        sa.Column("connection", sa.Text, primary_key=True),
        sa.Column("day", sa.Date, primary_key=True),
        sa.Column("topic", sa.Text, primary_key=True),
        sa.Column("topic_id", sa.Text, nullable=False),
        sa.Column("made_at", TIMESTAMP, nullable=False),
        sa.Column("body", JSONB, nullable=False),
    )
    op.create_table(
        "forecast_outcome",
        sa.Column("connection", sa.Text, primary_key=True),
        sa.Column("topic", sa.Text, primary_key=True),
        sa.Column("day", sa.Date, primary_key=True),
        sa.Column("days", sa.Integer, primary_key=True),
        sa.Column("topic_id", sa.Text, nullable=False),
        sa.Column("error", sa.Double, nullable=False),
        sa.Column("within", sa.Boolean, nullable=False),
    )
