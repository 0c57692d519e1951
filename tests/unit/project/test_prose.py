"""Pages, and the messages of commits, follow the rules of plain English that a program can hold."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from support.declarations import CHECKOUT
from support.prose.rules import faults, faults_of_commit, old_docstrings, old_test_names
from support.prose.sentences import of_page, of_text

NOT_JUDGED = {"CHANGELOG.md"}
PAGES = sorted(
    page.relative_to(CHECKOUT).as_posix()
    for page in (*CHECKOUT.glob("*.md"), *(CHECKOUT / "docs").rglob("*.md"))
    if "adr" not in page.parts and page.name not in NOT_JUDGED
)
CASES = yaml.safe_load(Path(__file__).with_name("prose_cases.yaml").read_text(encoding="utf-8"))
MOST_LINES = 200
OLD_DOCSTRINGS, OLD_TEST_NAMES = 1_038, 37
"""Docstrings and names of tests that are older than the rules."""
MOST_WORDS_OF_README = 700
FIRST = "78d3bea5911f80c5012069c9ac2f45c74a142d17"
"""The last commit that nobody judged."""


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_in_plain_english(page: str) -> None:
    text = (CHECKOUT / page).read_text(encoding="utf-8")
    assert [f"{page}:{each.line}: {fault}: {each.text}" for each in of_page(text) for fault in faults(each)] == []


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_short_and_plain_markdown(page: str) -> None:
    text = (CHECKOUT / page).read_text(encoding="utf-8")
    written = [line for line in text.splitlines() if not ("reference/errors" in page and line.startswith("- `"))]
    assert len(written) < MOST_LINES  # the lists of messages are not read from the first to the last
    assert re.findall(r"</?[a-z]+[^>`\n]*>", re.sub(r"^ *```.*?^ *```|`[^`\n]+`", "", text, flags=re.M | re.S)) == []


def test_the_readme_is_read_in_three_minutes() -> None:
    assert len((CHECKOUT / "README.md").read_text(encoding="utf-8").split()) <= MOST_WORDS_OF_README


@pytest.mark.parametrize("sentence", [case["sentence"] for case in CASES["sentences"]])
def test_a_sentence_of_former_pages_fails(sentence: str) -> None:
    assert [fault for each in of_page(sentence) for fault in faults(each)]


def test_old_docstrings_and_names_of_tests_become_fewer() -> None:
    """Whoever rewrites some lowers the number."""
    programs = [
        path
        for name in ("include", "spark_apps", "sources", "dags", "tests")
        for path in (CHECKOUT / name).rglob("*.py")
    ]
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in programs}
    assert sum(1 for tree in trees.values() for _ in old_docstrings(tree)) <= OLD_DOCSTRINGS
    assert sum(1 for tree in trees.values() for _ in old_test_names(tree)) <= OLD_TEST_NAMES


def test_old_docstrings_and_names_of_tests_are_found() -> None:
    program = '''
"""Whether this is old."""
class A:
    """A noun phrase."""
    def test_it_is_old(self):
        """What it returns."""
    def test_item(self):
        """Return the whole."""
'''
    assert list(old_docstrings(ast.parse(program))) == [1, 5]
    assert list(old_test_names(ast.parse(program))) == ["test_it_is_old"]


def test_sentences_are_told_apart() -> None:
    page = """\
# What a heading says is not judged

First sentence, of 1.5 s, e.g. this. Second one with `code. Still code` and [a link. Third](one.md).

- an item
- another
  with a line more

| what | a table |
|---|---|
| Of this | nothing |

> Whose quotation.

```
What a block of code says
```
He said "Told. Of which." and left:

1. Press **Run**. Wait!
"""
    assert [sentence.text for sentence in of_page(page)] == [
        "First sentence, of 1.5 s, e.g. this.",
        "Second one with `code_Still_code` and a link.",
        "Third.",
        "an item",
        "another with a line more",
        "He said QUOTED and left:",
        "Press Run.",
        "Wait!",
    ]
    assert [sentence.line for sentence in of_page(page)][-1] == 20


def test_a_rule_names_each_fault_of_a_sentence() -> None:
    [sentence] = of_text("What was told is mended, of which " + "much " * 22)
    assert [fault.split(":")[0] for fault in faults(sentence)] == [
        "begins with 'What'",
        "has 'told'",
        "has 'mended'",
        "has 'of which'",
        "has 29 words of at most 25",
    ]
    [plain] = of_text("Whatever `What mended` says, the wholesaler untold the word of 25.")
    assert list(faults(plain)) == []


@pytest.mark.parametrize(
    ("subject", "body", "fault"),
    [
        ("Rewrite the pages", "Because.", "is not `area: verb"),
        ("docs: Rewrite the pages", "Because.", "is not `area: verb"),
        ("docs: rewrite the pages.", "Because.", "is not `area: verb"),
        (f"docs: rewrite {'x' * 60}", "Because.", "has 74 characters"),
        ("docs: what a page says is plain", "Because.", "begins with 'what'"),
        ("docs: rewrite the pages", "\n", "has no body"),
    ],
)
def test_a_message_of_a_commit_that_breaks_a_rule_is_named(subject: str, body: str, fault: str) -> None:
    [found] = faults_of_commit(subject, body)
    assert found.startswith(fault)


def test_messages_of_commits_are_plain() -> None:
    """Judge the commits of this checkout's history, from the first one that was held to the rules."""
    if not _has_history():
        pytest.skip("this checkout has no history of git back to the first judged commit")
    log = _git("log", "--no-merges", "--format=%h%x1f%s%x1f%b%x1e", f"{FIRST}..HEAD")
    messages = [message.strip().split("\x1f") for message in log.split("\x1e") if message.strip()]
    assert [(name, fault) for name, subject, body in messages for fault in faults_of_commit(subject, body)] == []


def _has_history() -> bool:
    return (
        subprocess.run(["git", "merge-base", "--is-ancestor", FIRST, "HEAD"], cwd=CHECKOUT, timeout=60).returncode == 0
    )


def _git(*arguments: str) -> str:
    ran = subprocess.run(["git", *arguments], cwd=CHECKOUT, capture_output=True, text=True, check=True, timeout=60)
    return ran.stdout
