"""What is to be held against a table, and what was found: between a use case and what looks at the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from millrace.domain.quality.results import RuleResult
from millrace.domain.quality.rules import Rule
from millrace.domain.topics.offsets import OffsetRange


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be held against a table.

    Attributes:
        table: `schema.table`.
        rules: what has to be.
        ranges: the offsets whose rows are looked at.
        gained: those that came since the last look.
        now: the present.
        known_age: by rule of freshness: how old, in seconds, the newest is that was seen before, or that Kafka knows.
        usual: by rule of volume: how many rows are usual, least and most, or why nobody knows.
    """

    table: str
    rules: Sequence[Rule]
    ranges: Sequence[OffsetRange]
    gained: Sequence[OffsetRange]
    now: datetime
    known_age: Mapping[str, float]
    usual: Mapping[str, tuple[int, int] | str]


@dataclass(frozen=True, slots=True)
class Found:
    """What was found.

    Attributes:
        columns: the table's columns, with their types as PostgreSQL spells them; none where it is not there.
        rows: how many rows lie in the ranges.
        gained_rows: how many in those that came since the last look.
        results: of each rule, by its name; none where the table is not there.
        ages: by rule of freshness: how old the newest is, in seconds, where one was seen.
        page: the library's page of it, as HTML.
    """

    columns: Mapping[str, str]
    rows: int
    gained_rows: int
    results: Mapping[str, RuleResult]
    ages: Mapping[str, float]
    page: str
