"""The declaration of the pipeline over the coordinator's log, and what `groups active` says of it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import typer
from typer.testing import CliRunner

from millrace import declarations
from millrace.cli.groups import active as command
from millrace.domain.activity.readings import Reading, UnreadableRecords
from millrace.domain.declaration.pipeline import BYTES_COLUMNS, Key, Manage, ValueFormat, ValueSchema
from millrace.domain.quarantine.rules import Rule
from millrace.errors import UsageError
from millrace.runtime.formats.registry import decoder_of
from millrace.usecases.activity.active import active
from support.commands import use_platform
from support.fakes.platform import GroupedPlatform

REPOSITORY = Path(__file__).resolve().parents[4]
NOW = datetime(2026, 1, 2, tzinfo=UTC)


def reading(group: str, hours_ago: int, client_id: str | None = "till-7") -> Reading:
    at = NOW - timedelta(hours=hours_ago)
    return Reading(group, "shop.purchases", {1: 5, 0: 3}, client_id, "10.0.0.1", None, at, at, 2)


class Views(GroupedPlatform):
    """A platform with the activity's sink alone."""

    def __init__(self, readings: list[Reading] | None) -> None:
        self.settings = SimpleNamespace(root=REPOSITORY)
        self._readings = readings
        self.asked: list[Any] = []

    def sinks_activity(self, connection: str) -> Views:
        self.asked.append(connection)
        return self

    def readings(self, since: datetime, group: str | None, topic: str | None) -> list[Reading] | None:
        self.asked.append((since, group, topic))
        return self._readings

    def unreadable(self) -> list[UnreadableRecords]:
        return [UnreadableRecords(42, "key version 42: not a record that Kafka 4.3 knows", 3)]


def test_the_shipped_pipeline_reads_kafkas_own_topic_and_never_changes_it() -> None:
    pipeline = declarations.load_pipeline(REPOSITORY, "activity", "embedded")
    [topic] = pipeline.topics
    assert (topic.name, topic.manage, topic.value) == (
        "__consumer_offsets",
        Manage.NONE,
        ValueSchema(ValueFormat.BYTES, BYTES_COLUMNS),
    )
    assert pipeline.stream("groups").group == "millrace.activity.groups"


def test_records_that_are_not_decoded_are_columns_as_they_are() -> None:
    schema = ValueSchema(ValueFormat.BYTES, BYTES_COLUMNS)
    found = decoder_of(schema, None).decode([b"\xff", None], [None, b"\x00"], [-1, None])
    assert found.columns == (pa.array([None, b"\x00"], pa.binary()), pa.array([b"\xff", None], pa.binary()))
    assert (found.rules, found.errors, found.truncated) == ([None, None], [None, None], [False, False])


def test_a_declared_key_is_required_of_them_too() -> None:
    schema = ValueSchema(ValueFormat.BYTES, BYTES_COLUMNS)
    found = decoder_of(schema, Key("key")).decode([b"a", b"b"], [None, b"k"], [1, 1])
    assert found.rules == [Rule.NULL_KEY, None]
    assert found.columns[1].to_pylist() == [None, b"b"]


def test_the_latest_come_first_and_the_rest_is_said_to_be_there() -> None:
    platform: Any = Views([reading("a", 3), reading("b", 1), reading("c", 2)])
    found = active(platform, timedelta(days=2), "g", "t", 2, now=NOW)
    assert ([one.group for one in found.readings], found.is_cut) == (["b", "c"], True)
    assert platform.asked == ["millrace_sink", (NOW - timedelta(days=2), "g", "t")]


def test_a_stream_that_was_never_started_is_named_with_the_way_to_start_it() -> None:
    platform: Any = Views(None)
    with pytest.raises(UsageError, match="never started") as raised:
        active(platform, timedelta(days=2))
    assert raised.value.next_step == "run `./millrace streams start activity.groups --reason ...`"


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> typer.Typer:
    views = Views([reading("b", 1), reading("c", 2, None)])
    use_platform(monkeypatch, views, command)
    made = typer.Typer()
    made.callback()(lambda: None)
    command.register(made)
    return made


def test_the_table_names_clients_and_what_could_not_be_read(app: typer.Typer) -> None:
    shown = CliRunner().invoke(app, ["active", "--since", "2d"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0, shown.output
    assert all(part in shown.output for part in ("till-7", "10.0.0.1", "0:3 1:5", "(no member)"))
    assert "3 records of the coordinator's log were not read: key version 42" in shown.output


def test_the_document_has_a_version(app: typer.Typer) -> None:
    document = json.loads(CliRunner().invoke(app, ["active", "--json"]).stdout)
    assert document["schema"] == "millrace.groups.active/1"
    assert document["readings"][0]["offsets"] == {"0": 3, "1": 5}
    assert document["unreadable"][0]["version"] == 42


def test_a_time_without_a_unit_is_refused(app: typer.Typer) -> None:
    ended = CliRunner().invoke(app, ["active", "--since", "2"])
    assert isinstance(ended.exception, UsageError)
