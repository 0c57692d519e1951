"""The control database against a real PostgreSQL."""

from __future__ import annotations

import io
import threading
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from psycopg import sql
from rich.console import Console

from millrace.adapters.control.database.connection import open_engine
from millrace.adapters.control.database.tables import METADATA, VERSION_TABLE
from millrace.adapters.control.migrations.upgrade import upgrade
from millrace.adapters.control.store import ControlStore
from millrace.adapters.postgres import schema as postgres_schema
from millrace.adapters.sinks.aside import Aside
from millrace.cli.stack.control import _print
from millrace.domain.alarms.alarm import AlarmStanding
from millrace.domain.archive.audits.acknowledgement import Acknowledgement
from millrace.domain.archive.manifest import PartitionSpan
from millrace.domain.archive.names import Incarnation
from millrace.domain.plans.plan import Asked, Change, ChangeResult, Outcome, Plan, PlanKind, PlanStatus
from millrace.domain.sinks.batch import Identity
from millrace.domain.streams.control import AppendOnly, StreamProgress
from millrace.domain.streams.supervision import DesiredState
from millrace.errors import RefusedError, StalePlanError, UnreachableError, UsageError
from millrace.settings import PostgresSettings
from support.stack.control_databases import Databases
from support.waiting import Deadline, at_once, happened, in_background, result_of

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def store(control_databases: Databases) -> Iterator[ControlStore]:
    store = ControlStore(control_databases.create_upgraded().working)
    yield store
    store.close()


@pytest.fixture
def stream() -> str:
    return f"shop.s{uuid.uuid4().hex[:8]}"


def plan(created: datetime = NOW, subject: str = "shop.purchases") -> Plan:
    change = Change("topic.create", subject, (("exists", "no"),), (("partitions", "4"),))
    expires = created + timedelta(hours=24)
    return Plan(PlanKind.TOPICS, "shop", "cluster", "millrace_kafka", (change,), (), created, expires, "cli:ann")


# The upgrade


def test_migrations_make_the_tables_the_code_reads_and_a_second_upgrade_finds_nothing_to_do(
    control_databases: Databases,
) -> None:
    database = control_databases.create()
    first = upgrade(database.owner, database.working.user)
    second = upgrade(database.owner, database.working.user)
    assert (first.before, first.applied[0], second.applied) == (None, "0001", ())
    assert second.before == second.after == first.after
    assert first.append_only is AppendOnly.PERMISSION
    with open_engine(database.owner).connect() as connection:
        options = {"version_table": VERSION_TABLE, "compare_type": True, "compare_server_default": True}
        assert compare_metadata(MigrationContext.configure(connection, opts=options), METADATA) == []


def test_four_upgrades_at_once_apply_each_migration_once(control_databases: Databases) -> None:
    database = control_databases.create()
    upgrades = [lambda: upgrade(database.owner, database.working.user)] * 4
    reports = at_once(upgrades, within=Deadline.COMMAND, what="four upgrades")
    assert sorted(bool(report.applied) for report in reports) == [False, False, False, True]


def test_a_newer_database_is_refused_and_left_alone(control_databases: Databases) -> None:
    database = control_databases.create()
    upgrade(database.owner, database.working.user)
    control_databases.execute(database.owner, f"update {VERSION_TABLE} set version_num = '9999'")
    with pytest.raises(RefusedError, match="version 9999; this Millrace supports"):
        upgrade(database.owner, database.working.user)
    assert control_databases.query(database.owner, f"select version_num from {VERSION_TABLE}") == [("9999",)]


def test_a_working_role_that_does_not_exist_is_named_and_nothing_is_made(control_databases: Databases) -> None:
    database = control_databases.create()
    with pytest.raises(RefusedError, match="role nobody_here of connection millrace_control does not exist"):
        upgrade(database.owner, "nobody_here")
    assert control_databases.query(database.owner, "select 1 from pg_tables where schemaname = 'public'") == []


