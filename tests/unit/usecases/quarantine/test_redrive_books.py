"""The books of what a redrive has touched, of a stream whose sink became another one while its plan was open."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.domain.plans.plan import ChangeResult, Plan, PlanKind, PlanStatus
from millrace.domain.quality.books import Fault, Finding, Part
from millrace.domain.quarantine.redrive import Redrive, Redriven, Selection, about, changes_of
from millrace.domain.topics.offsets import OffsetRange, TopicPartition
from millrace.errors import RefusedError, StalePlanError
from millrace.usecases.plans.kind import Runner
from millrace.usecases.quarantine import redrive
from support.declarations import example_project, kafka_instead, s3_instead, upsert_instead
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
            begin_step=lambda *_: None,
            end_step=lambda *_: None,
            finish=lambda plan, status, results=(): self.end(status, results),
        )
        self.status: PlanStatus | None = None
        self.results: list[ChangeResult] = []

    def end(self, status: PlanStatus, results: Sequence[ChangeResult]) -> None:
        self.status, self.results = status, [*results]

    @property
    def control(self) -> Any:
        return self

    def sinks_tables(self, connection: str) -> Any:
        touched = [SimpleNamespace(partition=P0, first=0, next=10)]
        return SimpleNamespace(address="sink", touched=lambda stream, plan: touched)

    def apps_digest_of(self, pipeline: object, stream: object) -> str:
        return "another"

    def sinks_books(self, connection: str) -> Any:
        return self

    @contextmanager
    def opened(self, stream: str, table: str, key: tuple[str, ...] = ()) -> Iterator[Any]:
        missing = () if key == ("customer_id",) else (Finding(Fault.MISSING, P0, ((0, 10),), 10, 1),)
        yield SimpleNamespace(part=lambda range_: Part(OffsetRange(P0, 0, 10), missing, (), ()))


def stored(status: PlanStatus) -> Any:
    """Return a plan; one that is running has put its records through."""
    said = about(Redrive(NAME, Selection(), "c0de", AT), Redriven(AT, ()))
    plan = Plan(PlanKind.REDRIVE, NAME, "sink", "millrace_sink", changes_of(()), (), AT, AT, "cli:a", "mended", said)
    put_through: Any = SimpleNamespace(name="redrive", done_at=AT, detail=())
    return SimpleNamespace(plan=plan, status=status, steps=(put_through,) if status is PlanStatus.RUNNING else ())


@pytest.mark.parametrize(("upserts", "wrong"), [(True, []), (False, ["missing: shop.purchases/0 [0, 10), 10 offsets"])])
def test_a_plan_that_is_aborted_holds_books_by_the_declared_key(
    tmp_path: Path, upserts: bool, wrong: list[str]
) -> None:
    if upserts:
        upsert_instead(example_project(tmp_path))
    else:
        example_project(tmp_path)
    world: Any = World(tmp_path)

    redrive.abort(world, stored(PlanStatus.RUNNING), Runner("cli:b", "the stream upserts now", AT, lambda _: None))

    assert [result.error for result in world.results if result.error] == wrong


@pytest.mark.parametrize(("instead", "service"), [(kafka_instead, "Kafka"), (s3_instead, "S3")])
def test_a_plan_of_a_stream_that_left_its_table_names_the_way_to_read_again(
    tmp_path: Path, instead: Callable[[Path], None], service: str
) -> None:
    instead(example_project(tmp_path))
    world: Any = World(tmp_path)
    told: list[str] = []
    runner = Runner("cli:b", "the stream moved", AT, told.append)

    with pytest.raises(RefusedError) as refused:
        redrive.run(world, stored(PlanStatus.OPEN), runner)
    redrive.abort(world, stored(PlanStatus.RUNNING), runner)

    assert refused.value.what == f"{NAME} writes to {service}: its rows cannot be found by their source"
    assert "kafka-consumer-groups --reset-offsets" in str(refused.value.next_step)
    (line,) = told
    assert refused.value.what in line
    assert world.status is PlanStatus.ABORTED


def test_a_plan_of_a_stream_that_upserts_now_is_stale_and_not_refused(tmp_path: Path) -> None:
    upsert_instead(example_project(tmp_path))
    world: Any = World(tmp_path)

    with pytest.raises(StalePlanError, match="changed since the trial"):
        redrive.run(world, stored(PlanStatus.OPEN), Runner("cli:b", "", AT - timedelta(hours=1), lambda _: None))

    assert world.status is PlanStatus.STALE
