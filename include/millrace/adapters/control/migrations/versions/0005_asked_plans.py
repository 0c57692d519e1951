"""Plans that a run of a DAG asked for: which run, what was shown, who confirmed it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for column in ("asked_in", "shown_hash", "confirmed_by"):
        op.add_column("plan", sa.Column(column, sa.Text))
    op.add_column("plan", sa.Column("confirmed_at", sa.DateTime(timezone=True)))
    op.create_unique_constraint("plan_asked_in_key", "plan", ["asked_in"])
    op.drop_constraint("plan_status_check", "plan")
    op.create_check_constraint(
        "plan_status_check", "plan", "status in ('open', 'running', 'done', 'failed', 'stale', 'aborted', 'refused')"
    )
