"""What people asked a backup to let go: the beginning of a chain. An acknowledgement names the fault that is meant."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

TIMESTAMP = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.add_column("backup_acknowledgement", sa.Column("fault", sa.Text, nullable=False, server_default=""))
    op.create_table(
        "backup_expiry",
        sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=True),
        sa.Column("app", sa.Text, nullable=False),
        sa.Column("topic", sa.Text, nullable=False),
        sa.Column("topic_id", sa.Text, nullable=False),
        sa.Column("sequence", sa.BigInteger, nullable=False),
        sa.Column("by", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("at", TIMESTAMP, nullable=False, server_default=sa.text("now()")),
        sa.Column("reached", sa.BigInteger),
        sa.Column("fault", sa.Text, nullable=False, server_default=""),
        sa.Column("taken_at", TIMESTAMP),
        sa.CheckConstraint("(taken_at is null) = (reached is null)", name="backup_expiry_taken_check"),
    )
    op.create_index(
        "backup_expiry_waiting_idx",
        "backup_expiry",
        ["app", "topic", "topic_id"],
        unique=True,
        postgresql_where=sa.text("taken_at is null"),
    )
