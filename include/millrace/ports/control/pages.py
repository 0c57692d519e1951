"""Queries of the pages, each page in one short transaction."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import Protocol

from millrace.domain.plans.plan import PlanKind, PlanSummary, StoredPlan
from millrace.domain.streams.control import StreamHistory
from millrace.domain.streams.standing import StreamFacts


class Pages(Protocol):
    """Reads for pages: one connection a page, closed after it, and none in between."""

    def page(self) -> AbstractContextManager[PageQueries]:
        """The queries of one page, all of one moment.

        Raises:
            UnreachableError: the database does not answer, or not soon enough.
        """
        ...


class PageQueries(Protocol):
    """The queries of one page. Each is one statement."""

    def facts(self, now: datetime, only: str | None = None) -> dict[str, StreamFacts]:
        """The facts of every stream anybody wanted anything of or looked at, by name; of one where `only` names it."""
        ...

    def history(self, stream: str, *, since: datetime, bucket: timedelta, attempts: int, actions: int) -> StreamHistory:
        """Return what one stream's batches did since then in parts of a time, and its last attempts and actions."""
        ...

    def plan_summaries(
        self, *, limit: int, kind: PlanKind | None = None, target: str | None = None, plan_id: str | None = None
    ) -> Sequence[PlanSummary]:
        """The latest plans, newest first; only those of a kind, of a target, or the one of this id."""
        ...

    def newest_plans(self, kind: PlanKind) -> dict[str, PlanSummary]:
        """The newest plan of each target."""
        ...

    def plans(self, kind: PlanKind, target: str, *, limit: int) -> Sequence[StoredPlan]:
        """The latest plans of a target, newest first, without their steps; one that was tampered with is left out."""
        ...

    def plan(self, plan_id: str) -> StoredPlan | None:
        """One plan with its steps; None where there is none of this id.

        Raises:
            StalePlanError: its content is no longer what was hashed.
        """
        ...
