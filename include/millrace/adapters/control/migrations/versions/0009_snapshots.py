"""Snapshots of clusters: what changed from minute to minute, a partition a day, made and dropped by functions.

The role that Millrace works as may not make tables. The functions do it for it, with the rights of the owner.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

TIMESTAMP = sa.DateTime(timezone=True)
NUMBERS = ARRAY(sa.BigInteger)
BY_DAY = "RANGE (at)"

# LIKE and ATTACH hold up no reader, as CREATE ... PARTITION OF would.
MAKE_DAY = """
create function millrace_snapshot_day_make(day date) returns integer
language plpgsql security definer set search_path = public, pg_temp as $$
declare
    parent text;
    child text;
    made integer := 0;
begin
    perform pg_advisory_xact_lock(hashtextextended('millrace.snapshot.days', 0));
    foreach parent in array array['snapshot', 'snapshot_topic', 'snapshot_group', 'snapshot_commit'] loop
        child := parent || '_' || to_char(day, 'YYYYMMDD');
        if to_regclass(format('public.%I', child)) is null then
            execute format('create table public.%I (like public.%I including all)', child, parent);
            execute format(
                'alter table public.%I attach partition public.%I for values from (%L) to (%L)',
                parent, child, day::text || ' 00:00:00+00', (day + 1)::text || ' 00:00:00+00'
            );
            made := made + 1;
        end if;
    end loop;
    return made;
end
$$
"""

# A table that somebody reads is left for the next time.
DROP_DAYS = """
create function millrace_snapshot_days_drop(before date) returns integer
language plpgsql security definer set search_path = public, pg_temp as $$
declare
    child text;
    dropped integer := 0;
begin
    perform set_config('lock_timeout', '500ms', true);
    for child in
        select c.relname from pg_inherits i
        join pg_class c on c.oid = i.inhrelid
        join pg_class p on p.oid = i.inhparent
        join pg_namespace n on n.oid = p.relnamespace
        where n.nspname = 'public'
          and p.relname in ('snapshot', 'snapshot_topic', 'snapshot_group', 'snapshot_commit')
          and c.relname ~ '_[0-9]{8}$' and right(c.relname, 8) < to_char(before, 'YYYYMMDD')
        order by right(c.relname, 8), c.relname
    loop
        begin
            execute format('drop table public.%I', child);
            dropped := dropped + 1;
        exception when lock_not_available then
            return dropped;
        end;
    end loop;
    return dropped;
end
$$
"""


def upgrade() -> None:
    op.create_table(
        "snapshot",
        sa.Column("connection", sa.Text, primary_key=True),
        sa.Column("at", TIMESTAMP, primary_key=True),
        sa.Column("base", TIMESTAMP, nullable=False),
        sa.Column("cluster_id", sa.Text, nullable=False),
        sa.Column("seconds", sa.Double, nullable=False),
        sa.Column("requests", sa.Integer, nullable=False),
        sa.Column("offsets_kept_seconds", sa.BigInteger),
        sa.Column("faults", JSONB, nullable=False),
        postgresql_partition_by=BY_DAY,
    )
    op.create_table(
        "snapshot_topic",
        sa.Column("connection", sa.Text, primary_key=True),
        sa.Column("topic", sa.Text, primary_key=True),
        sa.Column("at", TIMESTAMP, primary_key=True),
        sa.Column("topic_id", sa.Text),
        sa.Column("starts", NUMBERS, nullable=False),
        sa.Column("ends", NUMBERS, nullable=False),
        sa.Column("stables", NUMBERS, nullable=False),
        sa.Column("first_ms", NUMBERS, nullable=False),
        sa.Column("sizes", NUMBERS, nullable=False),
        postgresql_partition_by=BY_DAY,
    )
    op.create_table(
        "snapshot_group",
        sa.Column("connection", sa.Text, primary_key=True),
        sa.Column("group_id", sa.Text, primary_key=True),
        sa.Column("at", TIMESTAMP, primary_key=True),
        sa.Column("state", sa.Text),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("protocol", sa.Text, nullable=False),
        sa.Column("members", JSONB),
        sa.Column("commits_known", sa.Boolean, nullable=False),
        sa.Column("fault", sa.Text, nullable=False),
        postgresql_partition_by=BY_DAY,
    )
    op.create_table(
        "snapshot_commit",
        sa.Column("connection", sa.Text, primary_key=True),
        sa.Column("group_id", sa.Text, primary_key=True),
        sa.Column("topic", sa.Text, primary_key=True),
        sa.Column("at", TIMESTAMP, primary_key=True),
        sa.Column("offsets", NUMBERS, nullable=False),
        sa.Column("metadata", JSONB, nullable=False),
        postgresql_partition_by=BY_DAY,
    )
    op.execute(MAKE_DAY)
    op.execute(DROP_DAYS)
    for function in ("millrace_snapshot_day_make(date)", "millrace_snapshot_days_drop(date)"):
        op.execute(f"revoke all on function {function} from public")
