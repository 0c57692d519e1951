"""`millrace quality reconcile` and `accept --books`: what they print, and what they end with."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from millrace.cli.quality import commands as cli
from millrace.cli.quality import reconcile as quality_books
from millrace.domain.quality.books import Fault, Finding, Reconciliation, Sums
from millrace.domain.quality.ranges import Mark
from millrace.domain.quality.recompute import Apart, Difference, Recomputed
from millrace.domain.topics.offsets import TopicPartition
from millrace.errors import RefusedError, UnreachableError, UsageError
from support.commands import use_platform
from support.declarations import example_project, upsert_instead

UPSERTED = "an upserted table has the last row of each key, not the row of each offset"
NAME = "shop.purchases"
AT = datetime(2026, 5, 4, 12, tzinfo=UTC)
P0 = TopicPartition(NAME, "id", 0)
REACHED = Mark(1, {P0: 100})
MISSING = Finding(Fault.MISSING, P0, ((3, 5), (9, 10)), 3, 2)
OPEN = Finding(Fault.UNWITNESSED, P0, ((20, 21),), 1, 1, "nobody can tell")


def ran(*findings: Finding, reached: Mark = REACHED) -> Reconciliation:
    return Reconciliation(NAME, AT, AT, reached, reached, reached, Sums(100, 80, 5, 10, 5, 15), findings, identity=7)


class Books:
    """What a run finds, and what it was asked for."""

    def __init__(self) -> None:
        self.found: Reconciliation | Exception = ran()
        self.asked: list[dict[str, Any]] = []

    def reconcile_on(self, *_: object, **asked: Any) -> tuple[Reconciliation]:
        self.asked.append(asked)
        if isinstance(self.found, Exception):
            raise self.found
        return (self.found,)


@pytest.fixture
def books(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Books:
    made = Books()
    platform = SimpleNamespace(settings=SimpleNamespace(root=example_project(tmp_path)))
    use_platform(monkeypatch, platform, cli, quality_books)
    monkeypatch.setattr(quality_books.quality_books, "reconcile_on", made.reconcile_on)
    return made


def call(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(cli.app, list(words), catch_exceptions=False)
    assert result.exit_code == code, result.stdout
    return result.stdout


@pytest.mark.parametrize(
    ("found", "code", "said"),
    [
        (ran(), 0, "100 offsets: 80 rows, 5 in quarantine, 10 dropped, 5 without a record: balanced"),
        (ran(MISSING), 1, "broken (missing 3)"),
        (ran(MISSING), 1, "missing: shop.purchases/0 [3, 5) [9, 10), 3 offsets"),
        (ran(OPEN), 1, "open (unwitnessed 1)"),
        (ran(reached=Mark()), 1, "nothing was ever written"),
    ],
)
def test_it_says_what_does_not_balance_and_ends_with_it(books: Books, found: Any, code: int, said: str) -> None:
    books.found = found
    assert said in call("reconcile", NAME, code=code)
    document = json.loads(call("reconcile", NAME, "--json", code=code))
    assert (document["schema"], document["problems"]) == ("millrace.quality.reconcile/1", [])
    [run] = document["runs"]
    assert (run["balance"], run["dropped"], run["run"]) == (found.balance.value, 10, 7)
    assert [one["fault"] for one in run["findings"]] == [one.fault.value for one in found.findings]


def test_of_many_streams_one_that_has_written_nothing_is_no_breach(books: Books) -> None:
    books.found = ran(reached=Mark())
    assert "nothing was ever written" in call("reconcile")
    books.found = ran(MISSING)
    call("reconcile", code=1)


def test_a_finding_is_whole_in_json(books: Books) -> None:
    books.found = ran(MISSING)
    [run] = json.loads(call("reconcile", NAME, "--json", code=1))["runs"]
    assert run["findings"] == [
        {
            "fault": "missing",
            "topic": NAME,
            "topic_id": "id",
            "partition": 0,
            "ranges": [[3, 5], [9, 10]],
            "range_count": 2,
            "offset_count": 3,
            "detail": "",
        }
    ]


@pytest.mark.parametrize(
    ("made", "code"),
    [
        (Recomputed(100, 90, compared=90, alike=90), 0),
        (Recomputed(100, 90, compared=90, alike=89, apart=(Apart(Difference.UNMADE, "", 1, ()),)), 1),
        (Recomputed(), 1),
    ],
)
def test_a_sample_is_made_again_after_the_books(
    books: Books, monkeypatch: pytest.MonkeyPatch, made: Recomputed, code: int
) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(quality_books, "recompute", lambda *_, **more: asked.append(more) or made)
    text = call("reconcile", NAME, "--sample", "100", code=code)
    assert text.index("balanced") < text.index(str(made)[:20])
    document = json.loads(call("reconcile", NAME, "--sample", "100", "--json", code=code))
    assert [one["likeness"] for one in document["recomputed"]] == [made.likeness.value]
    assert [one["sample"] for one in asked] == [100, 100]
    call("reconcile", "--sample", "100", code=code if made.records else 0)
    asked.clear()
    call("reconcile", NAME)
    assert asked == []


@pytest.mark.parametrize(("found", "code"), [(ran(), 4), (ran(MISSING), 1), (ran(OPEN), 1), (ran(reached=Mark()), 1)])
def test_of_a_named_stream_that_upserts_the_books_come_before_the_refused_sample(
    books: Books, tmp_path: Path, found: Reconciliation, code: int
) -> None:
    upsert_instead(tmp_path)
    books.found = found
    assert str(found) in call("reconcile", NAME, "--sample", "100", code=code)
    document = json.loads(call("reconcile", NAME, "--sample", "100", "--json", code=code))
    assert [run["balance"] for run in document["runs"]] == [found.balance.value]
    assert [one["what"] for one in document["problems"]] == [UPSERTED]
    call("reconcile", NAME, code=0 if code == 4 else code)


@pytest.mark.parametrize(("found", "code"), [(ran(), 0), (ran(MISSING), 1), (ran(reached=Mark()), 0)])
@pytest.mark.parametrize("alike", [True, False])
def test_of_many_streams_those_that_upsert_are_left_out_of_the_sample_and_said_to_be(
    books: Books, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: Reconciliation, code: int, alike: bool
) -> None:
    upsert_instead(tmp_path)
    books.found = found
    apart = () if alike else (Apart(Difference.UNMADE, "", 1, ()),)
    made, sampled = Recomputed(100, 90, compared=90, alike=90, apart=apart), list[str]()
    monkeypatch.setattr(quality_books, "recompute", lambda *given, **_: sampled.append(given[2].qualified_name) or made)
    result = CliRunner().invoke(cli.app, ["reconcile", "--sample", "100", "--json"], catch_exceptions=False)
    document = json.loads(result.stdout)
    assert result.exit_code == (code if alike else 1)
    assert f"{NAME}: no row is recomputed: {UPSERTED}" in result.stderr
    assert (document["not_recomputed"], document["problems"], sampled) == ([NAME], [], ["activity.groups"])
    assert len(document["runs"]) == 2
    result = CliRunner().invoke(cli.app, ["reconcile", "--json"], catch_exceptions=False)
    assert (result.exit_code, json.loads(result.stdout)["not_recomputed"], result.stderr) == (code, [], "")


def test_of_many_streams_a_refused_sample_hides_no_books_that_do_not_balance(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> Recomputed:
        raise RefusedError("the apps run in another container")

    monkeypatch.setattr(quality_books, "recompute", refuse)
    call("reconcile", "--sample", "100", code=4)
    books.found = ran(MISSING)
    call("reconcile", "--sample", "100", code=1)


def test_it_looks_from_the_first_offset_on_where_it_is_told_to(books: Books) -> None:
    call("reconcile", NAME, "--deep")
    call("reconcile", NAME)
    assert [asked["deep"] for asked in books.asked] == [True, False]


def test_of_many_streams_one_whose_sink_is_away_hides_no_other(books: Books) -> None:
    books.found = UnreachableError("the sink database does not answer")
    document = json.loads(call("reconcile", "--json", code=3))
    assert document["problems"][0]["what"] == "the sink database does not answer"
    with pytest.raises(UnreachableError):
        call("reconcile", NAME)


@pytest.mark.usefixtures("books")
def test_a_stream_that_is_not_declared_has_no_books() -> None:
    with pytest.raises(UsageError, match="pipeline shop has no stream sales"):
        call("reconcile", "shop.sales")


@pytest.mark.usefixtures("books")
def test_what_a_run_found_is_accepted_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    use = cli.quality_books
    monkeypatch.setattr(use, "accept", lambda platform, stream, **more: asked.append(more) or ran(MISSING))
    said = call("accept", NAME, "--books", "--reason", "deleted on purpose")
    assert "what run 7 found stays as it is" in said
    assert asked[0]["reason"] == "deleted on purpose"
    document = json.loads(call("accept", NAME, "--books", "--reason", "deleted on purpose", "--json"))
    assert (document["schema"], document["books"]["run"]) == ("millrace.quality.accept/1", 7)

    def refuse(*_: object, **__: object) -> Reconciliation:
        raise RefusedError("nothing to accept")

    monkeypatch.setattr(use, "accept", refuse)
    with pytest.raises(RefusedError):
        call("accept", NAME, "--books", "--reason", "deleted on purpose")
