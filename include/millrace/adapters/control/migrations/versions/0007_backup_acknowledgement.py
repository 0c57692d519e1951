"""What people asked a backup to take for known: offsets that are lost, chains that were cut off."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

TIMESTAMP = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "backup_acknowledgement",
        sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=True),
        sa.Column("app", sa.Text, nullable=False),
        sa.Column("topic", sa.Text, nullable=False),
        sa.Column("topic_id", sa.Text, nullable=False),
        sa.Column("partition", sa.Integer),
        sa.Column("first", sa.BigInteger),
        sa.Column("next", sa.BigInteger),
        sa.Column("sequence", sa.BigInteger),
        sa.Column("by", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("at", TIMESTAMP, nullable=False, server_default=sa.text("now()")),
        sa.Column("taken_at", TIMESTAMP),
        sa.CheckConstraint(
            "(sequence is null) = (partition is not null and first is not null and next is not null)",
            name="backup_acknowledgement_about_check",
        ),
    )
    op.create_index(
        "backup_acknowledgement_waiting_idx",
        "backup_acknowledgement",
        ["app"],
        postgresql_where=sa.text("taken_at is null"),
    )
