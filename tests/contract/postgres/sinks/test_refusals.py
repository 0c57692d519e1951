"""What the sink's database says no to, on a real PostgreSQL: told by SQLSTATE, and counted before anything moves."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pyarrow as pa
import pytest

from millrace.adapters.postgres.connection import connect
from millrace.errors import (
    DeclarationError,
    RowsRefusedError,
    SinkExhaustedError,
    SinkFailedError,
    SinkRolledBackError,
    SinkUnreachableError,
)
from support.sinks.writer import COLUMNS, P0, Writer
from support.waiting import Deadline, in_time

RAISING = """
CREATE FUNCTION {name}.raising() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN {body} RETURN NEW; END $$;
CREATE {constraint} TRIGGER raising {when} INSERT ON {name}.rows {deferred}
FOR EACH ROW EXECUTE FUNCTION {name}.raising()
"""


@pytest.fixture
def writer(database, name, admin) -> Writer:
    return Writer(database, name, 1).ready()


def trigger(admin, name: str, body: str, *, deferred: bool = False) -> None:
    more = ("CONSTRAINT", "AFTER", "DEFERRABLE INITIALLY DEFERRED") if deferred else ("", "BEFORE", "")
    constraint, when, at_commit = more
    admin.execute(RAISING.format(name=name, body=body, constraint=constraint, when=when, deferred=at_commit))


def offsets(error: RowsRefusedError) -> list[int]:
    return sorted(offset for _, _, offset in error.sources)


def state(writer: Writer, admin) -> tuple[int, int, int]:
    """Rows, records in quarantine, and the record of work."""
    asked = (
        f"SELECT count(*) FROM {writer.sink.target}",
        f"SELECT count(*) FROM millrace.quarantine WHERE stream = '{writer.identity.stream}'",
        f"SELECT next_offset FROM millrace.progress WHERE stream = '{writer.identity.stream}'",
    )
    rows, quarantined, done = (admin.execute(query).fetchone()[0] for query in asked)
    return rows, quarantined, done


UNTOUCHED = (0, 0, 0)


# Counts


def test_a_batch_whose_staging_was_emptied_moves_nothing(writer, admin):
    writer.stage(range(5))
    admin.execute(f'TRUNCATE millrace_staging."{writer.identity.application_name}"')
    with pytest.raises(SinkFailedError, match="5 rows were staged, but 0 arrived"):
        writer.merge(0, 5, rows=5)
    assert state(writer, admin) == UNTOUCHED


def test_a_trigger_that_drops_rows_in_silence_moves_nothing(writer, name, admin):
    trigger(admin, name, "IF NEW._offset = 3 THEN RETURN NULL; END IF;")
    with pytest.raises(SinkFailedError, match="triggers"):
        writer.commit(0, 5)
    assert state(writer, admin) == UNTOUCHED


def test_a_bad_record_that_is_staged_nowhere_moves_nothing(writer, admin):
    writer.stage(range(4))
    with pytest.raises(SinkFailedError, match="1 bad records were staged, but 0 arrived"):
        writer.merge(0, 5, rows=4, bad_records=1)
    assert state(writer, admin) == UNTOUCHED


def test_what_is_on_record_already_and_what_is_refused_are_counted_as_left_out(writer, admin):
    writer.commit(0, 3)
    writer.sink.begin_batch()
    writer.stage(range(1, 8))
    writer.stage([2, 5, 6], attempt=9, value="of a task that was tried again")
    refused = {("id-one", 0, offset): "why" for offset in (2, 5)}
    assert writer.merge(1, 8, rows=7, refused=refused).rows_out == 4
    assert state(writer, admin) == (7, 0, 8)


# Rows that are refused


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        ("ALTER TABLE {rows} ADD CHECK (amount <> 7)", "check constraint"),
        ("ALTER TABLE {rows} ADD inverse numeric GENERATED ALWAYS AS (1 / (amount - 7)) STORED", "division by zero"),
        ("CREATE INDEX ON {rows} ((CASE amount WHEN 7 THEN name END))", "index row"),
        ("RAISE", "I do not want 7"),
        ("RAISE AT COMMIT", "I do not want 7"),
        ("RAISE BY ASSERT", "I do not want 7"),
    ],
)
def test_a_row_is_found_whatever_refuses_it(writer, name, admin, prepare, reason):
    if prepare.startswith("RAISE"):
        body = "IF NEW.amount = 7 THEN RAISE EXCEPTION 'I do not want %', NEW._offset; END IF;"
        if prepare.endswith("ASSERT"):
            body = "ASSERT NEW.amount <> 7, 'I do not want 7';"
        trigger(admin, name, body, deferred=prepare.endswith("COMMIT"))
    else:
        admin.execute(prepare.format(rows=f"{name}.rows"))
    incompressible = "".join(chr(0x4E00 + number * 7919 % 20_000) for number in range(2_000))
    with pytest.raises(RowsRefusedError) as caught:
        writer.commit(0, 12, value=incompressible)
    assert offsets(caught.value) == [7]
    assert reason in "".join(caught.value.sources.values())
    assert state(writer, admin) == UNTOUCHED
    assert writer.commit(0, 12, refused=caught.value.sources).rows_out == 11


def test_thousands_of_refused_rows_are_found_by_one_statement(writer, name, admin):
    admin.execute(f"ALTER TABLE {name}.rows ADD CHECK (amount % 5 <> 0)")
    admin.execute(
        f'INSERT INTO millrace_staging."{writer.identity.application_name}" '
        "SELECT 1, 'id-one', 0, n, 0, 'x', n FROM generate_series(0, 19999) AS n"
    )
    with pytest.raises(RowsRefusedError) as caught:
        writer.merge(0, 20_000, rows=20_000)
    assert offsets(caught.value) == list(range(0, 20_000, 5))


def test_all_rows_of_a_record_are_refused_with_one_of_them(writer, name, admin):
    """Otherwise one that goes in on trial could keep out another record's."""
    admin.execute(f"ALTER TABLE {name}.rows ADD CHECK (name <> 'bad'), ADD UNIQUE (name)")
    writer.sink.begin_batch()
    writer.stage([0], value="same")
    writer.stage([0], value="bad", ordinal=1)
    writer.stage([1], value="same")
    with pytest.raises(RowsRefusedError) as caught:
        writer.merge(0, 2, rows=3)
    assert offsets(caught.value) == [0]
    assert writer.merge(0, 2, rows=3, refused=caught.value.sources).rows_out == 1