def test_a_database_without_tables_says_to_upgrade_it(control_databases: Databases) -> None:
    database = control_databases.create()
    with pytest.raises(UnreachableError, match="millrace control upgrade"):
        ControlStore(database.working).check()


# What streams that write to Kafka keep in it


def test_a_server_that_is_too_old_for_streams_that_write_to_kafka_is_one_for_all_others(
    control_databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, told = control_databases.create(), io.StringIO()
    with monkeypatch.context() as patched:
        patched.setattr(postgres_schema, "_OLDEST_SERVER", 990_000)
        report = upgrade(database.owner, database.working.user)
    assert report.applied[0] == "0001"
    _print(Console(file=told, width=400), report)
    assert "streams that write to Kafka or S3 cannot run yet: the server is PostgreSQL" in told.getvalue()
    ControlStore(database.working).check()
    assert upgrade(database.owner, database.working.user).aside == ""


def test_an_owner_that_may_make_no_schema_upgrades_and_schemas_made_by_hand_are_enough(
    control_databases: Databases,
) -> None:
    database = control_databases.create()
    superuser = control_databases.superuser_of(database.owner.database)
    owner = sql.Identifier(database.owner.user)
    name = sql.Identifier(database.owner.database)
    control_databases.execute(superuser, sql.SQL("alter database {} owner to postgres").format(name))
    control_databases.execute(superuser, sql.SQL("grant all on schema public to {}").format(owner))
    report = upgrade(database.owner, database.working.user)
    assert (report.applied[0], "permission denied for database" in report.aside) == ("0001", True)
    for schema in ("millrace", "millrace_staging"):
        made = sql.SQL("create schema {} authorization {}").format(sql.Identifier(schema), owner)
        control_databases.execute(superuser, made)
    assert upgrade(database.owner, database.working.user).aside == ""
    Aside(database.working, Identity("shop.s", 1, "one")).take_over()


@pytest.mark.parametrize(
    ("granted", "said"),
    [("", "permission denied for schema millrace"), ("usage", "They belong to postgres")],
)
def test_tables_of_another_owner_hold_up_the_streams_that_write_to_kafka_alone(
    control_databases: Databases, granted: str, said: str
) -> None:
    database = control_databases.create()
    with psycopg.connect(**control_databases.superuser_of(database.owner.database).keywords()) as connection:
        postgres_schema.ensure_schema(connection.cursor())
        if granted:
            owner = sql.Identifier(database.owner.user)
            connection.execute(sql.SQL("grant usage on schema millrace, millrace_staging to {}").format(owner))
            connection.execute(sql.SQL("grant select on all tables in schema millrace to {}").format(owner))
    report = upgrade(database.owner, database.working.user)
    assert (report.applied[0], said in report.aside) == ("0001", True)
    with pytest.raises(RefusedError, match="millrace control upgrade"):
        Aside(database.working, Identity("shop.s", 1, "one")).take_over()


def test_control_tables_in_another_schema_of_the_owners_are_found_again(control_databases: Databases) -> None:
    database = control_databases.create()
    control_databases.execute(database.owner, "create schema own")
    control_databases.as_superuser(f"alter role {database.owner.user} set search_path = own, public")
    upgrade(database.owner, database.owner.user)
    assert upgrade(database.owner, database.owner.user).applied == ()
    held = f"select schemaname from pg_tables where tablename = '{VERSION_TABLE}'"
    assert control_databases.query(database.owner, held) == [("own",)]


def test_a_right_that_the_owner_lacks_is_not_had_by_another_upgrade(control_databases: Databases) -> None:
    database = control_databases.create()
    control_databases.as_superuser(f"alter database {database.owner.database} owner to postgres")
    with pytest.raises(RefusedError, match="lacks a right for the upgrade: permission denied for schema public"):
        upgrade(database.owner, database.working.user)


def test_a_stream_that_writes_to_kafka_makes_no_tables_and_says_who_does(control_databases: Databases) -> None:
    database = control_databases.create()

    def start(epoch: int) -> None:
        Aside(database.working, Identity("shop.s", epoch, f"i{epoch}")).take_over()

    with pytest.raises(RefusedError, match="millrace control upgrade"):
        start(1)
    upgrade(database.owner, database.working.user)
    start(2)
    control_databases.execute(database.owner, "update millrace.version set version = 5")
    with pytest.raises(RefusedError, match=r"have version 5(.|\n)*millrace control upgrade"):
        start(3)
    upgrade(database.owner, database.working.user)
    start(4)


def test_staging_that_belongs_to_another_role_is_left_and_holds_up_no_start(control_databases: Databases) -> None:
    database = control_databases.create()
    upgrade(database.owner, database.working.user)
    control_databases.execute(database.owner, 'create unlogged table millrace_staging."shop.s#5" (one int)')
    aside = Aside(database.working, Identity("shop.s", 6, "six"))
    aside.take_over()
    aside.prepare_staging()
    held = "select tablename from pg_tables where schemaname = 'millrace_staging' order by 1"
    assert control_databases.query(database.owner, held) == [("shop.s#5",), ("shop.s#6",), ("shop.s#6!",)]
    aside.discard()
    assert control_databases.query(database.owner, held) == [("shop.s#5",)]


CHANGES = ["update action_log set actor = 'x'", "delete from action_log", "truncate action_log"]


@pytest.mark.parametrize("statement", CHANGES)
def test_the_action_log_refuses_every_change_by_permission(
    control_databases: Databases, store: ControlStore, statement: str
) -> None:
    store.log.append(actor="cli:ann", action="topic.create", subject="t", reason="why")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied"):
        control_databases.execute(store._settings, statement)


@pytest.mark.parametrize("statement", CHANGES)
def test_the_action_log_refuses_its_owner_by_trigger(control_databases: Databases, statement: str) -> None:
    database = control_databases.create()
    report = upgrade(database.owner, database.owner.user)
    assert report.append_only is AppendOnly.TRIGGER
    ControlStore(database.owner).log.append(actor="cli:ann", action="topic.create", subject="t", reason="why")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="append-only"):
        control_databases.execute(database.owner, statement)


