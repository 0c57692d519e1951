"""`millrace streams`, as called: the reason that is asked for, and one JSON document however a command ends."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from millrace.cli.streams import commands as streams
from millrace.domain.streams.vitals import Vitals
from millrace.errors import MillraceError, PartFailedError, UnreachableError, UsageError
from support.commands import use_platform
from support.declarations import example_project
from support.fakes.streams import Clock, FakePlatform

STREAM = "shop.purchases"
WHY = ("--reason", "a new release")


@pytest.fixture
def platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePlatform:
    platform = FakePlatform(example_project(tmp_path), Clock(datetime.now(UTC)))
    groups = SimpleNamespace(members=lambda group: (), lag=lambda group, topics: 0, newest_epoch=lambda *_: 0)
    monkeypatch.setattr(platform, "kafka_groups", lambda connection: groups)
    use_platform(monkeypatch, platform, streams)
    for name in ("START_WITHIN", "STOP_WITHIN"):
        monkeypatch.setattr(streams, name, timedelta())
    return platform


def call(*arguments: str) -> Result:
    return CliRunner().invoke(streams.app, arguments)


def only_document(done: Result) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def raised(done: Result) -> MillraceError:
    assert isinstance(done.exception, MillraceError), done.output
    return done.exception


@pytest.mark.parametrize("verb", ["start", "stop", "accept"])
def test_no_change_without_a_reason(verb: str, platform: FakePlatform) -> None:
    done = call(verb, STREAM)
    assert done.exit_code == 2
    assert "--reason" in done.stderr
    assert platform.streams.desired(STREAM) is None


@pytest.mark.parametrize("reason", ["", "why", "  why  "])
def test_a_reason_is_as_long_as_the_form_wants_it(reason: str, platform: FakePlatform) -> None:
    error = raised(call("start", STREAM, "--reason", reason))
    assert isinstance(error, UsageError)
    assert "at least 5 characters" in error.what
    assert platform.streams.desired(STREAM) is None


def test_the_reason_is_on_record(platform: FakePlatform) -> None:
    assert call("start", STREAM, *WHY, "--json").exit_code == 0
    desired = platform.streams.desired(STREAM)
    assert desired is not None
    assert desired.reason == "a new release"


def test_a_start_that_succeeds_prints_one_document(platform: FakePlatform) -> None:
    document = only_document(call("start", STREAM, *WHY, "--json"))
    assert document | {"why": "", "until": None} == {
        "schema": "millrace.streams.start/1",
        "stream": STREAM,
        "state": "running",
        "epoch": 1,
        "why": "",
        "until": None,
        "host": None,
        "error": None,
    }


def test_a_start_that_fails_prints_one_document_that_names_the_error(platform: FakePlatform) -> None:
    platform.app_runner.refuse = True
    done = call("start", STREAM, *WHY, "--json")
    document = only_document(done)
    assert document["state"] != "running"
    assert isinstance(raised(done), PartFailedError)
    assert document["error"]["what"] == raised(done).what


def test_a_stop_that_is_not_over_in_time_prints_one_document_that_names_the_error(platform: FakePlatform) -> None:
    call("start", STREAM, *WHY)
    done = call("stop", STREAM, *WHY, "--json")
    document = only_document(done)
    assert (document["state"], document["group_is_free"]) == ("draining", None)
    assert "has not stopped" in document["error"]["what"]
    assert isinstance(raised(done), PartFailedError)


def test_a_stop_that_succeeds_says_whether_the_group_is_free(platform: FakePlatform) -> None:
    document = only_document(call("stop", STREAM, *WHY, "--json"))
    assert (document["state"], document["group_is_free"], document["error"]) == ("stopped", True, None)


@pytest.mark.parametrize("verb", ["start", "stop", "accept"])
def test_where_nothing_could_be_asked_there_is_one_document_too(verb: str, platform: FakePlatform) -> None:
    platform.streams.down = True
    done = call(verb, STREAM, *WHY, "--json")
    assert only_document(done)["error"]["what"] == "the control database does not answer"
    assert only_document(done)["state"] is None
    assert isinstance(raised(done), UnreachableError)


def test_people_get_the_error_alone_where_there_is_no_report(platform: FakePlatform) -> None:
    platform.streams.down = True
    assert call("start", STREAM, *WHY).stdout == ""


def test_the_list_may_be_of_one_pipeline(platform: FakePlatform) -> None:
    platform.streams.set_desired("old.events", actor="cli:ann", reason="long ago")
    broken = platform.settings.root / "include" / "pipelines" / "broken.yaml"
    broken.write_text("pipeline: [broken\n")
    every = call("list", "--json")
    assert every.exit_code == 1  # a declaration is broken
    names = [row["stream"] for row in only_document(every)["streams"]]
    assert names == ["activity.groups", "old.events", "shop.backup", STREAM]
    of_old, of_shop, of_broken = (call("list", "--pipeline", name, "--json") for name in ("old", "shop", "broken"))
    assert [row["stream"] for row in only_document(of_old)["streams"]] == ["old.events"]
    assert [row["stream"] for row in only_document(of_shop)["streams"]] == ["shop.backup", STREAM]
    assert only_document(of_broken)["streams"] == []
    assert [done.exit_code for done in (of_old, of_shop, of_broken)] == [0, 0, 1]


def test_the_list_says_what_a_stuck_stream_waits_for(platform: FakePlatform) -> None:
    assert call("start", STREAM, *WHY).exit_code == 0
    apps = platform.app_runner.apps
    ill = Vitals(step="merging batch 7", batch_for=timedelta(hours=1), waits_for="pid 77 (user report)")
    apps[STREAM, 1] = replace(apps[STREAM, 1], vitals=ill)
    [row] = [row for row in only_document(call("list", "--json"))["streams"] if row["stream"] == STREAM]
    assert (row["state"], row["why"]) == ("stuck", "merging batch 7, waits for pid 77 (user report)")
    shown = call("list").stdout
    assert all(word in shown for word in ("stuck", "merging", "77", "report"))


@pytest.mark.usefixtures("platform")
def test_a_list_of_a_pipeline_that_nobody_knows_is_refused() -> None:
    error = raised(call("list", "--pipeline", "shopp"))
    assert isinstance(error, UsageError)
    assert "shopp" in error.what
    assert "shop" in error.next_step
