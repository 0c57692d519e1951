"""`topics hold` on the command line: what it asks for, prints and ends with."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from millrace.cli.topics import hold as cli
from millrace.cli.topics.commands import app
from millrace.domain.topics.changes import ObservedTopic
from millrace.domain.topics.offsets import TopicPartition
from millrace.errors import RefusedError, UsageError
from support.commands import use_platform
from support.declarations import valid_project
from support.fakes.logs import LogsPlatform
from support.fakes.topics import DEFAULTS

TOPIC = "shop.purchases"


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LogsPlatform:
    """A topic of four empty partitions, and a command line that works with it."""
    made = LogsPlatform(valid_project(tmp_path))
    made.admin.topics[TOPIC] = ObservedTopic(TOPIC, "id-1", 4, 1, {}, dict(DEFAULTS))
    made.log.records = {TopicPartition(TOPIC, "id-1", number): [] for number in range(4)}
    use_platform(monkeypatch, made, cli)
    return made


def call(*words: str) -> str:
    """What it prints; its error is raised."""
    result = CliRunner().invoke(app, ["hold", *words], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_it_holds_lists_and_ends(fake: LogsPlatform) -> None:
    assert call() == "no topic is held\n"
    begun = call(TOPIC, "--for", "24h", "--reason", "wrong totals")
    assert f"{TOPIC} is held until" in begun
    assert "retention.ms: 604800000 before, " in begun
    listed = json.loads(call("--json"))
    assert listed["schema"] == "millrace.topics.holds/1"
    [hold] = listed["holds"]
    assert (hold["topic"], hold["before"], hold["reason"]) == (
        TOPIC,
        {"retention.ms": None, "retention.bytes": None},
        "wrong totals",
    )
    assert "wrong totals" in call()
    ended = json.loads(call(TOPIC, "--end", "--reason", "found it", "--json"))
    assert (ended["schema"], ended["ended"]) == ("millrace.topics.hold/1", True)
    assert call() == "no topic is held\n"


def test_what_it_may_need_is_told_with_the_budget(fake: LogsPlatform) -> None:
    fake.log.fill(TopicPartition(TOPIC, "id-1", 0), 100, datetime.now(UTC) - timedelta(minutes=1))
    with pytest.raises(RefusedError, match="no broker reports"):
        call(TOPIC, "--for", "24h", "--reason", "wrong totals")
    assert "may need 352 KiB of its budget of 1.0 GiB" in call(
        TOPIC, "--for", "24h", "--reason", "wrong totals", "--budget", "1GiB"
    )


@pytest.mark.parametrize(
    "words",
    [
        ("--for", "24h"),
        ("--end",),
        (TOPIC,),
        (TOPIC, "--for", "24h"),
        (TOPIC, "--end"),
        (TOPIC, "--reason", "wrong totals"),
        (TOPIC, "--for", "24h", "--end", "--reason", "wrong totals"),
        (TOPIC, "--end", "--budget", "1GiB", "--reason", "wrong totals"),
        (TOPIC, "--for", "soon", "--reason", "wrong totals"),
        (TOPIC, "--for", "24h", "--reason", "wrong totals", "--budget", "much"),
        (TOPIC, "--for", "24h", "--reason", "why"),
    ],
)
def test_what_says_too_little_or_too_much_is_a_usage_error(fake: LogsPlatform, words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        call(*words)
    assert fake.holds.rows == []
