"""A stream that writes to Kafka: what needs a table is refused by its name, and goes over all others without a word."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from millrace.cli.quality import commands as quality_cli
from millrace.cli.quality import recompute as recompute_cli
from millrace.cli.quality import reconcile as books_cli
from millrace.cli.quarantine import commands as quarantine_cli
from millrace.cli.streams import commands as streams_cli
from millrace.declarations import load, load_pipeline
from millrace.domain.declaration.pipeline import KafkaSink
from millrace.domain.plans.plan import Plan, PlanKind, PlanStatus
from millrace.domain.quality.books import Reconciliation
from millrace.domain.quality.ranges import Mark
from millrace.domain.quarantine.redrive import Redrive, Redriven, Selection, about, changes_of
from millrace.domain.quarantine.rules import RuleCount
from millrace.domain.rewind.time_travel import EARLIEST, Policy
from millrace.domain.streams.position import LogBounds, WorkRecord
from millrace.domain.topics.offsets import SourceAt, TopicPartition
from millrace.errors import RefusedError, SinkFailedError, UnreachableError
from millrace.usecases.activity.active import active
from millrace.usecases.declaration import lookup
from millrace.usecases.plans.kind import Runner
from millrace.usecases.quality import books as quality_books
from millrace.usecases.quality.columns import column_findings
from millrace.usecases.quarantine import redrive
from millrace.usecases.quarantine.listing import list_quarantine, show
from millrace.usecases.rewind import plan as rewind_plan
from millrace.web.app import create_app
from support.commands import use_platform
from support.declarations import IN_KAFKA, SHOP, example_project, kafka_instead, replace_once
from support.fakes.pages import NAME as USER
from support.fakes.pages import PATIENCE, FakeControl, FakeHost, client, facts
from support.fakes.platform import GroupedPlatform, PartsPlatform

NAME, OTHER = "shop.purchases", "activity.groups"
AT = datetime(2026, 11, 26, tzinfo=UTC)
P0 = TopicPartition(NAME, "id", 0)
RESET = (
    "stop the stream, reset its group millrace.shop.purchases with kafka-consumer-groups --reset-offsets, and start "
    "it: this opens a new timeline"
)
SHOW = "see the progress of its group with `millrace streams show shop.purchases`"
SECOND = "declare a second stream that reads the topic and writes to a table, and give that one rules"
MORE = """\
  customers:
    app: shop_purchases
    reads: [shop.purchases]
    writes: {kafka: {topic: shop.purchases}}
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The example, whose stream writes to Kafka, and commands that have no server to ask."""
    found = example_project(tmp_path)
    kafka_instead(found)
    platform = SimpleNamespace(settings=SimpleNamespace(root=found))
    use_platform(monkeypatch, platform, quality_cli, books_cli, recompute_cli, quarantine_cli, streams_cli)
    return found


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize(
    ("app", "words", "lacks", "next_step"),
    [
        (quality_cli.app, ["reconcile", NAME], "its sink keeps no ledger", SHOW),
        (quality_cli.app, ["reconcile", NAME, "--deep", "--sample", "5"], "its sink keeps no ledger", SHOW),
        (quality_cli.app, ["recompute", NAME], "its rows cannot be found by their source", SHOW),
        (quality_cli.app, ["check", NAME], "quality rules need a table", SECOND),
        (quality_cli.app, ["show", NAME], "quality rules need a table", SECOND),
        (
            quarantine_cli.app,
            ["redrive", NAME, "--reason", "the schema is mended"],
            "its rows cannot be found by their source",
            f"to read its records again: {RESET}",
        ),
        (
            streams_cli.app,
            ["rewind", NAME, "--to", "earliest", "--reason", "the app is mended"],
            "its work on record is its group's",
            RESET,
        ),
    ],
)
def test_what_needs_a_table_is_refused_by_name(app: Any, words: list[str], lacks: str, next_step: str) -> None:
    error = CliRunner().invoke(app, words).exception
    assert isinstance(error, RefusedError)
    assert (error.what, error.where, error.next_step) == (f"{NAME} writes to Kafka: {lacks}", NAME, next_step)


@pytest.mark.usefixtures("root")
def test_what_goes_over_all_streams_leaves_it_out(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def reconcile_on(platform: object, pipeline: object, stream: Any, **_: object) -> tuple[Reconciliation]:
        asked.append(stream.qualified_name)
        return (Reconciliation(stream.qualified_name, AT, AT, Mark(), Mark(), Mark()),)

    monkeypatch.setattr(quality_books, "reconcile_on", reconcile_on)
    done = CliRunner().invoke(quality_cli.app, ["reconcile", "--json"], catch_exceptions=False)
    assert (done.exit_code, done.stderr, asked) == (0, "", [OTHER])
    assert [run["stream"] for run in json.loads(done.stdout)["runs"]] == [OTHER]
    for command in ("check", "list"):
        done = CliRunner().invoke(quality_cli.app, [command], catch_exceptions=False)
        assert (done.exit_code, done.stderr) == (0, "")
        assert NAME not in done.stdout


def test_its_rules_are_held_against_no_columns(root: Path) -> None:
    platform: Any = SimpleNamespace()
    found = column_findings(platform, load(root).pipelines)
    assert (found.findings, found.silent, found.asked) == ((), (), frozenset())


def test_who_reads_what_is_asked_of_a_table_alone(root: Path) -> None:
    table = "{postgres: {connection: millrace_sink, table: activity.seen, mode: append}}"
    replace_once(root / "include/pipelines/activity.yaml", table, IN_KAFKA)
    platform: Any = SimpleNamespace(settings=SimpleNamespace(root=root))
    with pytest.raises(RefusedError, match=r"activity\.groups writes to Kafka"):
        active(platform, AT - AT, now=AT)


def test_a_redrive_of_what_wrote_to_a_table_once_can_be_aborted(root: Path) -> None:
    ended: list[PlanStatus] = []
    plans = SimpleNamespace(finish=lambda plan, status, results: ended.append(status))
    control = SimpleNamespace(plans=plans, log=SimpleNamespace(append=lambda **_: None))
    platform: Any = PartsPlatform(settings=SimpleNamespace(root=root), control=control)
    said = about(Redrive(NAME, Selection(), "c0de", AT), Redriven(AT, ()))
    plan = Plan(PlanKind.REDRIVE, NAME, "sink", "millrace_sink", changes_of(()), (), AT, AT, "cli:a", "mended", said)
    put_through: Any = SimpleNamespace(name="redrive", done_at=AT, detail=())
    stored: Any = SimpleNamespace(plan=plan, status=PlanStatus.RUNNING, steps=(put_through,))
    told: list[str] = []

    redrive.abort(platform, stored, Runner("cli:b", "it writes to Kafka now", AT, told.append))

    assert ended == [PlanStatus.ABORTED]
    assert "its books were not compared" in told[0]
    assert f"{NAME} writes to Kafka" in told[0]


class Rewound(GroupedPlatform):
    """Servers that a rewind of a stream with 100 records done is planned on."""

    def __init__(self, root: Path) -> None:
        self.settings = SimpleNamespace(root=root)
        self.plans = SimpleNamespace(add=lambda plan, asked_in: plan)
        self.streams = SimpleNamespace(desired=lambda name: None, progress=lambda name: None)

    @property
    def control(self) -> Any:
        return self

    def sinks_tables(self, connection: str) -> Any:
        return SimpleNamespace(
            record_of_work=lambda name: WorkRecord(1, {P0: 100}, {P0: 0}),
            count_in=lambda *_, **more: SimpleNamespace(rows=100, quarantined=0),
        )

    def kafka_logs(self, connection: str) -> Any:
        return SimpleNamespace(
            leaders=lambda topics: {P0: True},
            bounds=lambda partitions: {P0: LogBounds(0, 100)},
            committed=lambda group, partitions: {},
            firsts=lambda partitions: {P0: SimpleNamespace(timestamp_ms=datetime.now(UTC).timestamp() * 1000)},
        )

    def kafka_topics(self, connection: str) -> Any:
        return SimpleNamespace(cluster_id=lambda: "cluster")


@pytest.mark.parametrize("sink", [IN_KAFKA, "{s3: {prefix: lake/customers}}"])
def test_a_rewind_names_who_reads_the_same_and_writes_elsewhere_among_those_not_repaired(
    tmp_path: Path, sink: str
) -> None:
    root = example_project(tmp_path)
    replace_once(root / SHOP, "\nsources:\n", f"{MORE.replace(IN_KAFKA, sink)}\nsources:\n")
    platform: Any = Rewound(root)
    plan = rewind_plan.make_plan(platform, NAME, EARLIEST, policy=Policy.FAIL, by="cli:a", reason="mended")
    assert dict(plan.about)["not_repaired"] == "shop.customers"


COUNT = RuleCount(NAME, NAME, "not_json", 3, SourceAt(NAME, 0, 5), AT, SourceAt(NAME, 0, 9), AT)
REFUSED = SinkFailedError(
    "the statement `read millrace.quarantine` failed: permission denied for table quarantine (SQLSTATE 42501)",
    where="host:5432/control",
    next_step="correct the fault that the database's own words name",
)


class Sinks(GroupedPlatform):
    """Sink databases by their Connections, of which that of the control database holds what it is told to."""

    def __init__(self, root: Path, found: list[RuleCount] | Exception) -> None:
        self.settings = SimpleNamespace(root=root)
        self.found = found
        self.asked: list[str] = []

    def sinks_tables(self, connection: str) -> Any:
        def counts(stream: str | None, limit: int) -> list[RuleCount]:
            if connection == "millrace_control" and isinstance(self.found, Exception):
                raise self.found
            return self.found if connection == "millrace_control" and isinstance(self.found, list) else []

        self.asked.append(connection)
        return SimpleNamespace(quarantine_counts=counts, quarantined_record=lambda *asked: asked)


def test_its_quarantine_is_read_from_the_control_database(root: Path) -> None:
    sinks: Any = Sinks(root, [COUNT])
    assert list_quarantine(sinks, stream=NAME).counts == [COUNT]
    assert sinks.asked == ["millrace_control"]
    assert list_quarantine(sinks).counts == [COUNT]
    assert sorted(sinks.asked[1:]) == ["millrace_control", "millrace_sink"]
    sinks.asked.clear()
    assert show(sinks, NAME, SourceAt(NAME, 0, 5))
    assert sinks.asked == ["millrace_control"]


def test_a_control_database_that_refuses_hides_no_other_quarantine(root: Path) -> None:
    sinks: Any = Sinks(root, REFUSED)
    found = list_quarantine(sinks)
    assert (found.counts, found.silent) == ([], [REFUSED])
    assert "millrace_sink" in sinks.asked


def page(root: Path, found: list[RuleCount] | Exception, path: str) -> str:
    """What a user is shown."""
    control = FakeControl({NAME: facts(NAME), OTHER: facts(OTHER)})
    platform = PartsPlatform(
        settings=SimpleNamespace(root=root),
        control=SimpleNamespace(pages=control),
        sinks_hasty_tables=Sinks(root, found).sinks_tables,
    )
    host = FakeHost(control)
    host.platform = lambda: platform  # type: ignore[method-assign]

    async def ask() -> str:
        async with client(create_app(host, PATIENCE), {USER: "ann"}) as asking:
            answer = await asking.get(path)
        assert answer.status_code == 200
        return answer.text

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("topics", "shown"),
    [
        (("shop.purchases",), "Topic <code>shop.purchases</code> of connection"),
        (("shop.b", "shop.a"), "Topics <code>shop.b</code>, <code>shop.a</code> of connection"),
    ],
)
def test_the_page_shows_its_topics_its_group_and_its_quarantine_and_no_record_of_work(
    root: Path, monkeypatch: pytest.MonkeyPatch, topics: tuple[str, ...], shown: str
) -> None:
    pipeline = load_pipeline(root, "shop")
    stream = replace(pipeline.stream("purchases"), sink=KafkaSink(topics, by_column=len(topics) > 1))
    changed = replace(pipeline, streams=(stream,))
    monkeypatch.setattr(lookup, "load_pipeline", lambda root, name: changed)
    text = page(root, [COUNT], f"/streams/{NAME}/sink")
    assert f"{shown} <code>millrace_kafka</code>" in text
    assert "its group <code>millrace.shop.purchases</code> has committed" in text
    assert "<code>millrace_control</code>" in text
    assert "not_json" in text
    assert "no batch is recorded yet" not in text
    assert "Record of work" not in text
    assert "Empty." in page(root, [], f"/streams/{NAME}/sink")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (REFUSED, "permission denied for table quarantine (SQLSTATE 42501)"),
        (UnreachableError("the sink database does not answer"), "`millrace quarantine list --stream shop.purchases`"),
    ],
)
def test_the_page_shows_its_topics_where_the_control_database_says_no(root: Path, error: Exception, said: str) -> None:
    text = page(root, error, f"/streams/{NAME}/sink")
    assert "Topic <code>shop.purchases</code>" in text
    assert said in text


def test_its_page_offers_no_rewind(root: Path) -> None:
    of_kafka, of_table = (page(root, [], f"/streams/{name}") for name in (NAME, OTHER))
    for only_of_tables in ("Plan a rewind", ".rewind"):
        assert only_of_tables not in of_kafka
        assert only_of_tables in of_table
    for both in ("accept-recreated", "/sink", "quarantined,"):
        assert both in of_kafka
