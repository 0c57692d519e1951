"""A host and a control database in memory for the pages, with the faults that real ones cannot be asked for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
from starlette.requests import Request
from starlette.types import ASGIApp

from millrace.airflow.shared import names
from millrace.domain.plans.plan import (
    Change,
    ChangeResult,
    Outcome,
    Plan,
    PlanKind,
    PlanStatus,
    PlanSummary,
    Refusal,
    StepDone,
    StoredPlan,
)
from millrace.domain.streams.control import DesiredStream, StreamHistory, StreamLook, StreamProgress
from millrace.domain.streams.standing import StreamFacts
from millrace.domain.streams.supervision import DesiredState, StreamState
from millrace.errors import UnreachableError
from millrace.web.host import StrangerError, StreamDags
from support.waiting import Deadline

NAME = "X-Test-User"
PATIENCE = timedelta(seconds=Deadline.PAGE.seconds)
"""What a test gives a page that nothing holds up; a busy machine may need more than what a user is made to wait."""
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


def facts(stream: str, **more: Any) -> StreamFacts:
    """A stream that runs well now."""
    now = datetime.now(UTC)
    return StreamFacts(
        **{
            "stream": stream,
            "desired": DesiredStream(stream, DesiredState.RUNNING, 3, False, None, now, "airflow:ann", "a new season"),
            "look": StreamLook(stream, now, StreamState.RUNNING, 3, now, "", None),
            "progress": StreamProgress(stream, 3, 1, now, 7, 1234, 1230, 4, 0.5, None, {}, lag=0),
            **more,
        }
    )


def plan_of(target: str, *, subject: str = "shop.purchases", by: str = "cli:ann", reason: str = "") -> StoredPlan:
    """A plan of topics that was run."""
    change = Change("topic.add_partitions", subject, (("partitions", "4"),), (("partitions", "8"),), "keys move")
    refusal = Refusal("a.refused", "replication differs", reason or "see the guide")
    made = Plan(
        PlanKind.TOPICS, target, "c1", "millrace_kafka", (change,), (refusal,), NOON, NOON + timedelta(days=1), by,
        reason=reason,
    )  # fmt: skip
    result = ChangeResult(change.action, subject, Outcome.FAILED, reason or "no")
    return StoredPlan(made, PlanStatus.DONE, NOON, (result,), (StepDone("look", NOON, None, (("a", reason),)),))


@dataclass
class FakeControl:
    """What the control database says. While `hung` is set it answers nobody; `away`: it says that it does not."""

    streams: Mapping[str, StreamFacts] = field(default_factory=dict)
    history: StreamHistory = field(default_factory=lambda: StreamHistory([], [], []))
    plans: Sequence[StoredPlan] = ()
    away: bool = False
    asked: int = 0
    let_go: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.let_go.set()

    @contextmanager
    def page(self) -> Iterator[SimpleNamespace]:
        self.asked += 1
        assert self.let_go.wait(Deadline.THREAD.seconds)
        if self.away:
            raise UnreachableError("the control database does not answer", where="127.0.0.1:5432/control")
        yield SimpleNamespace(
            facts=self._facts,
            history=lambda *names, **more: self.history,
            plans=lambda kind, target, limit: self.plans,
            plan_summaries=self._summaries,
            newest_plans=lambda kind: {summary.target: summary for summary in self._summaries(limit=50)},
            plan=lambda plan_id: next((stored for stored in self.plans if stored.plan.id == plan_id), None),
        )

    def _summaries(self, *, limit: int, plan_id: str | None = None, **more: Any) -> list[PlanSummary]:
        return [
            PlanSummary(
                plan.id, plan.kind, plan.target, stored.status, plan.created, plan.expires, plan.by, plan.reason, ""
            )
            for stored in self.plans
            for plan in [stored.plan]
            if plan_id in (None, plan.id)
        ][:limit]

    def _facts(self, now: datetime, only: str | None = None) -> dict[str, StreamFacts]:
        return {name: found for name, found in self.streams.items() if only in (None, name)}


@dataclass
class FakeHost:
    """A server whose users are named in a header. `rights` are the streams that a user may read; missing: all."""

    control: FakeControl = field(default_factory=FakeControl)
    root: Path = Path("/nowhere")
    rights: Mapping[str, set[str]] = field(default_factory=dict)
    words: str = "nothing"
    base: str = ""
    forgotten: int = 0

    async def user(self, request: Request) -> object:
        await asyncio.sleep(0)
        if not (name := request.headers.get(NAME)):
            raise StrangerError
        return name

    def readable(self, user: object, names: set[str]) -> set[str]:
        return names & self.rights.get(str(user), names)

    def dags(self, stream: str) -> StreamDags:
        pipeline = stream.partition(".")[0]
        return StreamDags(names.watch(stream), f"{pipeline}.operate", f"{pipeline}.rewind", f"{pipeline}.topics")

    def platform(self) -> Any:
        return SimpleNamespace(control=SimpleNamespace(pages=self.control), settings=SimpleNamespace(root=self.root))

    def forget(self) -> None:
        self.forgotten += 1

    def last_words(self, stream: str, epoch: int) -> str:
        return self.words


def client(app: ASGIApp, headers: Mapping[str, str]) -> httpx.AsyncClient:
    """A client of an app in this process."""
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app),
        base_url="http://airflow",
        headers=headers,
        timeout=PATIENCE.total_seconds(),
    )
