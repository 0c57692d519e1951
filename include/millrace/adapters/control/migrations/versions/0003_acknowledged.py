"""Who has taken an alarm up, when and why."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("alarm", sa.Column("acknowledged_at", sa.DateTime(timezone=True)))
    op.add_column("alarm", sa.Column("acknowledged_by", sa.Text))
    op.add_column("alarm", sa.Column("acknowledged_reason", sa.Text))
