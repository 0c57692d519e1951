"""What a check found: counts and sources, never values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import pairwise

from millrace.domain.quality.ranges import Mark
from millrace.domain.quality.rules import Severity
from millrace.domain.topics.offsets import OffsetRange, SourceAt

MOST_SOURCES = 20
"""So many sources of rows that break a rule are kept."""
TOLD_SOURCES = 3
"""So many of them stand in an alarm or a line."""


class Outcome(StrEnum):
    """What came of one rule."""

    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"  # it could not be held against the rows
    SKIPPED = "skipped"  # there was nothing to hold it against: no rows, or no history


class Verdict(StrEnum):
    """What came of a check."""

    PASSED = "passed"  # no rule of severity fail is broken, and each could be held against the rows
    FAILED = "failed"  # one is broken
    ERROR = "error"  # none is known to be broken, but one could not be held against the rows
    EMPTY = "empty"  # there were no rows: that is no success


@dataclass(frozen=True, slots=True)
class RuleResult:
    """What came of one rule.

    Attributes:
        rule: its name.
        kind: the word for what it checks.
        severity: what it does where it is broken.
        outcome: what came of it.
        rows: how many rows it was held against; None for one that is about no rows.
        broken: how many of them break it; None where it counts none.
        detail: what was found, in words and without any value of a row; empty where the counts say all.
        sources: where some of the rows that break it come from, by topic, partition and offset.
    """

    rule: str
    kind: str
    severity: Severity
    outcome: Outcome
    rows: int | None = None
    broken: int | None = None
    detail: str = ""
    sources: tuple[SourceAt, ...] = ()

    @property
    def is_red(self) -> bool:
        """Whether it turns the check red."""
        return self.severity is Severity.FAIL and self.outcome in (Outcome.FAILED, Outcome.ERROR)

    def __str__(self) -> str:
        """In a line, with three sources at most."""
        if self.outcome is Outcome.FAILED and self.broken is not None:
            text = f"{self.rule}: {self.broken:,} of {self.rows or 0:,} rows break it ({self.kind})"
            named = ", ".join(map(str, self.sources[:TOLD_SOURCES]))
            return f"{text}; from {named}" + (" ..." if self.broken > TOLD_SOURCES else "") if named else text
        return f"{self.rule}: {self.outcome}" + (f": {self.detail}" if self.detail else "") + f" ({self.kind})"


@dataclass(frozen=True, slots=True)
class Freshness:
    """How old the newest of a table is, in the parts of its way; a part is None where nobody knows it.

    Attributes:
        events: the newest event's time by each rule of freshness that has a column, as `RULE/COLUMN`.
        record_at: the newest time that the topics' records below the record of work have, by Kafka.
        batch_at: when the batch that wrote last began.
        visible_at: when its rows could be seen.
        checked_at: when they were looked at.
    """

    checked_at: datetime
    events: Mapping[str, datetime] = field(default_factory=dict)
    record_at: datetime | None = None
    batch_at: datetime | None = None
    visible_at: datetime | None = None

    @property
    def event_at(self) -> datetime | None:
        """The newest event's time, by the rule that finds it oldest."""
        return min(self.events.values(), default=None)

    @property
    def parts(self) -> tuple[tuple[str, timedelta], ...]:
        """Each part that is known, in the order of the way: from one known moment to the next."""
        moments = (
            ("event", self.event_at),
            ("broker", self.record_at),
            ("batch", self.batch_at),
            ("visible", self.visible_at),
            ("checked", self.checked_at),
        )
        known = [(name, at) for name, at in moments if at is not None]
        return tuple((f"{earlier[0]} -> {later[0]}", later[1] - earlier[1]) for earlier, later in pairwise(known))


@dataclass(frozen=True, slots=True)
class Gain:
    """How many rows came between two looks, and how long that took."""

    rows: int
    span: timedelta


@dataclass(frozen=True, slots=True)
class QualityCheck:
    """One check of a stream's table.

    Attributes:
        stream: PIPELINE.STREAM.
        began: when.
        ended: when.
        reached: where the record of work stood.
        upto: up to where rows are proven once these are; before `reached`, where there were too many for one check.
        ranges: the offsets whose rows were looked at.
        rows: how many those are; None where that could not be counted.
        results: of each rule, in the rule file's order.
        gain: what came since the last look, whatever that found; None where there was none, and of a window.
        window: from when to when, by the records' timestamps, where somebody asked for that; None: what was gained.
        freshness: of the newest row, where it was asked for.
        problem: what kept the whole check from being done; empty: nothing.
        identity: in the control database; None: not stored.
        evidence: the keys of its documents in the bucket; none yet where it was away.
        actor: who had it done.
    """

    stream: str
    began: datetime
    ended: datetime
    reached: Mark
    upto: Mark
    ranges: tuple[OffsetRange, ...]
    rows: int | None
    results: tuple[RuleResult, ...]
    gain: Gain | None = None
    window: tuple[datetime, datetime] | None = None
    freshness: Freshness | None = None
    problem: str = ""
    identity: int | None = None
    evidence: tuple[str, ...] = ()
    actor: str = ""

    @property
    def verdict(self) -> Verdict:
        """What came of it."""
        return verdict_of(self.results, self.rows, self.problem)

    @property
    def left(self) -> int:
        """How many offsets of what the record of work has gained are for the next check to look at."""
        return sum(at - self.upto.offsets.get(partition, at) for partition, at in self.reached.offsets.items())

    @property
    def red(self) -> Sequence[RuleResult]:
        """The rules that turn it red."""
        return [result for result in self.results if result.is_red]

    @property
    def warned(self) -> Sequence[RuleResult]:
        """The broken rules of severity warn, and those that could not be held against the rows."""
        bad = (Outcome.FAILED, Outcome.ERROR)
        return [one for one in self.results if one.severity is Severity.WARN and one.outcome in bad]

    def __str__(self) -> str:
        """How many rules over how many rows, and what came of it, in a line."""
        rows = "" if self.rows is None else f" over {self.rows:,} rows"
        said = {
            Verdict.PASSED: "passed",
            Verdict.FAILED: f"broken: {', '.join(result.rule for result in self.red)}",
            Verdict.ERROR: f"not tested: {self.problem or ', '.join(result.rule for result in self.red)}",
            Verdict.EMPTY: "nothing is proven",
        }[self.verdict]
        warned = [result.rule for result in self.warned]
        more = f"; {len(warned)} warned ({', '.join(warned)})" if warned else ""
        if self.window is None and (left := self.left):
            more += f"; {left:,} offsets wait for the next check"
        return f"{len(self.results)} rules{rows}: {said}{more}"


@dataclass(frozen=True, slots=True)
class Waiting:
    """A document of a check that the bucket has not got yet.

    Attributes:
        identity: of the document, in the control database.
        check: whose it is.
        key: what the bucket is to call it.
        data: its bytes.
    """

    identity: int
    check: int
    key: str
    data: bytes


def verdict_of(results: Sequence[RuleResult], rows: int | None, problem: str = "") -> Verdict:
    """What came of a check. A broken rule counts before one that could not be tried, and both before emptiness."""
    red = {result.outcome for result in results if result.is_red}
    if Outcome.FAILED in red:
        return Verdict.FAILED
    if problem or Outcome.ERROR in red:
        return Verdict.ERROR
    return Verdict.EMPTY if not rows else Verdict.PASSED
