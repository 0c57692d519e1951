"""Tables of the control database, as the code reads them. The migrations make them; a test holds both equal."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

METADATA = sa.MetaData(naming_convention={"pk": "%(table_name)s_pkey", "ix": "%(table_name)s_%(column_0_N_name)s_idx"})
VERSION_TABLE = "control_version"

TIMESTAMP = sa.DateTime(timezone=True)
NOW = sa.func.now()

desired_state = sa.Table(
    "desired_state",
    METADATA,
    sa.Column("stream", sa.Text, primary_key=True),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False, server_default=sa.text("0")),
    sa.Column("accept_recreated", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("host", sa.Text),
    sa.Column("end_now", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("backoff_reset_at", TIMESTAMP),
    sa.Column("changed_at", TIMESTAMP, nullable=False, server_default=NOW),
    sa.Column("changed_by", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.CheckConstraint("state in ('running', 'stopped')", name="desired_state_state_check"),
)

claim = sa.Table(
    "claim",
    METADATA,
    sa.Column("stream", sa.Text, primary_key=True),
    sa.Column("epoch", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("instance", sa.Text, nullable=False),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("claimed_at", TIMESTAMP, nullable=False, server_default=NOW),
)

attempt = sa.Table(
    "attempt",
    METADATA,
    sa.Column("stream", sa.Text, primary_key=True),
    sa.Column("epoch", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("instance", sa.Text),
    sa.Column("runner", sa.Text, nullable=False),
    sa.Column("handle", sa.Text),
    sa.Column("submitted_at", TIMESTAMP, nullable=False, server_default=NOW),
    sa.Column("ended_at", TIMESTAMP),
    sa.Column("exit_code", sa.Integer),
    sa.Column("outcome", sa.Text),
    sa.Column("detail", sa.Text),
)

stream_progress = sa.Table(
    "stream_progress",
    METADATA,
    sa.Column("stream", sa.Text, primary_key=True),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("timeline", sa.Integer, nullable=False),
    sa.Column("at", TIMESTAMP, nullable=False),
    sa.Column("batch_id", sa.BigInteger, nullable=False),
    sa.Column("rows_in", sa.BigInteger, nullable=False),
    sa.Column("rows_out", sa.BigInteger, nullable=False),
    sa.Column("quarantined", sa.BigInteger, nullable=False),
    sa.Column("batch_seconds", sa.Double, nullable=False),
    sa.Column("last_error", sa.Text),
    sa.Column("positions", JSONB, nullable=False),
    sa.Column("truncated", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("lag", sa.BigInteger),
    sa.Column("undeclared", JSONB, nullable=False, server_default="{}"),
)

stream_look = sa.Table(
    "stream_look",
    METADATA,
    sa.Column("stream", sa.Text, primary_key=True),
    sa.Column("at", TIMESTAMP, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("epoch", sa.BigInteger),
    sa.Column("since", TIMESTAMP),
    sa.Column("why", sa.Text, nullable=False),
    sa.Column("until", TIMESTAMP),
    sa.Column("wished_at", TIMESTAMP),
    sa.Column("host", sa.Text),
)

host = sa.Table(
    "host",
    METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("seen_at", TIMESTAMP, nullable=False, server_default=NOW),
)

app_heartbeat = sa.Table(
    "app_heartbeat",
    METADATA,
    sa.Column("stream", sa.Text, primary_key=True),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("instance", sa.Text, nullable=False),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("namespace", sa.Text, nullable=False),
    sa.Column("phase", sa.Text, nullable=False),
    sa.Column("step", sa.Text, nullable=False),
    sa.Column("at", TIMESTAMP, nullable=False, server_default=NOW),
    sa.Index("app_heartbeat_host_idx", "host"),
)

batch_second = sa.Table(
    "batch_second",
    METADATA,
    sa.Column("stream", sa.Text, primary_key=True),
    sa.Column("at", TIMESTAMP, primary_key=True),
    sa.Column("epoch", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("batches", sa.Integer, nullable=False),
    sa.Column("rows_in", sa.BigInteger, nullable=False),
    sa.Column("rows_out", sa.BigInteger, nullable=False),
    sa.Column("quarantined", sa.BigInteger, nullable=False),
    sa.Column("seconds", sa.Double, nullable=False),
    sa.Column("steps", JSONB, nullable=False),
    sa.Column("lag", sa.BigInteger),
    sa.Index("batch_second_at_idx", "at"),
    sa.Index("batch_second_quarantined_idx", "at", postgresql_where=sa.text("quarantined > 0")),
)

plan = sa.Table(
    "plan",
    METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("target", sa.Text, nullable=False),
    sa.Column("cluster_id", sa.Text, nullable=False),
    sa.Column("body", JSONB, nullable=False),
    sa.Column("hash", sa.Text, nullable=False),
    sa.Column("created_at", TIMESTAMP, nullable=False),
    sa.Column("created_by", sa.Text, nullable=False),
    sa.Column("expires_at", TIMESTAMP, nullable=False),
    sa.Column("status", sa.Text, nullable=False, server_default="open"),
    sa.Column("finished_at", TIMESTAMP),
    sa.Column("result", JSONB),
    sa.Column("asked_in", sa.Text),
    sa.Column("shown_hash", sa.Text),
    sa.Column("confirmed_by", sa.Text),
    sa.Column("confirmed_at", TIMESTAMP),
    sa.CheckConstraint(
        "status in ('open', 'running', 'done', 'failed', 'stale', 'aborted', 'refused')", name="plan_status_check"
    ),
    sa.UniqueConstraint("asked_in", name="plan_asked_in_key"),
    sa.Index("plan_created_at_idx", "created_at"),
    sa.Index("plan_kind_idx", "kind", "target", "created_at"),
)

plan_step = sa.Table(
    "plan_step",
    METADATA,
    sa.Column("plan_id", sa.Text, primary_key=True),
    sa.Column("step", sa.Text, primary_key=True),
    sa.Column("begun_at", TIMESTAMP, nullable=False, server_default=NOW),
    sa.Column("done_at", TIMESTAMP),
    sa.Column("detail", JSONB, nullable=False),
)

action_log = sa.Table(
    "action_log",
    METADATA,
    sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=True),
    sa.Column("at", TIMESTAMP, nullable=False, server_default=NOW),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("action", sa.Text, nullable=False),
    sa.Column("subject", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("before", JSONB),
    sa.Column("after", JSONB),
    sa.Column("outcome", sa.Text, nullable=False),
    sa.Index("action_log_subject_idx", "subject", "id"),
)

alarm = sa.Table(
    "alarm",
    METADATA,
    sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("subject", sa.Text, nullable=False),
    sa.Column("detail", sa.Text, nullable=False),
    sa.Column("opened_at", TIMESTAMP, nullable=False, server_default=NOW),
    sa.Column("closed_at", TIMESTAMP),
    sa.Column("told_at", TIMESTAMP),
    sa.Column("acknowledged_at", TIMESTAMP),
    sa.Column("acknowledged_by", sa.Text),
    sa.Column("acknowledged_reason", sa.Text),
    sa.Column("measure", sa.Double),
    sa.Column("fault", sa.Text, nullable=False, server_default=""),
    sa.Column("known_measure", sa.Double),
    sa.Column("known_fault", sa.Text, nullable=False, server_default=""),
    sa.Column("known_at", TIMESTAMP),
    sa.Column("raised", sa.Integer, nullable=False, server_default="1"),
    sa.Column("raised_at", TIMESTAMP),
    sa.Column("raise_at", TIMESTAMP),
    sa.Column("retry_at", TIMESTAMP),
    sa.Column("notified", JSONB, nullable=False, server_default="[]"),
    sa.Index("alarm_open_idx", "kind", "subject", unique=True, postgresql_where=sa.text("closed_at is null")),
    sa.Index("alarm_raise_idx", "raise_at", postgresql_where=sa.text("raise_at is not null")),
    sa.Index("alarm_untold_idx", "id", postgresql_where=sa.text("told_at is null and acknowledged_at is null")),
)

backup_acknowledgement = sa.Table(
    "backup_acknowledgement",
    METADATA,
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
    sa.Column("at", TIMESTAMP, nullable=False, server_default=NOW),
    sa.Column("taken_at", TIMESTAMP),
    sa.Column("fault", sa.Text, nullable=False, server_default=""),
    sa.CheckConstraint(
        "(sequence is null) = (partition is not null and first is not null and next is not null)",
        name="backup_acknowledgement_about_check",
    ),
    sa.Index("backup_acknowledgement_waiting_idx", "app", postgresql_where=sa.text("taken_at is null")),
)

backup_expiry = sa.Table(
    "backup_expiry",
    METADATA,
    sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=True),
    sa.Column("app", sa.Text, nullable=False),
    sa.Column("topic", sa.Text, nullable=False),
    sa.Column("topic_id", sa.Text, nullable=False),
    sa.Column("sequence", sa.BigInteger, nullable=False),
    sa.Column("by", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("at", TIMESTAMP, nullable=False, server_default=NOW),
    sa.Column("reached", sa.BigInteger),
    sa.Column("fault", sa.Text, nullable=False, server_default=""),
    sa.Column("taken_at", TIMESTAMP),
    sa.CheckConstraint("(taken_at is null) = (reached is null)", name="backup_expiry_taken_check"),
    sa.Index(
        "backup_expiry_waiting_idx",
        "app",
        "topic",
        "topic_id",
        unique=True,
        postgresql_where=sa.text("taken_at is null"),
    ),
)

topic_hold = sa.Table(
    "topic_hold",
    METADATA,
    sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=True),
    sa.Column("connection", sa.Text, nullable=False),
    sa.Column("topic", sa.Text, nullable=False),
    sa.Column("topic_id", sa.Text, nullable=False),
    sa.Column("before", JSONB, nullable=False),
    sa.Column("found", JSONB, nullable=False),
    sa.Column("after", JSONB, nullable=False),
    sa.Column("began_at", TIMESTAMP, nullable=False),
    sa.Column("until", TIMESTAMP, nullable=False),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("ended_at", TIMESTAMP),
    sa.Index("topic_hold_open_idx", "connection", "topic", unique=True, postgresql_where=sa.text("ended_at is null")),
)
