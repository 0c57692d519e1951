"""`millrace topics drift`: in what topics are not as declared, as found and as called."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from millrace.cli.topics import commands as topics
from millrace.cli.topics import drift
from millrace.domain.declaration.pipeline import Manage, Pipeline, Retention, Topic
from millrace.domain.topics.changes import ObservedTopic
from millrace.errors import UnreachableError
from millrace.settings import Settings
from millrace.usecases.topics.drift import Difference, Drift, MendedBy, find_drift
from support.commands import use_platform
from support.declarations import SHOP, example_project, replace_once
from support.fakes.logs import FakeHolds
from support.fakes.platform import PartsPlatform
from support.fakes.topics import DEFAULTS, FakeTopicAdmin

NAME = "shop.purchases"
DECLARED = Topic(NAME, "shop", partitions=4, replication=1, retention=Retention(timedelta(days=7)))


def observed(partitions: int = 4, replication: int = 1, **config: str) -> ObservedTopic:
    values = {key.replace("_", "."): value for key, value in config.items()}
    return ObservedTopic(NAME, "id-1", partitions, replication, values, DEFAULTS)


def platform_of(topic_admin: Callable[[str], FakeTopicAdmin]) -> Any:
    """Clusters of which the topics' settings are known and nothing else, and a database in which nothing is held."""

    def away(connection: str) -> None:
        raise UnreachableError("nobody answers")

    control = SimpleNamespace(holds=FakeHolds())
    return PartsPlatform(kafka_topics=topic_admin, control=control, kafka_logs=away)


def found(declared: Topic, *there: ObservedTopic) -> Drift:
    admin = FakeTopicAdmin(there)
    platform = platform_of(lambda connection: admin)
    drifted = find_drift(platform, Pipeline("shop", "owner", "main_kafka", (declared,), ()))
    assert set(admin.calls) <= {"observe", "names"}
    assert (drifted.pipeline, drifted.kafka, drifted.cluster_id) == ("shop", "main_kafka", "cluster-1")
    return drifted


def test_nothing_is_found_where_all_is_as_declared_or_not_declared() -> None:
    assert found(DECLARED, observed()).is_none
    assert found(DECLARED, observed(max_message_bytes="5")).is_none


def test_what_loses_nothing_is_mended_daily_and_the_rest_by_a_person_setting_by_setting() -> None:
    declared = Topic(
        NAME,
        "shop",
        partitions=6,
        retention=Retention(timedelta(days=1), 1000),
        config=(("segment.ms", "60000"),),
    )

    drifted = found(declared, observed(retention_bytes="2000"))

    assert [(each.setting, each.declared, each.observed, each.mended_by) for each in drifted.differences] == [
        ("partitions", "6", "4", MendedBy.PERSON),
        ("retention.bytes", "1000", "2000", MendedBy.PERSON),
        ("retention.ms", "86400000", "604800000", MendedBy.PERSON),
        ("segment.ms", "60000", "604800000", MendedBy.DAILY),
    ]
    partitions, size, time, segments = (each.why for each in drifted.differences)
    assert partitions.startswith("keys move")
    assert size == "retention.bytes from 2000 to 1000 deletes records at the next sweep"
    assert time == "retention.ms from 604800000 to 86400000 deletes records at the next sweep"
    assert segments == ""


def test_longer_retention_is_mended_daily() -> None:
    (difference,) = found(DECLARED, observed(retention_ms="1000")).differences

    assert difference == Difference(NAME, "retention.ms", "604800000", "1000", MendedBy.DAILY)


def test_a_topic_that_is_not_there_is_missing_or_refused() -> None:
    missing = found(DECLARED)
    of_others = found(Topic(NAME, "shop", manage=Manage.NONE))

    assert (missing.missing, missing.differences, missing.refusals) == ((NAME,), (), ())
    assert (of_others.missing, len(of_others.refusals)) == ((), 1)
    assert not missing.is_none
    assert not of_others.is_none


def test_what_no_plan_changes_is_refused() -> None:
    drifted = found(Topic(NAME, "shop", partitions=2, replication=3), observed())

    assert drifted.differences == ()
    assert [refusal.what.partition(":")[0] for refusal in drifted.refusals] == [
        "the topic has 4 partitions, and 2 are declared",
        "the topic has replication 1, and 3 is declared",
    ]


