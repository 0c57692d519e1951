"""The books of what a redrive has touched, of a stream that became an upsert while its plan was running."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.domain.plans.plan import ChangeResult, Plan, PlanKind, PlanStatus
from millrace.domain.quality.books import Fault, Finding, Part
from millrace.domain.quarantine.redrive import Redrive, Redriven, Selection, about, changes_of
from millrace.domain.topics.offsets import OffsetRange, TopicPartition
from millrace.usecases.plans.kind import Runner
from millrace.usecases.quarantine import redrive
from support.declarations import example_project, upsert_instead
from support.fakes.platform import GroupedPlatform

NAME = "shop.purchases"
P0 = TopicPartition(NAME, "id", 0)
AT = datetime(2026, 11, 26, tzinfo=UTC)


class World(GroupedPlatform):
    """A sink that one entry was touched in, whose table has one row of each customer: by source, none is found."""

    def __init__(self, root: Path) -> None:
        self.settings = SimpleNamespace(root=root)
        self.log = SimpleNamespace(append=lambda **_: None)
        self.plans = SimpleNamespace(
            begin_step=lambda *_: None, end_step=lambda *_: None, finish=lambda plan, status, results: self.end(results)
        )
        self.results: list[ChangeResult] = []

    def end(self, results: list[ChangeResult]) -> None:
        self.results = results

    @property
    def control(self) -> Any:
        return self

    def sinks_tables(self, connection: str) -> Any:
        return SimpleNamespace(touched=lambda stream, plan: [SimpleNamespace(partition=P0, first=0, next=10)])

    def sinks_books(self, connection: str) -> Any:
        return self

    @contextmanager
    def opened(self, stream: str, table: str, key: tuple[str, ...] = ()) -> Iterator[Any]:
        missing = () if key == ("customer_id",) else (Finding(Fault.MISSING, P0, ((0, 10),), 10, 1),)
        yield SimpleNamespace(part=lambda range_: Part(OffsetRange(P0, 0, 10), missing, (), ()))


@pytest.mark.parametrize(("upserts", "wrong"), [(True, []), (False, ["missing: shop.purchases/0 [0, 10), 10 offsets"])])
def test_a_plan_that_is_aborted_holds_books_by_the_declared_key(
    tmp_path: Path, upserts: bool, wrong: list[str]
) -> None:
    if upserts:
        upsert_instead(example_project(tmp_path))
    else:
        example_project(tmp_path)
    said = about(Redrive(NAME, Selection(), "c0de", AT), Redriven(AT, ()))
    plan = Plan(PlanKind.REDRIVE, NAME, "sink", "millrace_sink", changes_of(()), (), AT, AT, "cli:a", "mended", said)
    put_through: Any = SimpleNamespace(name="redrive", done_at=AT, detail=())
    stored: Any = SimpleNamespace(plan=plan, status=PlanStatus.RUNNING, steps=(put_through,))
    world: Any = World(tmp_path)

    redrive.abort(world, stored, Runner("cli:b", "the stream upserts now", AT, lambda _: None))

    assert [result.error for result in world.results if result.error] == wrong
