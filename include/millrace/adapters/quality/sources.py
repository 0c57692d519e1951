"""Where rows that break a rule come from: some of their sources, by the very condition that counted them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from great_expectations.util import get_sqlalchemy_selectable  # noqa: TID253  loaded by checks alone
from great_expectations.validator.metric_configuration import MetricConfiguration  # noqa: TID253
from great_expectations.validator.metrics_calculator import MetricsCalculator  # noqa: TID253

from millrace.adapters.quality.session import Session
from millrace.adapters.quality.suite import SOURCE, Surroundings, condition_for, expectation_of, query_of
from millrace.domain.quality.results import MOST_SOURCES
from millrace.domain.quality.rules import Exists, Query, Rule, Unique
from millrace.domain.topics.offsets import SourceAt
from millrace.errors import MillraceError

_NAMES = ", ".join(SOURCE)
_FIRST = f"ORDER BY {_NAMES} LIMIT {MOST_SOURCES}"


def sources_of(session: Session, rule: Rule, around: Surroundings, longest: timedelta) -> tuple[SourceAt, ...]:
    """The first sources of the rows that break a rule, a few at most; none where they cannot be told.

    Args:
        session: the moment that the rows were counted at.
        rule: which they break.
        around: what the rule was compiled with.
        longest: how long it may take.
    """
    topics = {one.partition.topic_id: one.partition.topic for one in (*around.ranges, *around.gained)}
    with session.within(longest):
        try:
            match rule.check:
                case Query():
                    found = session.rows(f"{query_of(rule, around, f'DISTINCT {_NAMES}')} {_FIRST}")
                case Unique() | Exists():
                    found = session.rows(f"{query_of(rule, around, _NAMES)} {_FIRST}")
                case _:
                    found = _by_condition(session, rule, around)
        except (MillraceError, sa.exc.SQLAlchemyError):
            return ()  # the count stands; the query of a rule need not name sources
    return tuple(
        SourceAt(topics[topic_id], int(partition), int(offset))
        for topic_id, partition, offset in found
        if topic_id in topics
    )


def _by_condition(session: Session, rule: Rule, around: Surroundings) -> list[tuple[Any, ...]]:
    """By the library's condition of the rows that break the rule."""
    validator = session.validator(around.table, condition_for(rule, around))
    engine = validator.execution_engine
    expectation = expectation_of(rule, around)
    asked = expectation.get_validation_dependencies(execution_engine=engine, runtime_configuration={})
    counted = asked.metric_configurations[f"{expectation.map_metric}.unexpected_count"]
    domain_kwargs = {**counted.metric_domain_kwargs, "batch_id": validator.active_batch_id}
    metric = MetricConfiguration(f"{expectation.map_metric}.condition", domain_kwargs, counted.metric_value_kwargs)
    condition, domain, accessor = MetricsCalculator(execution_engine=engine).get_metric(metric)
    rows = get_sqlalchemy_selectable(engine.get_domain_records(domain_kwargs={**domain, **accessor}))
    columns: list[sa.ColumnClause[Any]] = [sa.column(name) for name in SOURCE]
    query = sa.select(*columns).select_from(rows).where(condition).order_by(*columns).limit(MOST_SOURCES)
    return [tuple(row) for row in engine.execute_query(query).fetchall()]