@pytest.fixture
def admins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, FakeTopicAdmin]:
    """The clusters by Connection, in a copy of the example's project whose topics are as declared."""
    root = example_project(tmp_path / "project")
    monkeypatch.setenv("MILLRACE_ROOT", str(root))
    monkeypatch.setenv("MILLRACE_ENVIRONMENT", "embedded")
    config = {"cleanup.policy": "delete", "retention.ms": "-1", "segment.ms": "3153600000000"}
    there = [
        ObservedTopic(NAME, "id-1", 4, 1, config, DEFAULTS),
        ObservedTopic("__consumer_offsets", "id-2", 50, 1, {}, DEFAULTS),
    ]
    made = {"millrace_kafka": FakeTopicAdmin(there)}
    platform = platform_of(lambda connection: made[connection])
    use_platform(monkeypatch, platform, drift, settings=Settings(root, lambda name: None))
    return made


def call(*arguments: str) -> Result:
    return CliRunner().invoke(topics.app, ["drift", *arguments])


@pytest.mark.usefixtures("admins")
def test_the_command_ends_with_0_where_all_is_as_declared() -> None:
    done = call()

    assert done.exit_code == 0
    assert done.stdout == "activity: its topics are as declared\nshop: its topics are as declared\n"
    assert json.loads(call("shop", "--json").stdout) == {
        "schema": "millrace.topics.drift/1",
        "pipelines": [
            {
                "pipeline": "shop",
                "kafka": "millrace_kafka",
                "cluster_id": "cluster-1",
                "differences": [],
                "refusals": [],
                "missing": [],
            }
        ],
        "problems": [],
    }


def test_the_command_ends_with_1_where_something_is_not(admins: dict[str, FakeTopicAdmin]) -> None:
    admins["millrace_kafka"].set_config({NAME: {"segment.ms": "1000", "retention.ms": "1000"}})
    del admins["millrace_kafka"].topics["__consumer_offsets"]

    done = call()
    document = json.loads(call("--json").stdout)

    assert done.exit_code == call("--json").exit_code == 1
    for said in (NAME, "segment.ms", "3153600000000", "1000", "the daily run", "refused: __consumer_offsets"):
        assert said in done.stdout
    activity, shop = document["pipelines"]
    assert [refusal["subject"] for refusal in activity["refusals"]] == ["__consumer_offsets"]
    assert shop["differences"][1] == {
        "topic": NAME,
        "setting": "segment.ms",
        "declared": "3153600000000",
        "observed": "1000",
        "mended_by": "daily",
        "why": "",
    }


def test_a_topic_that_is_not_there_is_told(admins: dict[str, FakeTopicAdmin]) -> None:
    del admins["millrace_kafka"].topics[NAME]

    done = call("shop")

    assert done.exit_code == 1
    assert f"missing: {NAME}: declared, but does not exist" in done.stdout
    assert json.loads(call("shop", "--json").stdout)["pipelines"][0]["missing"] == [NAME]


def test_a_cluster_that_does_not_answer_hides_no_other(
    admins: dict[str, FakeTopicAdmin], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    replace_once(tmp_path / "project" / SHOP, "kafka: millrace_kafka", "kafka: other_kafka")

    class Silent(FakeTopicAdmin):
        def cluster_id(self) -> str:
            raise UnreachableError("the Kafka cluster does not answer", where="other_kafka")

    admins["other_kafka"] = Silent()
    done = call("--json")

    assert done.exit_code == 3
    document = json.loads(done.stdout)
    assert [each["pipeline"] for each in document["pipelines"]] == ["activity"]
    assert [problem["where"] for problem in document["problems"]] == ["other_kafka"]


@pytest.mark.usefixtures("admins")
def test_a_wrong_declaration_hides_no_other_and_is_told(tmp_path: Path) -> None:
    replace_once(tmp_path / "project" / SHOP, "partitions: 4", "partitions: 0")

    done = call("--json")

    assert done.exit_code == 1
    document = json.loads(done.stdout)
    assert [each["pipeline"] for each in document["pipelines"]] == ["activity"]
    assert len(document["problems"]) == 1
