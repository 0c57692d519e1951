"""Hosts: which one a stream belongs to, their signs of life, and the heartbeats of apps."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

TIMESTAMP = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.add_column("desired_state", sa.Column("host", sa.Text))
    op.add_column("desired_state", sa.Column("end_now", sa.Boolean, nullable=False, server_default=sa.false()))
    op.add_column("stream_look", sa.Column("wished_at", TIMESTAMP))
    op.add_column("stream_look", sa.Column("host", sa.Text))
    op.create_table(
        "host",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("seen_at", TIMESTAMP, nullable=False, server_default=sa.func.now()),
    )
    op.create_table(
        "app_heartbeat",
        sa.Column("stream", sa.Text, primary_key=True),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("instance", sa.Text, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("namespace", sa.Text, nullable=False),
        sa.Column("phase", sa.Text, nullable=False),
        sa.Column("step", sa.Text, nullable=False),
        sa.Column("at", TIMESTAMP, nullable=False, server_default=sa.func.now()),
        sa.Index("app_heartbeat_host_idx", "host"),
    )