# Unreachable


def test_a_server_that_is_not_there_is_named_without_its_password() -> None:
    settings = PostgresSettings("127.0.0.1", 1, "millrace_control", "millrace_control", "s3cret-word")
    with pytest.raises(UnreachableError) as caught:
        ControlStore(settings).streams.all_desired()
    assert caught.value.where == "127.0.0.1:1/millrace_control"
    assert "s3cret-word" not in str(caught.value) + repr(caught.value)


def test_a_wrong_password_is_unreachable_and_never_shown(store: ControlStore) -> None:
    with pytest.raises(UnreachableError, match="password authentication failed") as caught:
        ControlStore(replace(store._settings, password="s3cret-word")).check()
    assert "s3cret-word" not in str(caught.value)


def test_connections_that_died_in_the_pool_are_replaced(control_databases: Databases, store: ControlStore) -> None:
    store.check()
    control_databases.end_connections(store._settings)
    store.check()


# Streams


def test_a_stream_nobody_spoke_of_is_unknown_and_its_first_start_gets_epoch_one(
    store: ControlStore, stream: str
) -> None:
    assert store.streams.desired(stream) is None
    after = store.streams.set_desired(stream, state=DesiredState.RUNNING, actor="cli:ann", reason="go")
    assert (after.state, after.epoch, after.changed_by, after.reason) == (DesiredState.RUNNING, 0, "cli:ann", "go")
    assert store.streams.raise_epoch(stream, 0, host="here") == 1
    assert stream in {desired.stream for desired in store.streams.all_desired()}