def test_a_row_that_refers_to_a_later_one_of_its_batch_is_not_refused(database, name, admin):
    writer = Writer(database, name, 1).ready(COLUMNS.append(pa.field("refers", pa.string())))
    admin.execute(f"ALTER TABLE {name}.rows ADD UNIQUE (name), ADD CHECK (amount <> 0)")
    admin.execute(f"ALTER TABLE {name}.rows ADD FOREIGN KEY (refers) REFERENCES {name}.rows (name)")
    links = {0: None, 1: "row 2", 2: "row 3", 3: None, 4: "nobody"}
    for offset, refers in links.items():
        writer.stage([offset], value=f"row {offset}")
        statement = f'UPDATE millrace_staging."{writer.identity.application_name}" SET refers = %s WHERE _offset = %s'
        admin.execute(statement, (refers, offset))
    with pytest.raises(RowsRefusedError) as caught:
        writer.merge(0, 5, rows=5)
    assert offsets(caught.value) == [0, 4]


def test_a_reference_that_is_checked_at_the_commit_finds_its_row(database, name, admin):
    writer = Writer(database, name, 1).ready()
    admin.execute(f"CREATE TABLE {name}.amounts (amount numeric PRIMARY KEY)")
    admin.execute(f"INSERT INTO {name}.amounts SELECT generate_series(0, 4)")
    admin.execute(
        f"ALTER TABLE {name}.rows ADD FOREIGN KEY (amount) REFERENCES {name}.amounts DEFERRABLE INITIALLY DEFERRED"
    )
    with pytest.raises(RowsRefusedError) as caught:
        writer.commit(0, 6)
    assert offsets(caught.value) == [5]
    assert state(writer, admin) == UNTOUCHED


def test_a_refusal_that_no_row_is_to_blame_for_stops_with_its_reason(writer, name, admin):
    admin.execute(f"CREATE SEQUENCE {name}.calls")
    body = f"IF nextval('{name}.calls') = 1 THEN RAISE EXCEPTION 'not all of them'; END IF;"
    trigger(admin, name, body, deferred=True)
    with pytest.raises(DeclarationError, match=r"accepts each of them alone: not all of them"):
        writer.commit(0, 3)
    assert state(writer, admin) == UNTOUCHED


def test_a_constraint_of_another_table_on_what_is_replaced_stops_with_its_name(writer, name, admin):
    admin.execute(f"ALTER TABLE {name}.rows ADD UNIQUE (name)")
    admin.execute(
        f"CREATE TABLE {name}.others (refers text CONSTRAINT theirs REFERENCES {name}.rows (name) "
        "DEFERRABLE INITIALLY DEFERRED)"
    )
    writer.commit(0, 1, value="first")
    admin.execute(f"INSERT INTO {name}.others VALUES ('first')")
    writer.sink.open_positions(2, {P0: 0})
    writer.sink.begin_batch()
    writer.stage([0], value="another")
    with pytest.raises(DeclarationError, match="still referenced") as caught:
        writer.merge(0, 1, rows=1, timeline=2)
    assert "theirs" in caught.value.next_step
    assert admin.execute(f"SELECT name FROM {name}.rows").fetchall() == [("first",)]


