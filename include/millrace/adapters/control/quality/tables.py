"""The tables of quality: checks, what is proven, and documents that wait for the bucket."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from millrace.adapters.control.database.tables import METADATA, NOW, TIMESTAMP
from millrace.adapters.control.quality.marks import mark_table

quality_check = sa.Table(
    "quality_check",
    METADATA,
    sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=True),
    sa.Column("stream", sa.Text, nullable=False),
    sa.Column("began", TIMESTAMP, nullable=False),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("verdict", sa.Text, nullable=False),
    sa.Column("windowed", sa.Boolean, nullable=False),
    sa.Column("body", JSONB, nullable=False),
    sa.Index("quality_check_stream_began_idx", "stream", "began", "actor", unique=True),
)

quality_mark = mark_table("quality_mark")

quality_document = sa.Table(
    "quality_document",
    METADATA,
    sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=True),
    sa.Column(
        "check_id", sa.BigInteger, sa.ForeignKey("quality_check.id", ondelete="CASCADE"), nullable=False, index=True
    ),
    sa.Column("key", sa.Text, nullable=False, unique=True),
    sa.Column("data", sa.LargeBinary, nullable=False),
    sa.Column("made_at", TIMESTAMP, nullable=False, server_default=NOW),
)