def test_only_one_of_many_starts_raises_the_epoch(store: ControlStore, stream: str) -> None:
    store.streams.set_desired(stream, state=DesiredState.RUNNING, actor="a", reason="r")
    starts = [lambda: store.streams.raise_epoch(stream, 0, host="here")] * 6
    epochs = at_once(starts, within=Deadline.THREAD, what="six starts")
    assert sorted(epochs, key=str) == [1, None, None, None, None, None]


def test_a_start_is_above_the_epochs_that_others_know(store: ControlStore, stream: str) -> None:
    store.streams.set_desired(stream, state=DesiredState.RUNNING, actor="a", reason="r")
    assert store.streams.raise_epoch(stream, 0, host="here", above=41) == 42
    assert store.streams.raise_epoch(stream, 0, host="here", above=41) is None
    assert store.streams.raise_epoch(stream, 42, host="here", above=7) == 43


def test_no_start_begins_once_a_stop_is_stored(store: ControlStore, stream: str) -> None:
    store.streams.set_desired(stream, state=DesiredState.RUNNING, actor="a", reason="r")
    store.streams.set_desired(stream, state=DesiredState.STOPPED, actor="a", reason="r")
    assert store.streams.raise_epoch(stream, 0, host="here") is None


def test_what_is_wanted_is_logged_with_who_why_before_and_after(store: ControlStore, stream: str) -> None:
    store.streams.set_desired(stream, state=DesiredState.RUNNING, actor="cli:ann", reason="first day")
    store.streams.set_desired(stream, state=DesiredState.STOPPED, actor="airflow:bob", reason="too loud")
    stop, start = store.log.list(subject=stream)
    assert (start.action, start.actor, start.reason, start.before) == ("stream.start", "cli:ann", "first day", {})
    assert (stop.action, stop.actor, stop.before["state"], stop.after["state"]) == (
        "stream.stop",
        "airflow:bob",
        "running",
        "stopped",
    )


def test_an_acceptance_is_kept_until_it_is_used_once(store: ControlStore, stream: str) -> None:
    store.streams.set_desired(stream, accept_recreated=True, actor="a", reason="r", reset_backoff=True)
    desired = store.streams.set_desired(stream, state=DesiredState.RUNNING, actor="a", reason="r")
    assert desired.accept_recreated
    assert desired.backoff_reset_at is not None
    assert [store.streams.consume_acceptance(stream) for _ in range(2)] == [True, False]


def test_the_first_instance_gets_the_claim_and_may_ask_again(store: ControlStore, stream: str) -> None:
    claims = [lambda i=i: store.streams.claim(stream, 3, f"i{i}", "host") for i in range(6)]
    won = at_once(claims, within=Deadline.THREAD, what="six claims")
    assert won.count(True) == 1
    holder = store.streams.claimed(stream, 3)
    assert holder is not None
    assert store.streams.claim(stream, 3, holder.instance, "host")
    assert store.streams.claim(stream, 4, "other", "host")


def test_attempts_keep_the_first_end_and_come_newest_first(store: ControlStore, stream: str) -> None:
    for epoch in (1, 2, 3):
        store.streams.record_submitted(stream, epoch, runner="process", instance=f"i{epoch}")
    store.streams.record_submitted(stream, 3, runner="process", handle="4711")
    assert store.streams.record_ended(stream, 2, outcome="failed", exit_code=1, detail="boom")
    assert not store.streams.record_ended(stream, 2, outcome="stopped", exit_code=0)
    latest, failed = store.streams.attempts(stream, last=2)
    assert (latest.epoch, latest.instance, latest.handle, latest.ended_at) == (3, "i3", "4711", None)
    assert (failed.outcome, failed.exit_code, failed.detail) == ("failed", 1, "boom")


def test_progress_of_an_older_epoch_never_covers_that_of_a_newer(store: ControlStore, stream: str) -> None:
    newer = StreamProgress(stream, 2, 1, NOW, 7, 10, 9, 1, 0.5, None, {"shop.purchases/0": 10})
    assert store.streams.save_progress(newer)
    assert not store.streams.save_progress(replace(newer, epoch=1, batch_id=99))
    assert store.streams.progress(stream) == newer
    assert store.streams.save_progress(replace(newer, batch_id=8, last_error="late"))
    assert newer.stream in {progress.stream for progress in store.streams.all_progress()}


