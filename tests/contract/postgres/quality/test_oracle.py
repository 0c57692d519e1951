"""What Great Expectations counts of rules, against plain Python and plain SQL."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from millrace.domain.quality.results import MOST_SOURCES, Outcome
from millrace.domain.quality.rules import KINDS, Exists, Rule
from support.quality.oracle import Truth, by_sql, expected, fill, random_ranges, random_rows, random_rule
from support.quality.sinks import Sink, open_sink

if TYPE_CHECKING:
    from support.stack.control_databases import Databases

FIRST_TIER = (7, 8, 11, 17, 30, 36, 39, 61, 96, 136, 152, 237, 272, 384)
"""Seeds that together try each kind of rule on each type of column and at each open end."""
SEEDS = 400
RULES = 10


@pytest.fixture(scope="module")
def sink(control_databases: Databases) -> Iterator[Sink]:
    """A database with an owner, and a role that may only read what the owner makes."""
    with open_sink(control_databases) as made:
        yield made


def compared(sink: Sink, seed: int) -> set[str]:
    """Hold one generated set of rules against one generated table; the kinds that were tried."""
    chance = random.Random(seed)
    schema = f"oracle_{seed}"
    rows, ranges = random_rows(chance, chance.choice((0, 3, 60, 60))), random_ranges(chance)
    fill(sink.connection, schema, rows)
    made = [_at_home(*random_rule(chance, number), schema) for number in range(RULES)]
    rules = [rule for rule, _ in made]

    found = sink.hold(f"{schema}.rows", rules, ranges)

    for rule, where in made:
        want, got = expected(rule, where, rows, ranges), found.results[rule.name]
        told = f"seed {seed}: {rule} over {ranges}: {got}"
        if want.broken is not None and not want.rows:  # no rows at all, or none that its `where` picks
            assert got.outcome is Outcome.SKIPPED, told
            continue
        assert got.outcome is (Outcome.PASSED if want.passed else Outcome.FAILED), told
        assert got.broken == want.broken, told
        assert got.broken == by_sql(sink.connection, schema, rule, ranges), told
        if want.broken is not None:
            assert got.rows == (found.rows if rule.kind == "sql" else want.rows), told
            named = [(source.partition, source.offset) for source in got.sources]
            assert named == list(want.sources[:MOST_SOURCES]), told
    sink.connection.execute(f"DROP SCHEMA {schema} CASCADE")
    return {rule.kind for rule in rules}


def _at_home(rule: Rule, where: Truth | None, schema: str) -> tuple[Rule, Truth | None]:
    if isinstance(rule.check, Exists):
        rule = replace(rule, check=replace(rule.check, table=rule.check.table.format(schema=schema)))
    return rule, where


def test_every_rule_counts_what_python_and_sql_count(sink: Sink) -> None:
    tried = set().union(*(compared(sink, seed) for seed in FIRST_TIER))
    assert tried == set(KINDS) - {"volume"}  # which is a row count over other bounds: test_checker.py


@pytest.mark.full
def test_many_more_rules_count_what_python_and_sql_count(sink: Sink) -> None:
    for seed in sorted({*range(SEEDS)} - {*FIRST_TIER}):
        compared(sink, seed)
