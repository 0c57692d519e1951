"""The steps of plans that are run in steps, and plans that were taken back."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "plan_step",
        sa.Column("plan_id", sa.Text, primary_key=True),
        sa.Column("step", sa.Text, primary_key=True),
        sa.Column("begun_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.text("now()")),
        sa.Column("done_at", sa.DateTime(timezone=True)),
        sa.Column("detail", JSONB, nullable=False),
    )
    op.drop_constraint("plan_status_check", "plan")
    op.create_check_constraint(
        "plan_status_check", "plan", "status in ('open', 'running', 'done', 'failed', 'stale', 'aborted')"
    )