def test_one_supervises_a_stream_at_a_time_and_others_are_told_at_once(store: ControlStore, stream: str) -> None:
    supervising = store.streams.supervising
    with supervising(stream) as mine, supervising(stream) as second, supervising(f"{stream}x") as other:
        assert (mine, second, other) == (True, False, True)
    with store.streams.supervising(stream) as again:
        assert again


def test_a_lock_whose_connection_died_is_free_and_does_not_hide_the_blocks_result(
    control_databases: Databases, store: ControlStore, stream: str
) -> None:
    for _ in range(8):  # more often than the pool has connections
        with store.streams.supervising(stream) as mine:
            assert mine
            control_databases.end_connections(store._settings)
            with store.streams.supervising(stream) as taken:
                assert taken


# Plans


def test_a_plan_comes_back_equal_and_an_equal_open_one_is_not_stored_twice(store: ControlStore) -> None:
    first = store.plans.add(plan(subject="a.equal"))
    again = store.plans.add(plan(NOW + timedelta(hours=1), subject="a.equal"))
    assert again == first
    assert store.plans.get(first.id).plan == first
    assert store.plans.get(first.id).status is PlanStatus.OPEN
    later = store.plans.add(plan(NOW + timedelta(hours=25), subject="a.equal"))
    assert later.id != first.id


def test_a_run_of_a_dag_is_bound_to_one_plan_for_ever_and_shares_it_with_nobody(store: ControlStore) -> None:
    by_hand = store.plans.add(plan(subject="a.bound"))
    mine = store.plans.add(plan(NOW + timedelta(seconds=1), subject="a.bound"), asked_in="shop.rewind/1")
    assert mine.id != by_hand.id
    again = store.plans.add(plan(NOW + timedelta(seconds=2), subject="a.other"), asked_in="shop.rewind/1")
    assert again == mine
    other = store.plans.add(plan(NOW + timedelta(seconds=3), subject="a.bound"), asked_in="shop.rewind/2")
    assert other.id not in {mine.id, by_hand.id}
    assert store.plans.add(plan(NOW + timedelta(seconds=4), subject="a.bound")) == by_hand
    assert store.plans.of_run("shop.rewind/3") is None
    found = store.plans.of_run("shop.rewind/1")
    assert found
    assert (found.plan, found.asked, found.confirmed) == (mine, Asked("shop.rewind/1"), False)


def test_only_the_plan_that_was_shown_is_confirmed_and_only_while_it_is_open(store: ControlStore) -> None:
    mine = store.plans.add(plan(subject="a.shown"), asked_in="shop.rewind/4")
    assert not store.plans.confirm(mine, "anna", NOW), "nothing was shown"
    assert store.plans.note_shown(mine)
    assert not store.plans.confirm(replace(mine, target="elsewhere"), "anna", NOW)
    assert store.plans.confirm(mine, "anna", NOW)
    stored = store.plans.get(mine.id)
    assert stored.confirmed
    assert stored.asked == Asked("shop.rewind/4", mine.hash, "anna", NOW)
    store.plans.begin(mine.id)
    assert not store.plans.refuse(mine), "it is run"
    assert not store.plans.note_shown(mine)

    rejected = store.plans.add(plan(subject="a.rejected"), asked_in="shop.rewind/5")
    assert store.plans.note_shown(rejected)
    assert store.plans.refuse(rejected)
    assert not store.plans.confirm(rejected, "anna", NOW)
    assert store.plans.get(rejected.id).status is PlanStatus.REFUSED
    by_hand = store.plans.add(plan(subject="a.byhand"))
    assert not store.plans.note_shown(by_hand), "nobody asked for it in a form"


