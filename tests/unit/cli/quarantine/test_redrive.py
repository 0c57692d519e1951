"""`millrace quarantine redrive` and `quarantine show`: what they ask for, what they print, what they end with."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from millrace.cli.quarantine import commands as cli
from millrace.domain.plans.plan import Plan, PlanKind
from millrace.domain.quarantine.redrive import (
    Fate,
    Place,
    Redrive,
    Redriven,
    Selection,
    Tally,
    about,
    changes_of,
    redrive_of,
)
from millrace.domain.quarantine.rules import Excerpt, Former, QuarantinedRecord, Rule
from millrace.domain.topics.offsets import SourceAt
from millrace.errors import RefusedError, UsageError
from millrace.usecases.quarantine import listing as quarantine
from millrace.usecases.quarantine import redrive
from support.commands import use_platform
from support.declarations import example_project, upsert_instead

NAME = "shop.purchases"
NOW = datetime(2026, 11, 26, 18, 0, tzinfo=UTC)
SELECTION = Selection("not_json", NOW, (Place(NAME, 0, 3, 4), Place(NAME, 1, 0, 100)))


def tried() -> Redriven:
    tally = Tally()
    for offset in range(3):
        tally.add(SourceAt(NAME, 0, offset), "missing_field", Fate.ROW, rows=2)
    tally.add(SourceAt(NAME, 0, 3), "missing_field", Fate.BAD, Rule.MISSING_FIELD)
    tally.add(SourceAt(NAME, 0, 4), "not_json", Fate.BAD, Rule.NOT_JSON)
    tally.add(SourceAt(NAME, 0, 5), "sink_refused", Fate.DROPPED)
    tally.add(SourceAt(NAME, 0, 6), "sink_refused", Fate.AHEAD)
    tally.add(SourceAt(NAME, 0, 7), "sink_refused", Fate.MOVED)
    return Redriven(NOW, tally.sums())


def plan(selection: Selection = SELECTION) -> Plan:
    said = about(Redrive(NAME, selection, "c0de", NOW), tried())
    changes = changes_of(tried().sums)
    return Plan(
        PlanKind.REDRIVE, NAME, "host:5432/sink", "millrace_sink", changes, (), NOW, NOW, "cli:a", "mended", said
    )


class World:
    """Use cases that answer what they are told to."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.error: Exception | None = None

    def make_plan(self, platform: object, stream: str, selection: Selection, **more: Any) -> Plan:
        more["tell"]("3 records tried")
        self.asked.append({"stream": stream, "selection": selection, "reason": more["reason"]})
        if self.error:
            raise self.error
        return plan()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    use_platform(monkeypatch, SimpleNamespace(), cli)
    monkeypatch.setattr(redrive, "make_plan", made.make_plan)
    return made


def call(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(cli.app, [*words])
    assert result.exit_code == code, result.output
    return result.stdout


def test_what_is_given_is_selected_and_the_plan_is_printed_with_how_to_run_it(world: World) -> None:
    words = ["--rule", "not_json", "--since", "2026-01-01T00:00Z", "--offsets", "t/0@1", "--offsets", "t/1@0-9"]
    text = call("redrive", NAME, "--reason", "the schema is mended", *words)
    expected = Selection("not_json", datetime(2026, 1, 1, tzinfo=UTC), (Place("t", 0, 1, 2), Place("t", 1, 0, 10)))
    assert world.asked == [{"stream": NAME, "selection": expected, "reason": "the schema is mended"}]
    assert "redrive in host:5432/sink" in text
    assert "become_rows: 3, 6 rows in all" in text
    assert "caution: shop.purchases sink_refused: 1 records will have no row" in " ".join(text.split())
    assert f"plan {plan().id}: run it with `millrace plans run {plan().id}`" in text
    call("redrive", NAME, "--reason", "the schema is mended")
    assert world.asked[-1]["selection"] == Selection()


def test_the_document_is_the_plans(world: World) -> None:
    document = json.loads(call("redrive", NAME, "--reason", "the schema is mended", "--json"))
    assert (document["schema"], document["kind"], document["id"]) == (
        "millrace.quarantine.redrive/1",
        "redrive",
        plan().id,
    )
    assert [change["subject"] for change in document["changes"]] == [f"{NAME} missing_field", f"{NAME} sink_refused"]


@pytest.mark.parametrize("words", [["--rule", "no_such"], ["--reason"], []])
def test_a_rule_that_is_none_and_a_missing_reason_are_refused(world: World, words: list[str]) -> None:
    given = words if words != ["--rule", "no_such"] else [*words, "--reason", "the schema is mended"]
    call("redrive", NAME, *given, code=2)
    assert world.asked == []


@pytest.mark.parametrize("error", [RefusedError("nothing", where=NAME), UsageError("no stream", where=NAME)])
def test_what_may_not_be_is_raised_to_who_ends_the_command(world: World, error: Exception) -> None:
    world.error = error
    found = CliRunner().invoke(cli.app, ["redrive", NAME, "--reason", "the schema is mended"])
    assert found.exception is error


def test_of_a_stream_that_upserts_nothing_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    upsert_instead(example_project(tmp_path))
    platform = SimpleNamespace(settings=SimpleNamespace(root=tmp_path))
    use_platform(monkeypatch, platform, cli)

    error = CliRunner().invoke(cli.app, ["redrive", NAME, "--reason", "the schema is mended"]).exception

    assert isinstance(error, RefusedError)
    assert (error.what, error.where, error.next_step) == (
        "a redrive writes rows by source, and an upserted table stores rows by key",
        NAME,
        "rewind the stream to a time before the records; see docs/guide/rewind.md",
    )


def test_a_plan_says_all_that_its_run_has_to_know() -> None:
    for selection in (SELECTION, Selection(), replace(SELECTION, rule="", since=None)):
        found = redrive_of(plan(selection))
        assert (found.selection, found.code, found.upto) == (selection, "c0de", NOW)
        assert (found.leaving, found.staying) == (4, 4)


def test_changes_tell_of_each_rule_what_leaves_and_why_the_rest_stays() -> None:
    missing, refused = changes_of(tried().sums)
    assert dict(missing.before) == {"in_quarantine": "4"}
    assert dict(missing.after) == {
        "in_quarantine": "1",
        "become_rows": "3, 6 rows in all",
        "stay_missing_field": "1",
    }
    assert dict(refused.after) == {"in_quarantine": "2", "dropped_by_the_transform": "1", "stay_ahead": "1"}


def test_a_record_is_shown_with_both_histories(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    whole = Excerpt(b"{}", 2)
    former = (Former("not_json", "at the first byte", NOW, "redrive-0123456789ab"),)
    record = QuarantinedRecord(
        NAME, SourceAt(NAME, 0, 3), "id", "missing_field", "no id", whole, whole, (), NOW, None, NOW, 7, 1, former
    )
    monkeypatch.setattr(quarantine, "show", lambda platform, stream, source: record)
    text = " ".join(call("show", NAME, f"{NAME}/0@3").split())
    assert "rule missing_field error no id until 2026-11-26 18:00:00 UTC not_json: at the first byte" in text
    document = json.loads(call("show", NAME, f"{NAME}/0@3", "--json"))
    assert document["former"] == [
        {
            "rule": "not_json",
            "error": "at the first byte",
            "until": "2026-11-26T18:00:00+00:00",
            "plan": "redrive-0123456789ab",
        }
    ]
