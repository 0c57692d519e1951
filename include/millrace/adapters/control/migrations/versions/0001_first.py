"""Desired state, claims, attempts, progress, plans, the action log and alarms."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def _time(name: str, *, now: bool = False, nullable: bool = True) -> sa.Column[datetime]:
    return sa.Column(
        name, sa.DateTime(timezone=True), nullable=nullable, server_default=sa.text("now()") if now else None
    )


def upgrade() -> None:
    _streams()
    _plans_and_alarms()
    _action_log()


def _streams() -> None:
    op.create_table(
        "desired_state",
        sa.Column("stream", sa.Text, primary_key=True),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False, server_default=sa.text("0")),
        sa.Column("accept_recreated", sa.Boolean, nullable=False, server_default=sa.text("false")),
        _time("backoff_reset_at"),
        _time("changed_at", now=True, nullable=False),
        sa.Column("changed_by", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.CheckConstraint("state in ('running', 'stopped')", name="desired_state_state_check"),
    )
    op.create_table(
        "claim",
        sa.Column("stream", sa.Text, primary_key=True),
        sa.Column("epoch", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("instance", sa.Text, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        _time("claimed_at", now=True, nullable=False),
    )
    op.create_table(
        "attempt",
        sa.Column("stream", sa.Text, primary_key=True),
        sa.Column("epoch", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("instance", sa.Text),
        sa.Column("runner", sa.Text, nullable=False),
        sa.Column("handle", sa.Text),
        _time("submitted_at", now=True, nullable=False),
        _time("ended_at"),
        sa.Column("exit_code", sa.Integer),
        sa.Column("outcome", sa.Text),
        sa.Column("detail", sa.Text),
    )
    op.create_table(
        "stream_progress",
        sa.Column("stream", sa.Text, primary_key=True),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("timeline", sa.Integer, nullable=False),
        _time("at", nullable=False),
        sa.Column("batch_id", sa.BigInteger, nullable=False),
        sa.Column("rows_in", sa.BigInteger, nullable=False),
        sa.Column("rows_out", sa.BigInteger, nullable=False),
        sa.Column("quarantined", sa.BigInteger, nullable=False),
        sa.Column("batch_seconds", sa.Double, nullable=False),
        sa.Column("last_error", sa.Text),
        sa.Column("positions", JSONB, nullable=False),
    )


def _plans_and_alarms() -> None:
    op.create_table(
        "plan",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("target", sa.Text, nullable=False),
        sa.Column("cluster_id", sa.Text, nullable=False),
        sa.Column("body", JSONB, nullable=False),
        sa.Column("hash", sa.Text, nullable=False),
        _time("created_at", nullable=False),
        sa.Column("created_by", sa.Text, nullable=False),
        _time("expires_at", nullable=False),
        sa.Column("status", sa.Text, nullable=False, server_default="open"),
        _time("finished_at"),
        sa.Column("result", JSONB),
        sa.CheckConstraint("status in ('open', 'running', 'done', 'failed', 'stale')", name="plan_status_check"),
    )
    op.create_index("plan_created_at_idx", "plan", ["created_at"])
    op.create_table(
        "alarm",
        sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=True),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
        _time("opened_at", now=True, nullable=False),
        _time("closed_at"),
        _time("told_at"),
    )
    op.create_index(
        "alarm_open_idx", "alarm", ["kind", "subject"], unique=True, postgresql_where=sa.text("closed_at is null")
    )


def _action_log() -> None:
    op.create_table(
        "action_log",
        sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=True),
        _time("at", now=True, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("before", JSONB),
        sa.Column("after", JSONB),
        sa.Column("outcome", sa.Text, nullable=False),
    )
    op.create_index("action_log_subject_idx", "action_log", ["subject", "id"])
    # Holds the owner too, which no grant can.
    op.execute(
        """
        create function action_log_is_append_only() returns trigger language plpgsql as $$
        begin
            raise exception 'the action log is append-only' using errcode = 'insufficient_privilege';
        end $$
        """
    )
    op.execute(
        """
        create trigger action_log_append_only before update or delete or truncate on action_log
        for each statement execute function action_log_is_append_only()
        """
    )
