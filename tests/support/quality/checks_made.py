"""Checks of quality, made up: for what shows them, and a control room that keeps them in memory."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from millrace.domain.quality.ranges import Mark
from millrace.domain.quality.results import Freshness, Outcome, QualityCheck, RuleResult, Waiting
from millrace.domain.quality.rules import Severity
from millrace.domain.topics.offsets import OffsetRange, SourceAt, TopicPartition
from support.fakes.platform import PartsPlatform

NAME = "shop.purchases"
AT = datetime(2026, 5, 4, 12, tzinfo=UTC)
PARTITION = TopicPartition(NAME, "id", 0)
PASSED = RuleResult("given", "not_null", Severity.FAIL, Outcome.PASSED, 100, 0)
SOURCES = tuple(SourceAt(NAME, 0, offset) for offset in range(5))
BROKEN = RuleResult("sane", "range", Severity.FAIL, Outcome.FAILED, 100, 5, sources=SOURCES)
WARNED = RuleResult("mild", "in_set", Severity.WARN, Outcome.FAILED, 100, 2, sources=SOURCES[:2])
UNTRIED = RuleResult("lost", "not_null", Severity.FAIL, Outcome.ERROR, detail="column `lost` does not exist")
EMPTY = RuleResult("given", "not_null", Severity.FAIL, Outcome.SKIPPED, detail="there are no rows")


def made(*results: RuleResult, rows: int | None = 100, identity: int = 7, **more: Any) -> QualityCheck:
    """A check of these results."""
    return QualityCheck(
        stream=NAME,
        began=more.pop("began", AT),
        ended=AT + timedelta(seconds=2),
        reached=Mark(1, {PARTITION: 100}),
        upto=Mark(1, {PARTITION: 100}),
        ranges=(OffsetRange(PARTITION, 0, 100),),
        rows=rows,
        results=results,
        freshness=Freshness(
            AT, events={"fresh/at": AT - timedelta(seconds=4711)}, visible_at=AT - timedelta(minutes=2)
        ),
        identity=identity,
        actor="me",
        **more,
    )


class QualityRoom:
    """What the control room of quality answers, out of a list, the newest first."""

    def __init__(self, *checks: QualityCheck) -> None:
        self.checks = list(checks)
        self.documents: list[Waiting] = []

    def latest(self, stream: str) -> QualityCheck | None:
        return next((one for one in self.checks if one.stream == stream), None)

    def history(self, stream: str, *, limit: int = 20, windows: bool = False) -> tuple[QualityCheck, ...]:
        return tuple(one for one in self.checks if one.stream == stream)[:limit]

    def get(self, identity: int) -> QualityCheck:
        return next(one for one in self.checks if one.identity == identity)

    def waiting(self, stream: str | None = None, limit: int = 50) -> tuple[Waiting, ...]:
        return tuple(self.documents)


def platform_of(root: Path, room: QualityRoom, **more: Any) -> SimpleNamespace:
    """A platform of nothing but this room."""
    control = SimpleNamespace(quality=room)
    return PartsPlatform(settings=SimpleNamespace(root=root), control=control, **more)