def test_two_rows_of_one_record_are_told_by_the_key_that_the_table_has(writer, name, admin):
    """The key of a table that somebody else has made may have any name."""
    admin.execute(f"ALTER TABLE {name}.rows RENAME CONSTRAINT rows_source TO their_own_key")
    writer.sink.prepare(COLUMNS)
    writer.stage([0])
    writer.stage([0])
    with pytest.raises(DeclarationError, match="_ordinal"):
        writer.merge(0, 1, rows=2)


# Everything else, by SQLSTATE


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("40001", SinkRolledBackError),
        ("40P01", SinkRolledBackError),
        ("53100", SinkExhaustedError),
        ("53200", SinkExhaustedError),
        ("57P03", SinkUnreachableError),
        ("25006", SinkUnreachableError),
        ("25P03", SinkUnreachableError),
        ("25P04", SinkUnreachableError),
        ("57014", SinkFailedError),
        ("42501", SinkFailedError),
        ("XX000", SinkFailedError),
    ],
)
def test_what_an_error_asks_for_is_told_by_its_code(writer, name, admin, code, kind):
    trigger(admin, name, f"RAISE EXCEPTION 'raised on purpose' USING ERRCODE = '{code}';")
    with pytest.raises(kind, match=f"raised on purpose.*SQLSTATE {code}") as caught:
        writer.commit(0, 3)
    assert type(caught.value) is kind
    if kind is not SinkUnreachableError:
        assert "`insert the rows`" in caught.value.what
    admin.execute(f"DROP TRIGGER raising ON {name}.rows")
    assert writer.commit(0, 3).rows_out == 3


def test_a_connection_that_is_ended_is_gone_and_the_next_batch_opens_another(writer, admin):
    writer.commit(0, 1)
    end = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = %s"
    admin.execute(end, (writer.identity.application_name,))
    with pytest.raises(SinkUnreachableError):
        writer.merge(1, 2, rows=0)
    assert writer.commit(1, 2).rows_out == 1


def test_a_server_without_room_for_a_connection_is_not_away(control_databases):
    owner = control_databases.create().owner
    control_databases.as_superuser(f"ALTER ROLE {owner.user} CONNECTION LIMIT 0")
    with pytest.raises(SinkExhaustedError, match="too many connections"):
        connect(owner, "one too many")


@pytest.mark.parametrize("state", ["waits for its client", "works on"])
def test_what_a_lost_connection_left_at_work_does_not_hold_up_the_next_try(writer, admin, database, state):
    """The server has not heard that the connection broke: the old backend keeps its locks."""
    writer.commit(0, 1)
    with closing(connect(database, writer.identity.application_name)) as left:
        left.execute("SELECT FROM millrace.fence WHERE stream = %s FOR UPDATE", (writer.identity.stream,))
        left.execute(f'LOCK millrace_staging."{writer.identity.application_name}"')
        if state == "works on":
            left.pgconn.send_query(b"SELECT pg_sleep(3600)")
        admin.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = %s AND pid <> %s",
            (writer.identity.application_name, left.info.backend_pid),
        )
        with pytest.raises(SinkUnreachableError):
            writer.sink.read_record()
        assert in_time(lambda: writer.commit(1, 3), within=Deadline.SERVER, what="the next batch").rows_out == 2


def test_a_task_that_was_given_up_does_not_hold_up_the_next_batch(writer, database):
    """Its connection broke, and not the driver's."""
    with closing(connect(database, writer.identity.application_name)) as left:
        left.execute(f'LOCK millrace_staging."{writer.identity.application_name}"')
        assert in_time(lambda: writer.commit(0, 3), within=Deadline.SERVER, what="the next batch").rows_out == 3


def test_a_statement_that_fails_is_named(writer, admin):
    admin.execute(f'DROP TABLE millrace_staging."{writer.identity.application_name}"')
    with pytest.raises(SinkFailedError, match=r"`insert the rows` failed.*does not exist.*42P01"):
        writer.merge(0, 1, rows=1)
    with pytest.raises(SinkFailedError, match="`empty the staging tables` failed"):
        writer.sink.begin_batch()


def test_the_databases_own_words_hold_no_password(database, name):
    writer = Writer(replace(database, password="never shown"), name, 1)
    with pytest.raises(SinkUnreachableError) as caught:
        writer.sink.take_over()
    assert "never shown" not in str(caught.value)