def test_an_unknown_plan_is_a_usage_error(store: ControlStore) -> None:
    with pytest.raises(UsageError, match="the plan is unknown"):
        store.plans.get("topics-000000000000")


def test_a_plan_whose_row_was_changed_is_refused(control_databases: Databases, store: ControlStore) -> None:
    stored = store.plans.add(plan(subject="a.changed"))
    forged = "update plan set body = jsonb_set(body, '{changes,0,after,partitions}', '\"400\"') where id = %s"
    control_databases.execute(store._settings, forged, (stored.id,))
    with pytest.raises(StalePlanError, match="its hash differs"):
        store.plans.get(stored.id)
    control_databases.execute(store._settings, "delete from plan where id = %s", (stored.id,))


def test_a_plan_is_begun_once_and_its_end_stays(store: ControlStore) -> None:
    stored = store.plans.add(plan(subject="a.begun"))
    assert [store.plans.begin(stored.id) for _ in range(2)] == [PlanStatus.OPEN, PlanStatus.RUNNING]
    results = (ChangeResult("topic.create", "a.begun", Outcome.FAILED, "no brokers"),)
    store.plans.finish(stored.id, PlanStatus.FAILED, results)
    store.plans.finish(stored.id, PlanStatus.DONE)
    after = store.plans.get(stored.id)
    assert (after.status, after.results) == (PlanStatus.FAILED, results)
    assert after.finished_at is not None
    assert store.plans.begin(stored.id) is PlanStatus.FAILED
    assert stored.id in {found.plan.id for found in store.plans.list(status=PlanStatus.FAILED)}


def test_two_runners_never_hold_one_plan(store: ControlStore) -> None:
    inside, release = threading.Event(), threading.Event()

    def hold() -> bool:
        with store.plans.running("p1") as mine:
            inside.set()
            happened(release, what="the second look")
            return mine

    first = in_background(hold)
    try:
        happened(inside, what="the first to hold the plan")
        with store.plans.running("p1") as second:
            assert not second
    finally:
        release.set()
    assert result_of(first, within=Deadline.THREAD, what="the first runner")


# Alarms and the log


def test_an_alarm_is_open_once_told_once_and_may_come_again(store: ControlStore, stream: str) -> None:
    assert [store.alarms.open("dead_stream", stream, f"try {i}") for i in range(3)] == [True, False, False]
    alarm = next(a for a in store.alarms.list(only_untold=True) if a.subject == stream)
    assert alarm.detail == "try 2"
    told = store.alarms.record_round(alarm, {"log": ""})
    assert told.told_at is not None
    assert store.alarms.record_round(alarm, {"log": ""}) == told
    assert stream not in {a.subject for a in store.alarms.list(only_untold=True)}
    assert [store.alarms.close("dead_stream", stream) for _ in range(2)] == [True, False]
    assert store.alarms.open("dead_stream", stream, "again")
    assert len([a for a in store.alarms.list(only_open=False) if a.subject == stream]) == 2


def test_of_many_untold_alarms_the_oldest_come_first(store: ControlStore, stream: str) -> None:
    for number in range(3):
        store.alarms.open("dead_stream", f"{stream}{number}", "it died")
    found = [alarm.subject for alarm in store.alarms.list(only_untold=True, limit=1000)]
    assert [subject for subject in found if subject.startswith(stream)] == [f"{stream}{number}" for number in range(3)]
    assert store.alarms.list(only_untold=True, limit=1)[0].subject != f"{stream}2"


