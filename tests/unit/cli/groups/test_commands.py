"""`millrace groups`, as called."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from millrace.cli.groups import commands as groups
from millrace.cli.groups.text import behind
from millrace.domain.groups.commits import Committed
from millrace.domain.groups.snapshots import GroupSeen, GroupType, LogSeen, Member, Snapshot, TopicSeen
from millrace.domain.groups.time_lag import TimeLag
from millrace.settings import open_settings
from support.commands import use_platform
from support.fakes.groups import FakeCluster, GroupsPlatform, groups_platform

KAFKA = "millrace_kafka"
MINUTE = timedelta(minutes=1)


@pytest.fixture
def platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GroupsPlatform:
    (tmp_path / "include/pipelines").mkdir(parents=True)
    made = groups_platform(tmp_path, datetime.now(UTC))
    use_platform(monkeypatch, made, groups)
    for minute in range(3):
        at = datetime.now(UTC) - MINUTE * (3 - minute)
        made.snapshots.add(KAFKA, snapshot(at, 100 + 60 * minute))
    return made


def snapshot(at: datetime, end: int) -> Snapshot:
    members = (Member("m-1", "rdkafka", "10.0.0.7", "static-1", (("orders", 0),)),)
    commits = {("orders", 0): Committed(end - 25), ("orders", 1): Committed(7)}
    billing = GroupSeen("billing", GroupType.CONSUMER, "Stable", "uniform", members, commits)
    share = GroupSeen("jobs", GroupType.SHARE, "Empty")
    logs = (LogSeen(0, end, end), None)
    return Snapshot(
        at,
        "cluster-1",
        {"orders": TopicSeen("id", logs)},
        {"billing": billing, "jobs": share},
        faults=("broker 2: dead",),
    )


def call(*arguments: str) -> Result:
    return CliRunner().invoke(groups.app, arguments)


def document(*arguments: str) -> dict[str, object]:
    found = json.loads(call(*arguments, "--json").stdout)
    assert isinstance(found, dict)
    return found


def test_a_command_with_a_fake_platform_reads_no_settings_of_the_machine(
    platform: GroupsPlatform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "include/pipelines").mkdir(parents=True)
    (elsewhere / ".millrace/env").mkdir(parents=True)  # to read it is an error
    monkeypatch.setenv("MILLRACE_ROOT", str(elsewhere))
    with pytest.raises(IsADirectoryError):
        open_settings()
    assert call("list").exit_code == 0


@pytest.mark.usefixtures("platform")
def test_the_list_says_how_old_it_is_what_is_not_known_and_what_may_go_wrong() -> None:
    text = call("list").stdout
    for said in ("as of ", "not known: broker 2: dead", "billing", "consumer", "share", "unknown", "orders"):
        assert said in text
    assert "billing: default-client-id: client id rdkafka from 10.0.0.7" in text
    found = document("list")
    assert found["schema"] == "millrace.groups.list/1"
    [billing, jobs] = found["groups"]  # type: ignore[misc]
    assert (billing["lag"], billing["members"]) == (25, 1)
    assert billing["rate_out_per_second"] == pytest.approx(1.0, rel=0.1)
    assert found["age_seconds"] >= 60  # type: ignore[operator]
    assert billing["time_lag"]["at_least"] is False
    assert (jobs["type"], jobs["members"], jobs["lag"]) == ("share", None, None)


@pytest.mark.usefixtures("platform")
def test_one_group_is_shown_with_members_hosts_and_offsets() -> None:
    text = call("show", "billing").stdout
    for said in ("10.0.0.7", "static-1", "orders/0", "195", "220", "its leader did not answer", "25 records"):
        assert said in text
    found = document("show", "billing")
    assert found["member_list"] == [
        {
            "member_id": "m-1",
            "client_id": "rdkafka",
            "host": "10.0.0.7",
            "instance": "static-1",
            "partitions": ["orders/0"],
        }
    ]
    [first, second] = found["partitions"]  # type: ignore[misc]
    assert (first["committed"], first["log_end"], first["lag"], first["host"]) == (195, 220, 25, "10.0.0.7")
    assert (second["lag"], second["log_end"], second["status"]) == (None, None, "unknown")


@pytest.mark.usefixtures("platform")
def test_lag_is_by_partition_the_furthest_behind_first() -> None:
    found = document("lag", "--limit", "1")
    assert [(each["group"], each["partition"], each["lag"]) for each in found["partitions"]] == [("billing", 0, 25)]  # type: ignore[attr-defined]
    assert found["left_out"] == 1
    assert "1 more: --limit" in call("lag", "--limit", "1").stdout
    assert "orders/1" in call("lag", "billing").stdout


def test_the_cluster_itself_is_asked_where_nothing_else_answers(platform: GroupsPlatform) -> None:
    platform.snapshots.silent = True
    platform.clusters[KAFKA] = FakeCluster(snapshot(datetime.now(UTC), 500))
    assert call("list").exit_code == 1  # as the entry of the command line has it: an error of ours
    assert document("list", "--now")["groups"][0]["lag"] == 25  # type: ignore[index]
    text = call("show", "billing", "--now").stdout
    assert "behind not known" in " ".join(text.split())


@pytest.mark.parametrize(
    ("lag", "text"),
    [
        (None, "?"),
        (TimeLag(timedelta(0)), "0"),
        (TimeLag(timedelta(seconds=61)), "~61 s"),
        (TimeLag(timedelta(hours=3), at_least=True), ">3.0 h"),
        (TimeLag(timedelta(days=3)), "~3.0 d"),
    ],
)
def test_a_time_lag_says_that_it_is_an_estimate(lag: TimeLag | None, text: str) -> None:
    assert behind(lag) == text
