"""How bad alarms are, as seen and as people know it, and how their notifiers fared."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

TIMESTAMP = sa.DateTime(timezone=True)


def upgrade() -> None:
    # The defaults let programs of an older release, which may still run, go on opening alarms. What is told stays told:
    # an alarm without `known_at` counts as known since `told_at`, and its first measure is the one that people know.
    op.add_column("alarm", sa.Column("measure", sa.Double))
    op.add_column("alarm", sa.Column("fault", sa.Text, nullable=False, server_default=""))
    op.add_column("alarm", sa.Column("known_measure", sa.Double))
    op.add_column("alarm", sa.Column("known_fault", sa.Text, nullable=False, server_default=""))
    op.add_column("alarm", sa.Column("known_at", TIMESTAMP))
    op.add_column("alarm", sa.Column("raised", sa.Integer, nullable=False, server_default="1"))
    op.add_column("alarm", sa.Column("raised_at", TIMESTAMP))
    op.add_column("alarm", sa.Column("raise_at", TIMESTAMP))
    op.add_column("alarm", sa.Column("retry_at", TIMESTAMP))
    op.add_column("alarm", sa.Column("notified", JSONB, nullable=False, server_default="[]"))
    # The poll asks for these few alarms every five seconds, and the table keeps all that ever were.
    op.create_index("alarm_raise_idx", "alarm", ["raise_at"], postgresql_where=sa.text("raise_at is not null"))
    op.create_index(
        "alarm_untold_idx", "alarm", ["id"], postgresql_where=sa.text("told_at is null and acknowledged_at is null")
    )
