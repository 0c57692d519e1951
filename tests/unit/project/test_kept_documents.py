"""Every command with `--json` has a kept document, or a reason why it has none; a kept document says what it can."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from support.commands import commands
from support.documents import kept
from support.documents.calls import CALLS, IN_A_NEW_PROJECT, WITHOUT_DOCUMENT
from support.documents.fields import DISTINCT, MASKS, ONLY
from support.documents.kept import hold
from support.documents.masks import Distinct, Mask, Only, Shape, leaves
from support.documents.running import Caller, words_of
from support.prose.steps import Commands, missing, steps_of
from support.stack.embedded import make_project

REPOSITORY = Path(__file__).resolve().parents[3]
WITH_JSON = [name for name, options in commands() if "--json" in options]
PLACEHOLDER = re.compile(r"<[a-z0-9 ]+>")
LEAST_COMPARED = 0.5
"""The part of a document's values that are not masked as a whole."""
OF_A_MACHINE = re.compile(
    r"/tmp/|/root|/home/|/Users/|127\.0\.0\.1:\d|localhost:\d|cli:|\b20[2-9]\d-\d\d-\d\d"
    r"|\b(?=\d*[a-f])(?:[0-9a-f]{12}|[0-9a-f]{32}|[0-9a-f]{64})\b"
)
"""What no kept document may have: paths, ports, users, the present, random numbers."""


def command_of(call: str) -> str:
    return max((name for name in WITH_JSON if f"{call} ".startswith(f"{name} ")), key=len)


@pytest.mark.parametrize("command", WITH_JSON)
def test_every_command_with_json_has_a_kept_document_or_a_reason(command: str) -> None:
    entries = [entry for call, entry in kept.read().items() if command_of(call) == command]
    if command in WITHOUT_DOCUMENT:
        assert not [entry for entry in entries if "document" in entry], "it has a document: take it off the list"
    else:
        assert [entry for entry in entries if "document" in entry], (
            f"call it in {kept.FOLDER.parent}/test_example_by_sql.py by tests/support/documents/calls.py, and keep its "
            f"document with {kept.UPDATE}=1; or say there why it has none"
        )


def test_a_command_without_document_is_one_with_json_and_its_reason_names_a_test() -> None:
    assert set(WITHOUT_DOCUMENT) <= set(WITH_JSON)
    for reason in WITHOUT_DOCUMENT.values():
        [path] = re.findall(r"tests/[\w/]+\.py", reason)
        assert "json" in (REPOSITORY / path).read_text(encoding="utf-8")


def test_each_call_is_kept_in_the_file_of_its_noun() -> None:
    assert set(kept.read()) == set(CALLS)
    for path in kept.FOLDER.iterdir():
        assert {kept.file_of(call) for call in json.loads(path.read_text(encoding="utf-8"))} == {path.name}


@pytest.mark.parametrize("call", CALLS)
def test_most_values_of_a_document_are_compared(call: str) -> None:
    values = [str(value) for _, value in leaves(kept.read()[call])]
    compared = [value for value in values if not PLACEHOLDER.fullmatch(value)]
    assert len(compared) >= LEAST_COMPARED * len(values)


@pytest.mark.parametrize("mask", MASKS, ids=lambda mask: f"{mask.place.calls}: {mask.place.path} {mask.shape.name}")
def test_each_mask_has_a_reason_and_masks_something(mask: Mask) -> None:
    assert mask.reason
    assert [
        path
        for call, entry in kept.read().items()
        for path, value in leaves(entry)
        if mask.place.has(call, path) and mask.shape.placeholder in str(value)
    ]


@pytest.mark.parametrize("rule", [*ONLY, *DISTINCT], ids=lambda rule: f"{rule.place.calls}: {rule.place.path}")
def test_each_rule_for_a_list_is_for_one_that_is_there(rule: Only | Distinct) -> None:
    paths = [(call, path) for call, entry in kept.read().items() for path, _ in leaves(entry)]
    assert any(rule.place.has(call, path[:end]) for call, path in paths for end in range(len(path) + 1))


def test_a_time_is_masked_and_nothing_else_in_all_calls() -> None:
    assert {mask.shape for mask in MASKS if mask.place.calls == "*"} == {Shape.TIME}
    assert all(rule.reason and rule.place.calls != "*" for rule in (*ONLY, *DISTINCT))


@pytest.mark.parametrize("path", sorted(kept.FOLDER.glob("*.json")), ids=lambda path: path.name)
def test_a_kept_document_says_nothing_of_the_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert OF_A_MACHINE.findall(text) == []
    assert {value for keys, value in leaves(json.loads(text)) if keys[-1] == "host"} <= {None, "127.0.0.1"}


def test_what_works_without_servers_is_as_it_was_reviewed(tmp_path: Path) -> None:
    root = make_project(tmp_path)
    caller = Caller(root, words_of(root))
    made = {name: caller.call(name) for name in IN_A_NEW_PROJECT}
    hold(made)


@pytest.mark.parametrize("page", ["README.md", "docs/guide/example.md"])
def test_a_page_shows_lines_that_up_prints(page: str) -> None:
    """The sizes and addresses of a page are those of some run."""
    printed = "\n".join([*ABOVE_THE_REPORT, *kept.read()["up"]["text"]]).replace("<size>", "2.0")
    shown = [step.output for step in steps_of((REPOSITORY / page).read_text("utf-8")) if isinstance(step, Commands)]
    assert shown, page
    outputs = [re.sub(r" (running|success)$", " <state>", output, flags=re.MULTILINE) for output in shown if output]
    assert [line for output in outputs for line in missing(output, printed)] == []


ABOVE_THE_REPORT = (
    "Airflow:  http://127.0.0.1:26691  user admin, password in .millrace/airflow/passwords.json",
    "Streams:  http://127.0.0.1:26691/plugin/millrace",
)
"""Lines of `up` that the kept report does not have."""
