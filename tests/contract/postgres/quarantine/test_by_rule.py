"""A redrive of one rule reads the records of that rule, and no other, however many there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from millrace.adapters.postgres.connection import connect
from millrace.adapters.sinks.postgres.redrive import MOST_RECORDS, QuarantineRedrive
from millrace.domain.quarantine.redrive import Place, Selection
from support.quarantine.redrive_bench import Bench
from support.stack.control_databases import Databases

EVERY = 100  # so many records, of which one is of the rare rule
RARE = "wrong_type"
IS_WHOLE = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('millrace.quarantine_by_rule')"


@pytest.fixture
def bench(control_databases: Databases, name: str) -> Iterator[Bench]:
    """A stream in a database of its own: others' transactions would be waited for."""
    database = control_databases.create().owner
    with connect(database, "test") as admin:
        admin.autocommit = True
        admin.execute(f"CREATE SCHEMA {name}")
        yield Bench(database, name, admin)


def fill(bench: Bench, count: int) -> list[int]:
    """Records in quarantine; the offsets of those of the rare rule."""
    bench.admin.execute(
        'INSERT INTO millrace.quarantine (stream, timeline, topic, topic_id, partition, "offset", value, headers, '
        "rule, error, epoch) SELECT %s, 1, 't', 'id-one', 0, n, 'v', '[]', "
        "CASE n %% %s WHEN %s - 1 THEN %s ELSE 'not_json' END, 'why', 1 FROM generate_series(0, %s - 1) AS n",
        (bench.stream, EVERY, EVERY, RARE, count),
    )
    return list(range(EVERY - 1, count, EVERY))


def is_whole(bench: Bench) -> bool | None:
    """Whether the index is of use; None: there is none."""
    found = bench.admin.execute(IS_WHOLE).fetchone()
    return None if found is None else bool(found[0])


class Explained(psycopg.Cursor[Any]):
    """Notes how many rows of quarantine each query for keys looks at, as the server counts them."""

    looked_at: list[int]

    def execute(self, query: Any, params: Any = None, **more: Any) -> Any:
        if isinstance(query, str) and f"LIMIT {MOST_RECORDS}" in query:
            super().execute("EXPLAIN (ANALYZE, FORMAT JSON) " + query, params)
            [(explained,)] = self.fetchall()
            self.looked_at.append(looked_at(explained[0]["Plan"]))
        return super().execute(query, params, **more)


def looked_at(plan: dict[str, Any]) -> int:
    own = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0) if plan.get("Relation Name") else 0
    return int(own) + sum(looked_at(below) for below in plan.get("Plans", ()))


def read(redrive: QuarantineRedrive, selection: Selection) -> tuple[list[int], int]:
    """The offsets that are selected, and how many rows were looked at for them."""
    kind = type("Counting", (Explained,), {"looked_at": []})
    redrive.connection.cursor_factory = kind
    found = [one.offset for _, part in redrive.parts(selection, redrive.now()) for one in part]
    return found, sum(kind.looked_at)  # type: ignore[attr-defined]


@pytest.mark.parametrize("count", [5_000, pytest.param(1_000_000, marks=pytest.mark.full)])
@pytest.mark.parametrize("analyzed", [False, True], ids=["without statistics", "with statistics"])
def test_only_the_records_of_the_rule_are_looked_at(bench: Bench, count: int, analyzed: bool) -> None:
    offsets = fill(bench, count)
    if analyzed:
        bench.admin.execute("ANALYZE millrace.quarantine")
    places = (Place("t", 0, 1_000, 4_000),)
    with bench.opened() as redrive:
        assert read(redrive, Selection(rule=RARE)) == (offsets, len(offsets))
        assert read(redrive, Selection(rule="nul_character")) == ([], 0)
        within = [offset for offset in offsets if 1_000 <= offset < 4_000]
        assert read(redrive, Selection(rule=RARE, places=places)) == (within, len(within))


def test_the_first_redrive_of_a_rule_makes_the_index_that_an_older_millrace_did_not(bench: Bench) -> None:
    offsets = fill(bench, 2_000)
    bench.admin.execute("DROP INDEX millrace.quarantine_by_rule")
    with bench.opened() as redrive:
        assert len(read(redrive, Selection())[0]) == 2_000
        assert is_whole(bench) is None
        assert read(redrive, Selection(rule=RARE)) == (offsets, len(offsets))
    assert is_whole(bench) is True


def test_a_transaction_in_the_way_of_the_index_keeps_no_redrive_and_the_next_one_makes_it(bench: Bench) -> None:
    offsets = fill(bench, 2_000)
    bench.admin.execute("DROP INDEX millrace.quarantine_by_rule")
    with bench.opened() as redrive:
        redrive.connection.execute("SET lock_timeout = '100ms'")
        with connect(bench.database, "batch") as batch:
            batch.execute('DELETE FROM millrace.quarantine WHERE "offset" = 0')
            assert read(redrive, Selection(rule=RARE))[0] == offsets
            assert is_whole(bench) is False
        assert read(redrive, Selection(rule=RARE)) == (offsets, len(offsets))
        assert redrive.connection.execute("SHOW statement_timeout").fetchone() == ("2min",)
    assert is_whole(bench) is True


def test_batches_write_while_the_index_is_made(bench: Bench) -> None:
    """It waits for whoever writes; nobody who writes waits for it."""
    bench.admin.execute("DROP INDEX millrace.quarantine_by_rule")
    fill(bench, 100)
    with bench.opened() as redrive, connect(bench.database, "batch") as batch:
        redrive.connection.execute("SET lock_timeout = '100ms'")
        batch.execute("SET lock_timeout = '100ms'")
        batch.execute('DELETE FROM millrace.quarantine WHERE "offset" = 0')
        read(redrive, Selection(rule=RARE))
        assert is_whole(bench) is False
        batch.execute('DELETE FROM millrace.quarantine WHERE "offset" = 1')
        batch.commit()
    assert bench.quarantine() == list(range(2, 100))


def test_a_role_that_does_not_own_the_table_reads_without_the_index(bench: Bench, control_databases: Databases) -> None:
    offsets = fill(bench, 1_000)
    bench.admin.execute("DROP INDEX millrace.quarantine_by_rule")
    give_away = "ALTER TABLE millrace.quarantine OWNER TO postgres"
    grant = f"GRANT SELECT, INSERT, UPDATE, DELETE ON millrace.quarantine TO {bench.database.user}"
    for statement in (give_away, grant):
        control_databases.execute(control_databases.superuser_of(bench.database.database), statement)
    with bench.opened() as redrive:
        assert read(redrive, Selection(rule=RARE))[0] == offsets
    assert is_whole(bench) is None
