"""Holds of topics, and forecasts of their growth."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import date, datetime
from typing import Protocol

from millrace.domain.retention.forecasts.errors import Comparison
from millrace.domain.retention.forecasts.history import DueEstimate, MadeForecast, TopicLook
from millrace.domain.retention.holds import Hold


class Holds(Protocol):
    """Open and past holds; at most one open a topic and Connection."""

    def working(self, kafka: str, topic: str) -> AbstractContextManager[bool]:
        """Take the right to begin or end a hold of this topic until the block ends; False: somebody else has it."""
        ...

    def begin(self, hold: Hold) -> Hold:
        """Store a hold; the open one of this very topic is extended by it. One of a former topic of that name ends."""
        ...

    def list(self, kafka: str | None = None, *, only_open: bool = True, limit: int = 1000) -> tuple[Hold, ...]:
        """Holds by topic, the newest of each first; `kafka`: of the cluster of this Connection alone."""
        ...

    def end(self, hold: Hold, *, at: datetime, actor: str, reason: str, after: Mapping[str, str], outcome: str) -> bool:
        """Note that a hold has ended, here and in the action log, both or neither; whether it was open until now."""
        ...


class Forecasts(Protocol):
    """Topics by day and their forecasts, by the Connection of their cluster."""

    def measure(self, connection: str, looks: Sequence[TopicLook]) -> None:
        """Keep looks at topics, each topic's latest of its day."""
        ...

    def points(
        self, connection: str, topics: Collection[str] | None, since: datetime, until: datetime
    ) -> Mapping[str, Sequence[TopicLook]]:
        """A look a day at each topic, oldest first, former topics of its name too."""
        ...

    def hourly(
        self, connection: str, topics: Collection[str], since: datetime, until: datetime
    ) -> Mapping[str, Sequence[TopicLook]]:
        """A look an hour at each of these topics, out of the snapshots, oldest first; those with gaps are left out."""
        ...

    def add(self, connection: str, forecasts: Sequence[MadeForecast]) -> int:
        """Keep forecasts; how many. One of the same day and topic stays, unless the topic was made again since."""
        ...

    def latest(
        self, connection: str, topics: Collection[str] | None = None, day: date | None = None
    ) -> Mapping[str, MadeForecast]:
        """The newest forecast of each topic, without past errors."""
        ...

    def due(self, connection: str, now: datetime) -> Sequence[DueEstimate]:
        """The estimates whose day has come, or came within three days, and that were not judged."""
        ...

    def judge(self, connection: str, judged: Sequence[tuple[DueEstimate, Comparison]]) -> None:
        """Keep how far estimates were off; of one that was judged before the first time counts."""
        ...

    def errors(
        self, connection: str, now: datetime, topics: Collection[str] | None = None
    ) -> Mapping[tuple[str, str], Sequence[Comparison]]:
        """Return how far off those forecasts were whose time came in the last 30 days, by topic and its id."""
        ...

    def tidy(self, now: datetime) -> int:
        """Let go of days that are older than 400 days, and of forecasts older than 200; how many rows."""
        ...
