"""The tables of snapshots, as the code reads them; each has a partition a day, which only functions make and drop."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from millrace.adapters.control.database.tables import METADATA, TIMESTAMP

_NUMBERS = ARRAY(sa.BigInteger)
_BY_DAY = "RANGE (at)"

FUNCTIONS = ("millrace_snapshot_day_make(date)", "millrace_snapshot_days_drop(date)")
"""Made by migration 0009; they work with the rights of the tables' owner."""

snapshot = sa.Table(
    "snapshot",
    METADATA,
    sa.Column("connection", sa.Text, primary_key=True),
    sa.Column("at", TIMESTAMP, primary_key=True),
    sa.Column("base", TIMESTAMP, nullable=False),
    sa.Column("cluster_id", sa.Text, nullable=False),
    sa.Column("seconds", sa.Double, nullable=False),
    sa.Column("requests", sa.Integer, nullable=False),
    sa.Column("offsets_kept_seconds", sa.BigInteger),
    sa.Column("faults", JSONB, nullable=False),
    postgresql_partition_by=_BY_DAY,
)

snapshot_topic = sa.Table(
    "snapshot_topic",
    METADATA,
    sa.Column("connection", sa.Text, primary_key=True),
    sa.Column("topic", sa.Text, primary_key=True),
    sa.Column("at", TIMESTAMP, primary_key=True),
    sa.Column("topic_id", sa.Text),
    sa.Column("starts", _NUMBERS, nullable=False),
    sa.Column("ends", _NUMBERS, nullable=False),
    sa.Column("stables", _NUMBERS, nullable=False),
    sa.Column("first_ms", _NUMBERS, nullable=False),
    sa.Column("sizes", _NUMBERS, nullable=False),
    postgresql_partition_by=_BY_DAY,
)

snapshot_group = sa.Table(
    "snapshot_group",
    METADATA,
    sa.Column("connection", sa.Text, primary_key=True),
    sa.Column("group_id", sa.Text, primary_key=True),
    sa.Column("at", TIMESTAMP, primary_key=True),
    sa.Column("state", sa.Text),
    sa.Column("type", sa.Text, nullable=False),
    sa.Column("protocol", sa.Text, nullable=False),
    sa.Column("members", JSONB(none_as_null=True)),
    sa.Column("commits_known", sa.Boolean, nullable=False),
    sa.Column("fault", sa.Text, nullable=False),
    postgresql_partition_by=_BY_DAY,
)

snapshot_commit = sa.Table(
    "snapshot_commit",
    METADATA,
    sa.Column("connection", sa.Text, primary_key=True),
    sa.Column("group_id", sa.Text, primary_key=True),
    sa.Column("topic", sa.Text, primary_key=True),
    sa.Column("at", TIMESTAMP, primary_key=True),
    sa.Column("offsets", _NUMBERS, nullable=False),
    sa.Column("metadata", JSONB, nullable=False),
    postgresql_partition_by=_BY_DAY,
)
