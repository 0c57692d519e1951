"""The backup of a pipeline lives the life of a stream, and what is of streams only says so."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import Result
from typer.testing import CliRunner

from millrace.airflow.shared import names
from millrace.cli.streams import commands as command
from millrace.declarations import load_pipeline
from millrace.domain.retention.headroom import Headroom, Rule, Unread
from millrace.domain.streams.control import StreamProgress
from millrace.domain.streams.supervision import ExitReason, StreamState
from millrace.domain.topics.offsets import TopicPartition
from millrace.errors import MillraceError, UnreachableError, UsageError
from millrace.usecases.quarantine import listing as quarantine
from millrace.usecases.streams import look as stream_look
from millrace.usecases.streams import supervise as streams
from support.commands import use_platform
from support.declarations import example_project, remove_backup
from support.fakes.streams import Clock, FakePlatform

BACKUP = "shop.backup"
GROUP = "millrace.shop.backup"
WHY = ("--reason", "a new release")
PROGRESS = StreamProgress(
    stream=BACKUP,
    epoch=2,
    timeline=0,
    at=datetime(2026, 5, 1, 12, tzinfo=UTC),
    batch_id=7,
    rows_in=12_345,
    rows_out=12_345,
    quarantined=0,
    batch_seconds=0.51234,
    last_error=None,
    positions={"shop.purchases/1": 20, "shop.purchases/0": 12_325},
)


@pytest.fixture
def platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePlatform:
    platform = FakePlatform(example_project(tmp_path), Clock(datetime.now(UTC)))
    groups = SimpleNamespace(
        members=lambda group: 0,
        lag=lambda group, topics: 17 if (group, topics) == (GROUP, ("shop.purchases",)) else 0,
        newest_epoch=lambda group, topics, stream: platform.groups_say(group, stream),
    )
    monkeypatch.setattr(platform, "groups_say", lambda group, stream: 0, raising=False)
    monkeypatch.setattr(platform, "kafka_groups", lambda connection: groups)
    use_platform(monkeypatch, platform, command)
    for name in ("START_WITHIN", "STOP_WITHIN"):
        monkeypatch.setattr(command, name, timedelta())
    return platform


def call(*arguments: str) -> Result:
    return CliRunner().invoke(command.app, arguments)


def refused(done: Result) -> str:
    assert isinstance(done.exception, UsageError), done.output
    return str(done.exception)


def lines(done: Result) -> list[str]:
    return [" ".join(line.split()) for line in done.stdout.splitlines()]


def test_it_is_started_with_the_archives_connection_and_no_sinks(platform: FakePlatform) -> None:
    assert call("start", BACKUP, *WHY).exit_code == 0
    [submission] = platform.app_runner.submissions
    assert submission.stream == BACKUP
    assert submission.connections == ("millrace_kafka", "millrace_s3", "millrace_control")
    assert submission.stuck_after == timedelta(minutes=2)
    assert stream_look.connections_of(platform, BACKUP) == submission.connections  # type: ignore[arg-type]
    assert platform.app_runner.find("shop.purchases") == ()


@pytest.mark.parametrize(("group", "chains", "epoch"), [(40, 3, 41), (3, 40, 41), (40, None, 41), (0, 50, 51)])
def test_a_start_is_above_what_its_group_and_its_chains_know_and_no_sink_is_asked(
    platform: FakePlatform, monkeypatch: pytest.MonkeyPatch, group: int, chains: int | None, epoch: int
) -> None:
    known = {(GROUP, BACKUP): group}
    monkeypatch.setattr(platform, "groups_say", lambda group, stream: known.get((group, stream), 0), raising=False)
    platform.epochs["chains"] = chains
    assert streams.start(platform, BACKUP, "cli:me", "because").epoch == epoch  # type: ignore[arg-type]
    assert platform.asked == ["chains"]
    assert ("millrace_s3" in platform.unanswered) == (chains is None)


def test_the_bucket_is_not_blamed_where_the_cluster_does_not_answer(
    platform: FakePlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(group: str, stream: str) -> int:
        raise UnreachableError("the cluster does not answer")

    def names_no_chain(app: object, kafka: str) -> SimpleNamespace:
        return SimpleNamespace(incarnations=lambda: away("", ""))

    monkeypatch.setattr(platform, "groups_say", away, raising=False)
    monkeypatch.setattr(platform, "archive_claims", names_no_chain)
    assert streams.start(platform, BACKUP, "cli:me", "because").epoch == 1  # type: ignore[arg-type]
    assert platform.asked == []
    assert list(platform.unanswered) == ["millrace_kafka"]


def test_it_is_started_again_where_it_died_and_given_up_where_that_cannot_help(platform: FakePlatform) -> None:
    call("start", BACKUP, *WHY)
    platform.app_runner.end(BACKUP, 1, ExitReason.FAILED, "the store is full")
    died = streams.supervise(platform, BACKUP, "dag:test", now=platform.clock.now)  # type: ignore[arg-type]
    assert died.state is StreamState.BACKING_OFF
    assert platform.alarms.open_kinds == ["stream.died"]
    platform.clock.pass_seconds(60)
    again = streams.supervise(platform, BACKUP, "dag:test", now=platform.clock.now)  # type: ignore[arg-type]
    assert (again.state, again.epoch) == (StreamState.RUNNING, 2)


def test_one_that_no_topic_asks_for_any_more_is_shown_so_and_can_be_stopped(platform: FakePlatform) -> None:
    call("start", BACKUP, *WHY)
    remove_backup(platform.root)
    [row] = [row for row in json.loads(call("list", "--json").stdout)["streams"] if row["stream"] == BACKUP]
    assert (row["state"], row["declared"]) == ("undeclared", False)
    assert "declare `backup` on one of its topics" in refused(call("start", BACKUP, *WHY))
    call("stop", BACKUP, *WHY, "--now")
    assert platform.app_runner.find(BACKUP) == ()


def test_it_stands_in_the_list_with_its_groups_lag(platform: FakePlatform) -> None:
    rows = {row["stream"]: row for row in json.loads(call("list", "--json").stdout)["streams"]}
    assert list(rows) == ["activity.groups", BACKUP, "shop.purchases"]
    assert (rows[BACKUP]["declared"], rows[BACKUP]["group"], rows[BACKUP]["lag"]) == (True, GROUP, 17)
    assert (rows["shop.purchases"]["group"], rows["shop.purchases"]["lag"]) == ("millrace.shop.purchases", 0)


def test_a_stop_waits_for_its_group(platform: FakePlatform) -> None:
    document = json.loads(call("stop", BACKUP, *WHY, "--json").stdout)
    assert (document["state"], document["group_is_free"], document["error"]) == ("stopped", True, None)


def test_people_see_what_the_last_round_archived_and_up_to_where(
    platform: FakePlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform.streams, "progress", lambda stream: PROGRESS if stream == BACKUP else None)
    unread = Unread(TopicPartition("shop.purchases", "T" * 22, 1), 20, None, 0, 0)
    leaves_soon = Headroom(unread, timedelta(seconds=90), Rule.TIME)
    log = SimpleNamespace(partitions=lambda topics: [], committed=lambda group, partitions: {})
    monkeypatch.setattr(platform, "kafka_logs", lambda connection: log, raising=False)
    logs = SimpleNamespace(least=lambda archived: leaves_soon)
    monkeypatch.setattr(platform, "kafka_unread", lambda connection: logs, raising=False)
    shown = lines(call("show", BACKUP))
    first = shown.index("last round")
    assert shown[first + 1 : first + 9] == [
        "round 7 of epoch 2",
        "ended 2026-05-01 12:00:00 UTC",
        "took 0.512 s",
        "records archived 12,345",
        "",
        "archived up to",
        "shop.purchases/0 12,325",
        "shop.purchases/1 20",
    ]
    assert not any("quarantined" in line or "timeline" in line for line in shown)
    assert f"group {GROUP}" in shown
    assert "lag 17 records" in shown
    assert "unarchived, may be deleted in 90 s: shop.purchases/1 from offset 20, by time" in shown


def test_the_log_of_its_driver_is_found(platform: FakePlatform, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = platform.root / "state" / "streams" / BACKUP / "3"
    folder.mkdir(parents=True)
    (folder / "driver.log").write_text("archived 5 records\n", encoding="utf-8")
    monkeypatch.setattr(command, "open_settings", lambda: SimpleNamespace(state_folder=platform.root / "state"))
    assert "archived 5 records" in call("logs", BACKUP).stdout


def test_it_is_not_rewound_which_is_said(platform: FakePlatform) -> None:
    text = refused(call("rewind", BACKUP, "--to", "earliest", *WHY))
    assert "cannot be rewound: it reads every record once" in text


def test_nothing_of_it_is_accepted_which_is_said(platform: FakePlatform) -> None:
    text = refused(call("accept", BACKUP, *WHY))
    assert "begins a new chain by itself" in text
    assert "start it with `millrace streams start`" in text
    assert platform.streams.desired(BACKUP) is None


def test_it_has_no_quarantine_which_is_said(platform: FakePlatform, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def sink(connection: str) -> SimpleNamespace:
        asked.append(connection)
        return SimpleNamespace(quarantine_counts=lambda stream, limit: ())

    monkeypatch.setattr(platform, "sinks_tables", sink, raising=False)
    assert quarantine.list_quarantine(platform).counts == []  # type: ignore[arg-type]
    assert asked == ["millrace_sink"]
    with pytest.raises(UsageError, match="a backup keeps every record as it is"):
        quarantine.list_quarantine(platform, stream=BACKUP)  # type: ignore[arg-type]


def test_a_pipeline_without_one_has_none(platform: FakePlatform) -> None:
    remove_backup(platform.root)
    for verb in ("start", "stop", "accept"):
        assert "pipeline shop has no backup" in refused(call(verb, BACKUP, *WHY))
    assert "pipeline shop has no backup" in refused(call("rewind", BACKUP, "--to", "earliest", *WHY))
    with pytest.raises(MillraceError, match="no declaration names"):
        stream_look.connections_of(platform, BACKUP)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("app", "dag"),
    [(BACKUP, BACKUP), ("shop.purchases", "shop.stream.purchases"), ("stream.backup", "stream.backup")],
)
def test_an_app_and_the_dag_that_watches_it_are_found_by_one_another(app: str, dag: str) -> None:
    assert names.watch(app) == dag
    assert names.stream_of(dag) == app


@pytest.mark.parametrize("dag", ["shop.topics", "shop.source.backup", "backup", ".backup", "shop.operate", ""])
def test_a_dag_that_watches_nothing_is_no_apps(dag: str) -> None:
    assert names.stream_of(dag) == ""


def test_the_dags_of_a_pipeline_have_names(tmp_path: Path) -> None:
    whole = example_project(tmp_path / "whole")
    alone = example_project(tmp_path / "alone", streams=False)
    assert list(names.of_pipeline(load_pipeline(whole, "shop"))) == [
        "shop.topics",
        "shop.retention",
        "shop.source.cdnow",
        "shop.stream.purchases",
        "shop.backup",
        "shop.backup_audit",
        "shop.operate",
        "shop.rewind",
        "shop.redrive",
        "shop.books",
        "shop.quality.purchases",
    ]
    only = ["shop.topics", "shop.retention", "shop.backup", "shop.backup_audit", "shop.operate"]
    assert list(names.of_pipeline(load_pipeline(alone, "shop"))) == only
