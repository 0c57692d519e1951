"""`millrace alarms`, as called."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from millrace.cli.alarms import commands as alarms
from millrace.domain.alarms.extent import Extent, Notified
from millrace.errors import UsageError
from support.commands import use_platform
from support.fakes.streams import FakePlatform


@pytest.fixture
def platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePlatform:
    platform = FakePlatform(tmp_path)
    use_platform(monkeypatch, platform, alarms)
    monkeypatch.setattr(alarms, "actor", lambda: "cli:ann")
    platform.alarms.open("stream.gave_up", "shop.refunds", "data loss")
    platform.alarms.close("stream.gave_up", "shop.refunds")
    platform.alarms.open("stream.died", "shop.purchases", "epoch 1 ended\nits log says why")
    return platform


def call(*arguments: str) -> Result:
    return CliRunner().invoke(alarms.app, arguments)


def numbers(*arguments: str) -> list[int]:
    return [alarm["id"] for alarm in json.loads(call("list", *arguments, "--json").stdout)["alarms"]]


@pytest.mark.usefixtures("platform")
def test_the_list_is_of_open_alarms_unless_all_are_asked_for() -> None:
    assert numbers() == [2]
    assert numbers("--all") == [2, 1]
    text = call("list", "--all").stdout
    for said in ("stream.died", "shop.purchases", "2026-05-01 12:00:00", "open", "over", "epoch 1 ended"):
        assert said in text


@pytest.mark.usefixtures("platform")
def test_one_is_shown_whole_and_nothing_that_is_empty() -> None:
    lines = [" ".join(line.split()) for line in call("show", "2").stdout.splitlines()]
    assert lines == [
        "alarm 2, open",
        "kind stream.died",
        "means an app ended by itself, or did not start, although it should run; it is retried",
        "subject shop.purchases",
        "detail epoch 1 ended",
        "its log says why",
        "opened 2026-05-01 12:00:00 UTC",
        "runbook docs/operations/supervision.md#states-of-millrace-streams-list",
    ]


@pytest.mark.usefixtures("platform")
def test_an_acknowledgement_says_who_when_and_why_and_the_first_one_stays() -> None:
    assert "acknowledged" in call("acknowledge", "2", "--reason", "looking at it").stdout
    second = call("acknowledge", "2", "--reason", "me too, please").stdout
    assert "was acknowledged before on 2026-05-01 12:00:00 UTC by cli:ann: looking at it" in second
    document = json.loads(call("acknowledge", "2", "--reason", "me too, please", "--json").stdout)
    assert (document["first"], document["acknowledged_reason"]) == (False, "looking at it")
    assert numbers() == [2]
    assert "acknowledged" in call("list").stdout
    shown = call("show", "2").stdout
    assert "2026-05-01 12:00:00 UTC by cli:ann" in shown
    assert "looking at it" in shown


def test_an_acknowledgement_needs_a_reason(platform: FakePlatform) -> None:
    assert call("acknowledge", "2").exit_code == 2
    assert isinstance(call("acknowledge", "2", "--reason", "hm").exception, UsageError)
    assert platform.alarms.get(2).acknowledged_at is None


@pytest.mark.usefixtures("platform")
@pytest.mark.parametrize("arguments", [("show", "9"), ("acknowledge", "9", "--reason", "no such thing")])
def test_a_number_that_nobody_has_is_a_usage_error(arguments: tuple[str, ...]) -> None:
    error = call(*arguments).exception
    assert isinstance(error, UsageError)
    assert "no alarm 9" in error.what


def test_one_says_how_bad_it_is_what_waits_and_how_its_notifiers_fared(platform: FakePlatform) -> None:
    platform.alarms.open("backup.lost", "orders", "10 offsets lost", Extent(10))
    platform.alarms.record_round(platform.alarms.get(3), {"log": "", "my.Pager": "OSError"})
    platform.alarms.open("backup.lost", "orders", "9,000,000 offsets lost", Extent(9_000_000))
    shown = [" ".join(line.split()) for line in call("show", "3").stdout.splitlines()]
    for line in (
        "detail 9,000,000 offsets lost",
        "measure 9,000,000 offsets",
        "grown from 10 to 9,000,000 offsets; raised again at 2026-05-01 13:00:00 UTC",
        "notifiers log: delivered",
        "my.Pager: failed 1 times (OSError)",
        "tried again 2026-05-01 12:01:00 UTC",
    ):
        assert line in shown, shown
    assert "9,000,000 offsets lost" in call("list").stdout
    document = json.loads(call("show", "3", "--json").stdout)
    assert (document["extent"]["measure"], document["known"]["measure"]) == (9_000_000, 10)


def test_an_acknowledgement_says_what_it_covers(platform: FakePlatform) -> None:
    platform.alarms.open("backup.lost", "orders", "9,000,000 offsets lost", Extent(9_000_000))
    assert "9,000,000 offsets lost" in call("acknowledge", "3", "--reason", "looking at it").stdout


def test_a_kind_of_another_release_is_listed_shown_and_acknowledged(platform: FakePlatform) -> None:
    platform.alarms.open("moon.gone", "the tide", "9 seas are dry", Extent(9))
    lines = [" ".join(line.split()) for line in call("show", "3").stdout.splitlines()]
    assert lines == [
        "alarm 3, open",
        "kind moon.gone",
        "subject the tide",
        "detail 9 seas are dry",
        "measure 9",
        "opened 2026-05-01 12:00:00 UTC",
    ]
    assert json.loads(call("show", "3", "--json").stdout)["runbook"] == ""
    assert numbers() == [3, 2]
    assert "9 seas are dry" in call("acknowledge", "3", "--reason", "looking at it").stdout


def test_a_notifier_that_was_never_called_is_not_said_to_have_failed(platform: FakePlatform) -> None:
    [alarm] = [row for row in platform.alarms.rows if row.identity == 2]
    skipped = Notified("pager", failed=4, error="NotifierGivenUpError")
    failed = Notified("chat", failed=4, error="OSError")  # by an older release, which did not count calls
    platform.alarms.rows = [replace(alarm, notified=(skipped, replace(skipped, name="mail", failed=1), failed))]
    shown = [" ".join(line.split()) for line in call("show", "2").stdout.splitlines()]
    for line in (
        "notifiers pager: never called, skipped in 4 rounds (NotifierGivenUpError), given up",
        "mail: never called, skipped in 1 round (NotifierGivenUpError)",
        "chat: failed 4 times (OSError), given up",
    ):
        assert line in shown, shown
