"""The tables of forecasts: what topics were each day, what was expected of them, and how far that was off."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from millrace.adapters.control.database.tables import METADATA, TIMESTAMP

topic_day = sa.Table(
    "topic_day",
    METADATA,
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

forecast = sa.Table(
    "forecast",
    METADATA,
    sa.Column("connection", sa.Text, primary_key=True),
    sa.Column("day", sa.Date, primary_key=True),
    sa.Column("topic", sa.Text, primary_key=True),
    sa.Column("topic_id", sa.Text, nullable=False),
    sa.Column("made_at", TIMESTAMP, nullable=False),
    sa.Column("body", JSONB, nullable=False),
)

forecast_outcome = sa.Table(
    "forecast_outcome",
    METADATA,
    sa.Column("connection", sa.Text, primary_key=True),
    sa.Column("topic", sa.Text, primary_key=True),
    sa.Column("day", sa.Date, primary_key=True),
    sa.Column("days", sa.Integer, primary_key=True),
    sa.Column("topic_id", sa.Text, nullable=False),
    sa.Column("error", sa.Double, nullable=False),
    sa.Column("within", sa.Boolean, nullable=False),
)
