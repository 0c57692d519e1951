"""What a check of quality costs: twenty rules over a million rows, beside the same counted by hand-written SQL.

Called as `./millrace test tests/bench/quality/bench_checks.py -s`.
MILLRACE_BENCH_ROWS says how many (1,000,000). The check is
a process of its own, started cold, so that loading the library and its memory count too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from support.quality.sinks import TOPIC_ID, open_sink
from support.stack import control_databases
from support.waiting import Deadline

if TYPE_CHECKING:
    from millrace.embedded.stack import Stack

ROWS = int(os.environ.get("MILLRACE_BENCH_ROWS", "1000000"))
TABLE = "quality.rows"
RANGE = f"_topic_id = '{TOPIC_ID}' AND _partition BETWEEN 0 AND 3 AND _offset >= 0 AND _offset < {ROWS}"
BY_HAND = f"""
SELECT count(*) FILTER (WHERE customer IS NULL), count(*) FILTER (WHERE amount IS NULL),
    count(*) FILTER (WHERE quantity IS NULL), count(*) FILTER (WHERE score IS NULL),
    count(*) FILTER (WHERE happened IS NULL), count(*) FILTER (WHERE kind IS NULL),
    count(*) FILTER (WHERE amount NOT BETWEEN 0 AND 400), count(*) FILTER (WHERE quantity NOT BETWEEN 1 AND 9),
    count(*) FILTER (WHERE score NOT BETWEEN 0 AND 100000),
    count(*) FILTER (WHERE happened < '2026-04-25'), count(*) FILTER (WHERE kind NOT IN ('a', 'b')),
    count(*) FILTER (WHERE quantity NOT IN (1, 2, 3, 4, 5, 6, 7, 8, 9)),
    count(*) FILTER (WHERE customer !~ '^c[0-9]{{4}}$'), count(*) FILTER (WHERE kind !~ '^[ab]$'),
    count(*) FILTER (WHERE NOT (amount >= 0 OR quantity < 5)), count(*) FILTER (WHERE NOT (quantity < score)),
    count(*), extract(epoch FROM now() - max(happened))
FROM {TABLE} WHERE {RANGE}
"""
DOUBLES = f"""
SELECT coalesce(sum(held), 0) FROM (SELECT count(*) AS held FROM {TABLE} WHERE {RANGE} AND happened IS NOT NULL
    GROUP BY happened HAVING count(*) > 1) AS doubled
"""
FOUND = f"SELECT count(*) FROM {TABLE} WHERE {RANGE} AND amount = 499 AND quantity = 10"
CHILD = """
import json, resource, sys, time
from datetime import UTC, datetime, timedelta
began = time.perf_counter()
from millrace.adapters.quality.checker import QualityChecker
from millrace.domain.quality.holding import Asked
from millrace.domain.quality.rules import *
from millrace.settings import PostgresSettings
from support.quality.sinks import whole
loaded = time.perf_counter() - began
given = json.loads(sys.argv[1])
columns = ("customer", "amount", "quantity", "score", "happened", "kind")
rules = [Rule(f"given_{name}", NotNull(name)) for name in columns]
rules += [Rule("amount", Range("amount", 0, 400)), Rule("quantity", Range("quantity", 1, 9))]
rules += [Rule("score", Range("score", 0, 100000)), Rule("happened", Range("happened", "2026-04-25"))]
rules += [Rule("kind", InSet("kind", ("a", "b"))), Rule("few", InSet("quantity", tuple(range(1, 10))))]
rules += [Rule("shape", Matches("customer", "^c[0-9]{4}$")), Rule("letter", Matches("kind", "^[ab]$"))]
rules += [Rule("condition", RowCondition("amount >= 0 or quantity < 5"))]
rules += [Rule("compare", Compare("quantity", Comparison.LESS, "score")), Rule("rows", RowCount(1))]
rules += [Rule("fresh", Fresh(timedelta(days=999), "happened")), Rule("once", Unique(("happened",)))]
rules += [Rule("query", Query("select 1 from {rows} where amount = 499 and quantity = 10"))]
settings = PostgresSettings(**given["settings"])
asked = Asked("quality.rows", rules, whole(given["rows"]), (), datetime.now(UTC), {}, {})
found = QualityChecker(settings).hold(asked)
print(json.dumps({
    "rules": len(rules), "loaded": loaded, "seconds": time.perf_counter() - began,
    "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    "broken": {name: result.broken for name, result in found.results.items()},
}))
"""


def test_twenty_rules_beside_the_same_by_hand(postgres: Stack) -> None:
    databases = control_databases.on(postgres)
    with open_sink(databases) as sink:
        sink.make(TABLE, ROWS)
        sink.connection.execute(f"VACUUM ANALYZE {TABLE}")
        with psycopg.connect(**sink.database.working.keywords(), autocommit=True) as reader:
            for statement in (BY_HAND, DOUBLES, FOUND):  # once, so that both find the table in memory
                reader.execute(statement).fetchall()
            began = time.perf_counter()
            counted, doubles, found = (reader.execute(text).fetchall()[0] for text in (BY_HAND, DOUBLES, FOUND))
            by_hand = time.perf_counter() - began
        given = json.dumps({"settings": _settings(sink.database.working), "rows": ROWS})
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(["include", "tests"])}
        done = subprocess.run(
            [sys.executable, "-c", CHILD, given],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
            cwd=Path(__file__).parents[3],
            timeout=Deadline.LONG.seconds,
        )
    told = json.loads(done.stdout.splitlines()[-1])
    broken = told["broken"]
    assert [broken["kind"], broken["amount"], broken["once"], broken["query"]] == [
        counted[10],
        counted[6],
        int(doubles[0]),
        int(found[0]),
    ]
    print(f"\n{told['rules']} rules over {ROWS:,} rows")
    load, memory = f"{told['loaded']:.1f} s to load", f"{told['memory']:.0f} MiB at most"
    print(f"check, cold      {told['seconds']:.1f} s, of which {load}; {memory}")
    print(f"by hand          {by_hand:.1f} s in three statements, that say no source and have no page")


def _settings(settings: object) -> dict[str, object]:
    names = ("host", "port", "database", "user", "password")
    return {name: getattr(settings, name) for name in names}
