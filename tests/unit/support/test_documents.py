"""What is masked in a kept document, and what shows as a difference."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from millrace.domain.archive.audits.findings import Depth
from millrace.errors import UnreachableError
from support.declarations import valid_project
from support.documents import kept
from support.documents.differences import LONGEST, differences
from support.documents.fields import RULES
from support.documents.masks import ANY, Distinct, Mask, Only, Place, Rules, Shape, leaves
from support.documents.running import Caller, call

DOCUMENT = {
    "at": "2026-05-01T08:00:00.123+00:00",
    "rows": 12,
    "took": 1.5,
    "parts": [{"name": "a", "pid": 17, "deep": {"at": "2026-05-01T08:00:01+00:00"}}],
}


def masked(document: object, *masks: tuple[str, Shape], of: str = "topics plan") -> object:
    return Rules([Mask(Place("topics *", path), shape, "a reason") for path, shape in masks]).apply(of, document)


def test_a_value_is_masked_at_its_path_and_all_others_stay() -> None:
    made = masked(DOCUMENT, ("parts[].pid", Shape.INT), ("took", Shape.FLOAT))
    parts = [{**DOCUMENT["parts"][0], "pid": "<int>"}]  # type: ignore[index]
    assert made == {**DOCUMENT, "took": "<float>", "parts": parts}


def test_any_number_of_keys_and_any_one_key() -> None:
    everywhere = masked(DOCUMENT, ("**.at", Shape.TIME))
    assert json.dumps(everywhere).count("<time>") == 2
    ports = {"ports": {"a": 1, "b": {"c": 2}}}
    assert masked(ports, ("ports.*", Shape.INT)) == {"ports": {"a": "<int>", "b": {"c": 2}}}


@pytest.mark.parametrize("path", ["parts[]", "parts", "parts[].deep", "pid", "parts.pid", "parts[].deep.at.more"])
def test_another_path_and_a_whole_object_or_list_are_not_masked(path: str) -> None:
    assert masked(DOCUMENT, *((path, shape) for shape in Shape)) == DOCUMENT


def test_a_mask_of_other_calls_masks_nothing() -> None:
    assert masked(DOCUMENT, ("took", Shape.FLOAT), of="streams list") == DOCUMENT


@pytest.mark.parametrize(
    ("shape", "value"),
    [
        (Shape.INT, 1.0),
        (Shape.INT, True),
        (Shape.INT, None),
        (Shape.INT, "1"),
        (Shape.FLOAT, 1),
        (Shape.FLOAT, None),
        (Shape.TIME, None),
        (Shape.TIME, ""),
        (Shape.TIME, "yesterday"),
        (Shape.TIME, "2026-05-01T08:00:00"),
        (Shape.TIME, "at 2026-05-01T08:00:00+00:00"),
        (Shape.SHA256, "0" * 63),
        (Shape.SIZE, "900 KB of garbage"),
        (Shape.STATE, "failed"),
        (Shape.STATE, "shop.running"),
    ],
)
def test_a_value_of_another_shape_shows(shape: Shape, value: object) -> None:
    assert masked({"rows": value}, ("rows", shape)) == {"rows": value}


@pytest.mark.parametrize(
    ("shape", "value", "made"),
    [
        (Shape.TIME, "2026-05-01T17:00:00.5+09:00", "<time>"),
        (Shape.PLAN, "requested in Airflow (plan topics-852ff08a7b2a)", "requested in Airflow (plan topics-<plan>)"),
        (Shape.STAMP, "wanted since 2026-11-29 09:47:19 by me", "wanted since <stamp> by me"),
        (Shape.STAMP, "ended at 2026-11-29 10:00 UTC: aborted", "ended at <stamp>: aborted"),
        (Shape.STAMP, "timestamp=2026-11-29T10:01:20.45Z level=info", "timestamp=<stamp> level=info"),
        (Shape.KAFKA_ID, "LvtOgUkpTbS6XG17kkGxEA", "<kafka id>"),
        (Shape.PID, "pid 20049, uptime 0:00:21", "pid <pid>, uptime 0:00:21"),
        (Shape.DURATION, "pid 20049, uptime 0:00:21", "pid 20049, uptime <duration>"),
        (Shape.RATE, "at 14,709 records/s in its last of 19,701", "at <rate> records/s in its last of 19,701"),
        (Shape.SIZE, "2.0 MiB, of 2 readers", "<size> MiB, of 2 readers"),
        (Shape.SIZE, "21.0 of 25.3 GB available, 2 cores", "<size> of <size> GB available, 2 cores"),
        (Shape.HELD, "3 databases, 5 roles", "<held> databases, <held> roles"),
        (Shape.JAVA, "17 in /usr/lib/jvm/java-17", "<java>"),
        (Shape.JAVA, "21 in <project>/.millrace/java", "<java>"),
        (Shape.STATE, "    shop.books     no run", "    shop.books     <state>"),
        (Shape.EARLIER_MARKS, "-·!-·", "<earlier marks>·"),
        (Shape.MOMENT, "audit/a/20261129T094753891951Z-d4dabcb8d1c978a4.json", "audit/a/<moment>.json"),
    ],
)
def test_of_a_text_the_part_that_differs_is_masked(shape: Shape, value: str, made: str) -> None:
    assert masked({"text": value}, ("text", shape)) == {"text": made}


@pytest.mark.parametrize("path", ["", "*", ANY, "[]", "**[]", "**.*", "*[].*"])
def test_a_path_that_names_no_key_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="names no key"):
        Place("*", path)


def test_texts_of_a_run_are_replaced_in_every_text_the_longest_first() -> None:
    document = {"a": "in /x/project", "b": ["/x"], "n": 7}
    made = Rules([]).apply("up", document, {"folder": "/x", "project": "/x/project"})
    assert made == {"a": "in <project>", "b": ["<folder>"], "n": 7}


def test_of_a_shared_list_the_entries_of_the_example_are_compared() -> None:
    rules = Rules([], [Only(Place("groups list", "groups"), "group", ("shop.",), "a reason")])
    document = {"groups": [{"group": "shop.a"}, {"group": "other"}, {"group": "shop.b"}], "names": [{"group": "other"}]}
    assert rules.apply("groups list", document) == {**document, "groups": [{"group": "shop.a"}, {"group": "shop.b"}]}


def test_of_equal_entries_one_is_compared_in_the_named_list_alone() -> None:
    mask = Mask(Place("*", "**.keys[]"), Shape.MOMENT, "a reason")
    rules = Rules([mask], distinct=[Distinct(Place("*", "some.keys"), "a reason")])
    keys = [f"deep/2026112{day}T094753891951Z-d4dabcb8d1c978a4" for day in range(3)]
    document = {"some": {"keys": [*keys, "deep"]}, "all": {"keys": keys}}
    made = rules.apply("up", document)
    assert made == {"some": {"keys": ["deep/<moment>", "deep"]}, "all": {"keys": ["deep/<moment>"] * 3}}


def test_each_difference_is_named_with_its_path_and_both_values() -> None:
    old = {"a": 1, "list": [{"x": "one"}, {"x": "two"}], "gone": None, "kind": 1}
    new = {"a": 2, "list": [{"x": "one"}, {"x": "three"}, {}], "new": [], "kind": 1.0}
    assert list(differences(old, new)) == [
        "a: was 1, is 2",
        "list: was 2 entries, is 3",
        'list[1].x: was "two", is "three"',
        "gone: is gone, was null",
        "kind: was 1, is 1.0",
        "new: is new, []",
    ]


def test_equal_documents_have_no_difference_whatever_the_order_of_their_keys() -> None:
    assert list(differences({"a": 1, "b": [2]}, {"b": [2], "a": 1})) == []


def test_true_is_not_one_and_a_long_value_is_cut() -> None:
    assert list(differences({"a": True}, {"a": 1})) == ["a: was true, is 1"]
    [line] = differences({"a": "x" * 1000}, {"a": None})
    assert len(line) < 2 * LONGEST


def test_documents_are_compared_with_those_that_are_kept_and_kept_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(kept.UPDATE, raising=False)
    made = {"status": {"exit": 0}, "topics plan": {"exit": 1}, "log --subject shop": {"exit": 0}}
    assert "status: exit: is new, 0" in kept.changed(made, tmp_path)
    assert not [*tmp_path.iterdir()]
    monkeypatch.setenv(kept.UPDATE, "1")
    assert kept.changed(made, tmp_path) == ""
    assert {path.name for path in tmp_path.iterdir()} == {"stack.json", "topics.json", "plans.json"}
    monkeypatch.delenv(kept.UPDATE)
    assert kept.changed(made, tmp_path) == ""
    kept.hold(made, tmp_path)
    with pytest.raises(pytest.fail.Exception, match="topics plan: exit: was 1, is 0"):
        kept.hold({"topics plan": {"exit": 0}}, tmp_path)


def test_a_call_that_is_made_no_more_is_kept_no_more(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text('{"an old call": {"exit": 0}}')
    kept.write({"status": {"exit": 0}}, tmp_path)
    assert kept.read(tmp_path) == {"status": {"exit": 0}}


def test_a_call_gives_exit_code_and_document_or_the_lines_of_its_error(tmp_path: Path) -> None:
    root = valid_project(tmp_path)
    checked = call(["spec", "check"], root)
    assert checked["exit"] == 0
    assert isinstance(checked["document"], dict)
    assert checked["document"]["schema"] == "millrace.spec.check/1"
    wrong = call(["spec", "show", "nothing"], root)
    assert (wrong["exit"], "document" in wrong) == (2, False)
    assert "pipeline `nothing` does not exist" in str(wrong["error"])


def test_a_server_that_does_not_answer_is_no_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = {"conn_type": "postgres", "host": "127.0.0.1", "port": 1, "login": "x", "password": "x"}
    monkeypatch.setenv("AIRFLOW_CONN_MILLRACE_CONTROL", json.dumps(gone))
    with pytest.raises(UnreachableError):
        call(["log"], valid_project(tmp_path))


def test_what_a_call_says_a_later_one_may_name_and_documents_have_the_word(tmp_path: Path) -> None:
    caller = Caller(valid_project(tmp_path), {"word": "nothing"})
    caller.learn("pipeline", "unknown")
    ended = caller.call("spec show {pipeline}")
    assert "pipeline `<pipeline>` does not exist" in str(ended["error"])
    assert caller.inside(tmp_path).masked("spec show", {"error": ["nothing", str(tmp_path)]}) == {
        "error": ["<word>", "<project>"]
    }


DEEP, SHALLOW = (
    f"audit/shop.purchases/T/{depth}/20261129T100000000000Z-0123456789abcdef" for depth in (Depth.DEEP, Depth.SHALLOW)
)


@pytest.mark.parametrize("former", [(DEEP,), (DEEP, SHALLOW), (SHALLOW, DEEP), (DEEP, SHALLOW, SHALLOW)])
@pytest.mark.parametrize("call", ["backup audit shop.purchases", "backup coverage shop.purchases"])
def test_what_airflow_audits_every_hour_is_no_difference(call: str, former: tuple[str, ...]) -> None:
    remembers = [f"{key}.json" for key in former]
    audit = {"remembers": remembers}
    document = {"document": {"audits": [audit if "coverage" in call else {"audit": audit}]}}
    [made] = [value for _, value in leaves(RULES.apply(call, document))]
    assert made == "audit/shop.purchases/T/<depth>/<moment>.json"


@pytest.mark.parametrize("last", [DEEP, SHALLOW])
def test_the_last_audit_that_up_names_may_be_airflows(last: str) -> None:
    document = {"example": {"backup": {"evidence": f"{last}.html"}}}
    [(_, made)] = leaves(RULES.apply("up", {"document": document}))
    assert made == "audit/shop.purchases/T/<depth>/<moment>.html"
