"""Plans of redrives: what they say, when they are stale, and how they end; the database is real, Spark stands in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from millrace.domain.plans.plan import Outcome, Plan, PlanStatus, StoredPlan
from millrace.domain.quarantine.redrive import Place, Redriven, Selection, Tally
from millrace.domain.quarantine.rules import Broken, Rule
from millrace.embedded.stack import Stack
from millrace.errors import PartFailedError, RefusedError, StalePlanError, UnreachableError, UsageError
from millrace.ports.platform import Platform
from millrace.settings import Settings
from millrace.usecases.plans import listing, running
from millrace.usecases.quarantine.redrive import make_plan, selection_of
from millrace.wiring import open_platform
from support.fakes.platform import Instead
from support.quarantine.redrive_bench import BAD, EVERYTHING, Bench


@dataclass
class Job:
    """Stands in for the process with Spark: decides by offset what becomes of a record.

    Attributes:
        made: how many rows; one where it is not named.
        bad: what stays, and why.
        dies_after: it dies once so many records are through.
    """

    bench: Bench
    made: dict[int, int] = field(default_factory=dict)
    bad: dict[int, Broken] = field(default_factory=dict)
    dies_after: int | None = None
    runs: int = 0

    def attempt(
        self, stream: str, selection: Selection, connections: Sequence[str], progress: Callable[[int], object]
    ) -> Redriven:
        return self._do(selection, None, "", progress)

    def run(
        self,
        stream: str,
        selection: Selection,
        connections: Sequence[str],
        progress: Callable[[int], object],
        *,
        upto: datetime,
        plan: str,
    ) -> Redriven:
        self.runs += 1
        return self._do(selection, upto, plan, progress)

    def _do(
        self, selection: Selection, upto: datetime | None, plan: str, progress: Callable[[int], object]
    ) -> Redriven:
        tally, done = Tally(), 0
        with self.bench.opened(plan) as redrive:
            moment = upto or redrive.now()
            for _, part in redrive.parts(selection, moment):
                for one in part:
                    put = self.bench.put_part(redrive, [one], self.made, self.bad, keep=bool(plan))
                    tally.add(one.at, one.rule, put[one.offset].fate, put[one.offset].now, put[one.offset].rows)
                    done += 1
                    progress(done)
                    if plan and done == self.dies_after:
                        raise PartFailedError("it died", where="the job", next_step="run it again")
        return Redriven(moment, tally.sums())


class World:
    """A project with one stream, whose sink and control database are real."""

    def __init__(self, bench: Bench, root: Path, stack: Stack) -> None:
        self.bench, self.root = bench, root
        self.job = Job(bench)
        self.platform: Any = open_platform(Settings(root, stack.settings().lookup))
        self.platform = Wired(self.platform, self.job)
        folder = root / "spark_apps" / "app"
        folder.mkdir(parents=True)
        self.transform = folder / "transform.py"
        self.transform.write_text("def transform(inputs, tables): ...\n")
        (root / "include" / "pipelines").mkdir(parents=True)
        self.declaration = root / "include" / "pipelines" / f"{bench.name}.yaml"
        self.declaration.write_text(
            f"pipeline: {bench.name}\nowner: tests\ntopics:\n  {bench.name}.t:\n    partitions: 1\n"
            '    replication: 1\n    value: {format: json, schema: "id INT"}\n'
            f"streams:\n  s:\n    app: app\n    reads: [{bench.name}.t]\n    writes: {{postgres: "
            f"{{connection: millrace_sink, table: {bench.name}.rows, mode: append}}}}\n"
        )

    def plan(self, selection: Selection = EVERYTHING, **more: Any) -> Plan:
        return make_plan(self.platform, self.bench.stream, selection, by="cli:a", reason="mended", **more)

    def run(self, plan: Plan, **more: Any) -> StoredPlan:
        return running.run(self.platform, plan.id, actor="cli:b", **more)

    def stored(self, plan: Plan) -> StoredPlan:
        return listing.show(self.platform, plan.id)

    def logged(self) -> list[tuple[str, dict[str, str]]]:
        entries = self.platform.control.log.list(subject=self.bench.stream, limit=100)
        return [(entry.action, dict(entry.after or {})) for entry in reversed(entries)]


class Wired(Instead):
    """The platform, but for its jobs, and for books that may be away."""

    def __init__(self, platform: Platform, job: Job) -> None:
        super().__init__(
            platform,
            apps=Instead(platform.apps, redriving=lambda: job),
            sinks=Instead(platform.sinks, books=self._books),
        )
        self.books_away = False

    def _books(self, connection: str) -> Any:
        if self.books_away:
            raise UnreachableError("the sink does not answer", where="the sink", next_step="wait")
        return self._real.sinks.books(connection)


@pytest.fixture
def world(database, name, admin, tmp_path: Path, postgres: Stack) -> World:
    bench = Bench(database, name, admin)
    bench.commit(0, 10, bad=[2, 5, 7])
    return World(bench, tmp_path, postgres)


def counts(stored: StoredPlan) -> dict[str, str]:
    return dict(next(step.detail for step in stored.steps if step.name == "redrive"))


def test_a_plan_says_what_would_become_of_what_by_rule_and_is_run_once(world: World) -> None:
    world.job.made, world.job.bad = {2: 2, 5: 0}, {7: BAD}
    told: list[str] = []
    plan = world.plan(tell=told.append)
    assert told[-1] == f"{world.bench.stream}: 3 records tried"
    [change] = plan.changes
    assert (change.action, change.subject) == ("quarantine.redrive", "t not_json")
    assert dict(change.before) == {"in_quarantine": "3"}
    assert dict(change.after) == {
        "in_quarantine": "1",
        "become_rows": "1, 2 rows in all",
        "dropped_by_the_transform": "1",
        "stay_wrong_type": "1",
    }
    assert change.unsafe == "1 records will have no row: check that the transform drops them on purpose"
    assert world.bench.quarantine() == [2, 5, 7]
    done = world.run(plan)
    assert done.status is PlanStatus.DONE
    assert [result.outcome for result in done.results] == [Outcome.DONE]
    expected = {"became_rows": "1", "rows": "2", "dropped_by_the_transform": "1", "stay_wrong_type": "1"}
    assert counts(done) == {**expected, "others_were_at": "0"}
    assert world.logged() == [("quarantine.redrive", counts(done))]
    assert world.bench.quarantine() == [7]
    with pytest.raises(StalePlanError):
        world.run(plan)
    assert world.job.runs == 1


def test_a_plan_for_other_records_is_another_plan(world: World) -> None:
    some = world.plan(Selection(places=(Place("t", 0, 2, 3),)))
    others = world.plan(Selection(places=(Place("t", 0, 5, 6),)))
    again = world.plan(Selection(places=(Place("t", 0, 5, 6),)))
    assert len({some.id, others.id, again.id}) == 3
    world.run(others)
    assert world.bench.quarantine() == [2, 7]


def test_what_came_to_quarantine_after_the_plan_stays(world: World) -> None:
    plan = world.plan()
    world.bench.commit(10, 14, bad=[12])
    world.run(plan)
    assert world.bench.quarantine() == [12]


def test_where_nothing_would_leave_it_is_said_why(world: World) -> None:
    world.job.bad = {2: BAD, 5: BAD, 7: Broken(Rule.SINK_REFUSED, "no")}
    with pytest.raises(
        RefusedError, match=r"none of 3 records would leave quarantine: 1 sink_refused .*, 2 wrong_type"
    ):
        world.plan()
    with pytest.raises(RefusedError, match="quarantine has no such record"):
        world.plan(Selection(rule="null_key"))


def test_a_run_that_died_in_the_midst_is_gone_on_with_and_told_whole(world: World) -> None:
    plan = world.plan()
    world.job.dies_after = 2
    with pytest.raises(PartFailedError):
        world.run(plan)
    assert world.stored(plan).status is PlanStatus.RUNNING
    assert world.bench.quarantine() == [7]
    world.job.dies_after = None
    done = world.run(plan, now=datetime.now(UTC) + timedelta(days=30))  # one that was begun does not expire
    assert (done.status, counts(done)["became_rows"]) == (PlanStatus.DONE, "3")
    assert world.logged() == [("quarantine.redrive", counts(done))]


def mend_the_app(world: World) -> None:
    world.transform.write_text("def transform(inputs, tables): return None\n")


def mend_the_schema(world: World) -> None:
    world.declaration.write_text(world.declaration.read_text().replace("id INT", "id BIGINT"))


def add_a_module(world: World) -> None:
    (world.root / "spark_apps" / "shared.py").write_text("")


@pytest.mark.parametrize("change", [mend_the_app, mend_the_schema, add_a_module])
def test_what_was_tried_with_another_app_is_stale(world: World, change: Callable[[World], None]) -> None:
    plan = world.plan()
    change(world)
    with pytest.raises(StalePlanError, match="changed since the trial"):
        world.run(plan)
    assert world.stored(plan).status is PlanStatus.STALE
    assert (world.bench.quarantine(), world.job.runs) == ([2, 5, 7], 0)


def test_a_plan_that_was_half_done_when_the_app_changed_is_settled(world: World) -> None:
    plan = world.plan()
    world.job.dies_after = 2
    with pytest.raises(PartFailedError):
        world.run(plan)
    mend_the_app(world)
    with pytest.raises(StalePlanError):
        world.run(plan)
    ended = world.stored(plan)
    assert (ended.status, counts(ended)["became_rows"]) == (PlanStatus.STALE, "2")
    assert [(step.name, dict(step.detail).get("findings")) for step in ended.steps] == [
        ("redrive", None),
        ("books", "0"),
    ]
    assert world.logged() == [("quarantine.redrive", counts(ended))]


def test_a_plan_that_expired_or_is_for_another_sink_is_stale(world: World) -> None:
    plan = world.plan()
    with pytest.raises(StalePlanError, match="it expired"):
        world.run(plan, now=datetime.now(UTC) + timedelta(days=2))
    plan = world.plan()
    world.declaration.write_text(world.declaration.read_text().replace("millrace_sink", "millrace_control"))
    with pytest.raises(StalePlanError, match="the stream now writes to"):
        world.run(plan)


@pytest.mark.parametrize("declared", [True, False])
def test_a_plan_that_is_taken_back_in_the_midst_says_what_it_has_done(world: World, declared: bool) -> None:
    unborn = world.plan()
    running.abort(world.platform, unborn.id, actor="cli:b", reason="changed my mind")
    assert world.stored(unborn).status is PlanStatus.ABORTED
    plan = world.plan()
    world.job.dies_after = 1
    with pytest.raises(PartFailedError):
        world.run(plan)
    if not declared:
        world.declaration.unlink()
    ended = running.abort(world.platform, plan.id, actor="cli:b", reason="changed my mind")
    assert (ended.status, counts(ended)["became_rows"]) == (PlanStatus.ABORTED, "1")
    assert [action for action, _ in world.logged()] == ["plan.abort", "quarantine.redrive", "plan.abort"]
    with pytest.raises(StalePlanError):
        world.run(plan)


def test_more_that_stays_than_was_planned_is_a_failure_that_is_named(world: World) -> None:
    plan = world.plan()
    world.job.bad = {5: BAD, 7: BAD}  # the table's constraints changed, say
    done = world.run(plan)
    assert done.status is PlanStatus.FAILED
    assert [result.error for result in done.results if result.outcome is Outcome.FAILED] == [
        "2 records more than planned stay in quarantine: 2 wrong_type"
    ]
    assert world.bench.quarantine() == [5, 7]


def test_what_somebody_else_has_put_through_meanwhile_is_no_failure(world: World) -> None:
    plan = world.plan()
    world.bench.put(selection=Selection(places=(Place("t", 0, 5, 6),)), plan="another")
    done = world.run(plan)
    assert (done.status, counts(done)["became_rows"]) == (PlanStatus.DONE, "2")


def test_books_that_do_not_balance_where_records_were_fail_it(world: World) -> None:
    plan = world.plan()
    world.bench.admin.execute(f"DELETE FROM {world.bench.name}.rows WHERE _offset = 3")
    done = world.run(plan)
    assert done.status is PlanStatus.FAILED
    [error] = [result.error for result in done.results if result.outcome is Outcome.FAILED]
    assert error == "missing: t/0 [3, 4), 1 offset"
    assert world.bench.quarantine() == []


def test_a_run_that_could_not_look_at_the_books_puts_nothing_through_twice_and_logs_once(world: World) -> None:
    plan = world.plan()
    world.platform.books_away = True
    for _ in range(2):
        with pytest.raises(UnreachableError):
            world.run(plan)
    world.platform.books_away = False
    mend_the_app(world)  # all is done: that is no matter any more
    assert world.run(plan).status is PlanStatus.DONE
    assert (world.job.runs, len(world.logged())) == (1, 1)


def test_who_asks_for_what_is_not_there_is_told(world: World) -> None:
    with pytest.raises(UsageError, match="has no stream"):
        make_plan(world.platform, f"{world.bench.name}.other", EVERYTHING, by="cli:a", reason="mended")


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"rule": "no_such"}, "rule `no_such` is unknown"),
        ({"since": "yesterday"}, "is not a time"),
        ({"since": "2026-01-01T00:00"}, "has no zone"),
        ({"offsets": ["t/0"]}, "not a range of offsets"),
        ({"offsets": ["t t/0@1"]}, "not a range of offsets"),
        ({"offsets": ["t/0@5-4"]}, "ends before it begins"),
        ({"offsets": ["t/0@" + "9" * 19]}, "beyond the largest offset"),
        ({"offsets": ["t/9999999999@1"]}, "beyond the largest offset"),
        ({"offsets": ["t/0@" + "9" * 5000]}, "not a range of offsets"),
        ({"offsets": ["t\udce4/0@1"]}, "not a range of offsets"),
        ({"offsets": ["t/0@1"] * 101}, "101 places are too many"),
    ],
)
def test_a_selection_that_is_none_is_refused_with_a_sentence(asked: dict[str, Any], why: str) -> None:
    given: dict[str, Any] = {"rule": "", "since": "", "offsets": [], "now": datetime.now(UTC), **asked}
    with pytest.raises(UsageError) as met:
        selection_of(**given)
    assert why in met.value.what


def test_a_selection_is_what_was_written(world: World) -> None:
    now = datetime.now(UTC)
    selection = selection_of(rule="not_json", since="2026-01-01T01:00+01:00", offsets=["t/0@2", "t/0@4-6"], now=now)
    assert selection == Selection(
        "not_json", datetime(2026, 1, 1, tzinfo=UTC), (Place("t", 0, 2, 3), Place("t", 0, 4, 7))
    )
    plan = world.plan(selection)
    world.run(plan)
    assert world.bench.quarantine() == [7]
    assert {name: text for name, text in plan.about if name.startswith("only")} == {
        "only_rule": "not_json",
        "only_since": "2026-01-01T00:00:00+00:00",
        "only_offsets": "t/0@2 t/0@4-6",
    }