def test_an_acknowledged_alarm_stays_open_and_nobody_is_told_of_it(store: ControlStore, stream: str) -> None:
    store.alarms.open("dead_stream", stream, "it died")
    [alarm] = [a for a in store.alarms.list() if a.subject == stream]
    taken, first = store.alarms.acknowledge(alarm.identity, actor="cli:ann", reason="looking at it")
    assert (first, taken.acknowledged_by, taken.acknowledged_reason) == (True, "cli:ann", "looking at it")
    assert taken.standing is AlarmStanding.ACKNOWLEDGED
    assert stream not in {a.subject for a in store.alarms.list(only_open=False, only_untold=True)}
    assert store.alarms.acknowledge(alarm.identity, actor="cli:bob", reason="me too") == (taken, False)
    [entry] = store.log.list(subject=stream)
    assert (entry.actor, entry.action, entry.reason) == ("cli:ann", "alarm.acknowledge", "looking at it")
    assert entry.after == {"alarm": str(alarm.identity), "kind": "dead_stream"}
    assert not store.alarms.open("dead_stream", stream, "it died again")
    assert store.alarms.get(alarm.identity).standing is AlarmStanding.ACKNOWLEDGED
    store.alarms.close("dead_stream", stream)
    assert store.alarms.get(alarm.identity).standing is AlarmStanding.OVER


def test_an_alarm_that_was_never_there_is_named(store: ControlStore) -> None:
    for asked in (store.alarms.get, lambda number: store.alarms.acknowledge(number, actor="cli:ann", reason="why")):
        with pytest.raises(UsageError, match="alarm 987654321 is unknown"):
            asked(987654321)


def test_one_of_many_openers_opens_an_alarm(store: ControlStore, stream: str) -> None:
    openers = [lambda: store.alarms.open("lost", stream, "d")] * 6
    opened = at_once(openers, within=Deadline.THREAD, what="six openers")
    assert opened.count(True) == 1


def test_the_log_of_a_pipeline_holds_its_streams_and_nobody_elses(store: ControlStore) -> None:
    for subject in ("p_1", "p_1.a", "p_1x", "pq1.a"):
        store.log.append(actor="a", action="x.y", subject=subject, reason="r", before={"a": "1"}, after={"a": "2"})
    entries = store.log.list(subject="p_1")
    assert [entry.subject for entry in entries] == ["p_1.a", "p_1"]
    assert (entries[0].before, entries[0].after, entries[0].outcome) == ({"a": "1"}, {"a": "2"}, "done")
    assert len(store.log.list(subject="p_1", limit=1)) == 1


def test_sqlalchemy_never_prints_the_password(store: ControlStore) -> None:
    assert store._settings.password not in repr(store._engine) + repr(store._settings)
    assert isinstance(store._engine, sa.Engine)


# What backups are asked


def test_an_acknowledgement_waits_for_its_app_until_it_was_taken(store: ControlStore) -> None:
    here = Incarnation("shop.purchases", "A" * 22)
    app = f"t{uuid.uuid4().hex[:8]}.backup"
    lost = Acknowledgement(None, app, here, PartitionSpan(3, 5, 9), None, "cli:ann", "known")
    cut_off = replace(lost, span=None, sequence=0)
    numbers = store.backups.acknowledge([lost, cut_off], "partition 3 [5, 9)")
    assert store.backups.waiting(app) == (replace(lost, identity=numbers[0]), replace(cut_off, identity=numbers[1]))
    assert store.backups.waiting("other.backup") == ()
    store.backups.taken(numbers[0])
    store.backups.taken(numbers[0])
    assert [asked.identity for asked in store.backups.waiting(app)] == numbers[1:]
    known = [asked.identity for asked in store.backups.known(here) if asked.app == app]
    assert known == numbers, "what was taken is known as before"
    [entry] = store.log.list(subject=app)
    assert (entry.actor, entry.action, entry.reason) == ("cli:ann", "backup.acknowledge", "known")


def test_an_acknowledgement_is_about_offsets_or_about_a_chain() -> None:
    here = Incarnation("shop.purchases", "A" * 22)
    for span, sequence in ((None, None), (PartitionSpan(0, 1, 2), 3)):
        with pytest.raises(ValueError, match="not about both"):
            Acknowledgement(None, "shop.backup", here, span, sequence, "cli:ann", "known")
