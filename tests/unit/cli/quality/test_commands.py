"""`millrace quality` on the command line: what it prints, and what it ends with."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from millrace import declarations
from millrace.cli.quality import commands as cli
from millrace.domain.quality.results import QualityCheck, Waiting
from millrace.errors import RefusedError, UnreachableError, UsageError
from millrace.usecases.quality.check import Checked
from support.commands import use_platform
from support.declarations import example_project
from support.quality.checks_made import (
    AT,
    BROKEN,
    EMPTY,
    NAME,
    PASSED,
    UNTRIED,
    WARNED,
    QualityRoom,
    made,
    platform_of,
)


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> QualityRoom:
    """A control room without a check, and a command line that works with it."""
    room = QualityRoom()
    evidence = SimpleNamespace(get=lambda key: b"<html>" if key.endswith(".html") else b"{}")
    platform = platform_of(example_project(tmp_path), room, objects_quality_evidence=lambda: evidence)
    use_platform(monkeypatch, platform, cli)
    return room


def finds(monkeypatch: pytest.MonkeyPatch, check: QualityCheck | Exception, **more: Any) -> list[Any]:
    """Have a check find this; the windows it is asked for."""
    asked = []

    def answer(*_: object, window: Any, **__: object) -> tuple[Checked]:
        asked.append(window)
        if isinstance(check, Exception):
            raise check
        return (Checked(check, **more),)

    monkeypatch.setattr(cli.quality, "check_on", answer)
    return asked


def call(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(cli.app, list(words), catch_exceptions=False)
    assert result.exit_code == code, result.stdout
    return result.stdout


@pytest.mark.usefixtures("room")
@pytest.mark.parametrize(
    ("check", "code", "said"),
    [
        (made(PASSED, WARNED), 0, "2 rules over 100 rows: passed; 1 warned (mild)"),
        (made(PASSED, BROKEN), 1, "2 rules over 100 rows: broken: sane"),
        (made(PASSED, UNTRIED), 1, "2 rules over 100 rows: not tested: lost"),
        (made(EMPTY, rows=0), 1, "1 rules over 0 rows: nothing is proven"),
        (
            made(replace(UNTRIED, rule="given"), rows=None, problem="the table is gone"),
            1,
            "not tested: the table is gone",
        ),
    ],
)
def test_a_check_ends_with_its_verdict(
    monkeypatch: pytest.MonkeyPatch, check: QualityCheck, code: int, said: str
) -> None:
    finds(monkeypatch, check)
    assert said in call("check", code=code)
    document = json.loads(call("check", NAME, "--json", code=code))
    assert document["schema"] == "millrace.quality.check/1"
    assert document["checks"][0]["verdict"] == check.verdict.value


@pytest.mark.usefixtures("room")
def test_a_broken_rule_is_told_with_its_sources_and_what_the_bucket_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    finds(monkeypatch, made(BROKEN, WARNED), evidence_problem="2 documents wait for the bucket: it is away")
    text = call("check", code=1)
    sources = "shop.purchases/0@0, shop.purchases/0@1, shop.purchases/0@2 ..."
    assert f"  fail: sane: 5 of 100 rows break it (range); from {sources}" in text
    assert "  warn: mild: 2 of 100 rows break it (in_set)" in text
    assert "evidence: 2 documents wait for the bucket" in text


@pytest.mark.usefixtures("room")
def test_a_window_has_two_ends_and_one_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = finds(monkeypatch, made(PASSED))
    call("check", NAME, "--from", "2026-05-04T00:00Z", "--to", "2026-05-05T00:00+02:00")
    assert [at.isoformat() for at in asked[0]] == ["2026-05-04T00:00:00+00:00", "2026-05-04T22:00:00+00:00"]
    for words in (
        ("check", NAME, "--from", "2026-05-04T00:00Z"),
        ("check", "--from", "2026-05-04T00:00Z", "--to", "2026-05-05T00:00Z"),
        ("check", NAME, "--from", "", "--to", ""),
        ("check", NAME, "--from", "2026-05-05T00:00Z", "--to", "2026-05-04T00:00Z"),
        ("check", NAME, "--from", "yesterday", "--to", "2026-05-05T00:00Z"),
        ("check", "shop.nothing"),
    ):
        with pytest.raises(UsageError):
            call(*words)


@pytest.mark.usefixtures("room")
def test_a_database_that_is_away_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    finds(monkeypatch, UnreachableError("the sink database does not answer"))
    with pytest.raises(UnreachableError):
        call("check")


def test_a_declaration_with_errors_is_told_and_not_left_out(room: QualityRoom, tmp_path: Path) -> None:
    rules = next(tmp_path.rglob("shop_purchases.yaml"))
    rules.write_text("rules: {a: {nonsense: b}}\n", encoding="utf-8")
    for words in (("check",), ("check", NAME), ("list",), ("show", NAME)):
        with pytest.raises(declarations.InvalidDeclarationError):
            call(*words)


def test_the_streams_are_listed_checked_or_not(room: QualityRoom) -> None:
    assert "never" in call("list")
    room.checks = [made(PASSED, BROKEN)]
    text = call("list")
    assert "shop_purchases (12)" in text
    assert "sane" in text
    [row] = json.loads(call("list", "--json"))["streams"]
    assert (row["stream"], row["rule_count"], row["last"]["verdict"]) == (NAME, 12, "failed")


def test_a_check_is_shown_with_the_last_results_of_each_rule(room: QualityRoom) -> None:
    with pytest.raises(UsageError, match="it was never checked"):
        call("show", NAME)
    room.checks = [
        made(PASSED, BROKEN, WARNED, identity=9),
        made(PASSED, UNTRIED, identity=8),
        made(EMPTY, BROKEN, identity=7),
        made(BROKEN, identity=6),
    ]
    text = call("show", NAME)
    lines = {line.split("│")[1].strip(): line for line in text.splitlines() if line.startswith("│")}
    assert " -··" in lines["given"]
    assert "✗✗ ✗" in lines["sane"]
    assert "  ! " in lines["mild"].replace("   !", "  !")
    assert "from shop.purchases/0@0" in text
    document = json.loads(call("show", NAME, "--json"))
    assert document["marks"] == {"given": " -··", "sane": "✗✗ ✗", "mild": "   !"}
    assert document["check"]["check"] == 9
    assert json.loads(call("show", NAME, "--check", "8", "--json"))["check"]["check"] == 8


def test_freshness_is_shown_in_parts_and_never_as_the_time_of_an_event(room: QualityRoom) -> None:
    room.checks = [made(PASSED)]
    text = call("show", NAME)
    assert "event -> visible" in text
    assert "visible -> checked" in text
    moment = (AT.replace(hour=10)).isoformat()[:13]
    assert moment not in text + call("show", NAME, "--json")


def test_the_page_is_written_from_the_bucket_or_from_what_waits(room: QualityRoom, tmp_path: Path) -> None:
    room.checks = [made(PASSED, evidence=("quality/a.json", "quality/a.html"))]
    call("show", NAME, "--page", str(tmp_path / "page.html"))
    assert (tmp_path / "page.html").read_bytes() == b"<html>"
    room.checks = [made(PASSED)]
    with pytest.raises(UsageError, match="has no page"):
        call("show", NAME, "--page", str(tmp_path / "page.html"))
    room.documents = [Waiting(1, 7, "quality/b.html", b"waits")]
    call("show", NAME, "--page", str(tmp_path / "page.html"))
    assert (tmp_path / "page.html").read_bytes() == b"waits"


@pytest.mark.usefixtures("room")
def test_rows_that_stay_are_accepted_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(cli.quality, "accept", lambda platform, stream, **more: asked.append(more) or made(BROKEN))
    assert "the rows of check 7 stay as they are" in call("accept", NAME, "--reason", "known to the shop")
    assert asked[0]["reason"] == "known to the shop"
    document = json.loads(call("accept", NAME, "--reason", "known to the shop", "--json"))
    assert (document["schema"], document["check"]["check"]) == ("millrace.quality.accept/1", 7)

    def refuse(*_: object, **__: object) -> QualityCheck:
        raise RefusedError("nothing to accept")

    monkeypatch.setattr(cli.quality, "accept", refuse)
    with pytest.raises(RefusedError):
        call("accept", NAME, "--reason", "known to the shop")
