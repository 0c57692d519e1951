"""Guides for contributors name files that are there; owners, Makefile and the editor's settings fit the tree."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.waiting import Deadline

REPOSITORY = Path(__file__).resolve().parents[3]
PACKAGE = REPOSITORY / "include" / "millrace"
GUIDES = sorted((REPOSITORY / "docs" / "contributing").glob("*.md"))
FEWEST_FILES = 3
_LIST = re.compile(r"^```files\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_STEP = re.compile(r"^(\d+)\. `([^`\n]+)`", re.MULTILINE)
_STEPS = re.compile(r"\bsteps? (\d+(?:(?:,| and| or| to|, and) \d+)*)")
_PATH = re.compile(r"[\w./-]+\.(?:css|j2|js|json|md|py|sql|toml|txt|yaml)")
TARGETS = {
    "help": "",
    "up": "./millrace up",
    "down": "./millrace down",
    "test": "./millrace test",
    "fast": "./millrace test --fast",
}


def problems(guide: str, root: Path) -> list[str]:
    """Say what is wrong with a guide: its list of files against its own text, and against the tree below `root`."""
    lists = _LIST.findall(guide)
    if len(lists) != 1:
        return [f"it has {len(lists)} lists of files, not one"]
    listed = lists[0].splitlines()
    spans = re.findall(r"`([^`\n]+)`", _LIST.sub("", guide))
    named = list(dict.fromkeys(span for span in spans if _PATH.fullmatch(span)))
    found = [f"{path} is not there" for path in {*listed, *named} if not (root / path).is_file()]
    found += [f"{path} is listed and not named" for path in listed if path not in named]
    found += [f"{path} is named and not listed" for path in named if path not in listed]
    if len(listed) < FEWEST_FILES:
        found.append(f"{len(listed)} files are listed, fewer than {FEWEST_FILES}")
    if _STEP.findall(guide) != [(str(number), path) for number, path in enumerate(listed, 1)]:
        found.append("the numbered steps are not the files of the list, in its order")
    if (count := f"Today the change touches {len(listed)} files") not in guide:
        found.append(f"the text does not say `{count}`")
    steps = {int(number) for some in _STEPS.findall(guide) for number in re.findall(r"\d+", some)}
    found += [f"there is no step {step}" for step in steps if not 0 < step <= len(listed)]
    return sorted(found)


def owners() -> dict[str, Sequence[str]]:
    """The owners of each pattern."""
    lines = (REPOSITORY / ".github" / "CODEOWNERS").read_text(encoding="utf-8").splitlines()
    return {pattern: names for pattern, *names in (line.split() for line in lines if line and line[0] != "#")}


def folders(parent: Path) -> set[str]:
    return {path.name for path in parent.iterdir() if path.is_dir() and path.name != "__pycache__"}


def test_there_is_a_guide_for_each_thing_that_people_add() -> None:
    added = ("a-command", "a-field", "a-form", "a-page", "a-plan-kind", "a-rule", "a-sink", "an-alarm")
    assert [guide.name for guide in GUIDES] == [f"add-{thing}.md" for thing in added]


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_a_guide_lists_the_files_that_it_names_and_all_are_there(guide: Path) -> None:
    assert problems(guide.read_text(encoding="utf-8"), REPOSITORY) == []


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_contributing_leads_to_a_guide(guide: Path) -> None:
    assert f"(docs/contributing/{guide.name})" in (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("steps", "more", "listed", "problem"),
    [
        ("a.py b/c.py d.md", "touches 3 files", "a.py b/c.py d.md", ""),
        ("a.py b/c.py", "touches 3 files", "a.py b/c.py d.md", "d.md is listed and not named"),
        ("a.py b/c.py d.md", "touches 3 files, not `e.md`", "a.py b/c.py d.md", "e.md is named and not listed"),
        ("a.py b/c.py x.md", "touches 3 files", "a.py b/c.py x.md", "x.md is not there"),
        ("a.py b/c.py d.md", "touches 3 files like `b/x.md`", "a.py b/c.py d.md", "b/x.md is not there"),
        ("a.py b/c.py", "touches 2 files", "a.py b/c.py", "2 files are listed, fewer than 3"),
        ("b/c.py a.py d.md", "touches 3 files", "a.py b/c.py d.md", "in its order"),
        ("a.py b/c.py", "touches 3 files, also `d.md`", "a.py b/c.py d.md", "the numbered steps are not"),
        ("a.py b/c.py d.md", "touches 2 files", "a.py b/c.py d.md", "does not say `Today the change touches 3 files`"),
        ("a.py b/c.py d.md", "touches 3 files", "", "0 lists of files"),
        ("a.py b/c.py d.md", "touches 3 files; steps 1, 2 and 3, not step 2", "a.py b/c.py d.md", ""),
        ("a.py b/c.py d.md", "touches 3 files; steps 1 and 2 to 4", "a.py b/c.py d.md", "there is no step 4"),
        ("a.py b/c.py d.md", "touches 3 files, neither step 2 nor step 0", "a.py b/c.py d.md", "there is no step 0"),
    ],
)
def test_a_wrong_guide_is_told(tmp_path: Path, steps: str, more: str, listed: str, problem: str) -> None:
    (tmp_path / "b").mkdir()
    for name in ("a.py", "b/c.py", "d.md", "e.md"):
        (tmp_path / name).touch()
    lines = [f"{number}. `{path}` does something." for number, path in enumerate(steps.split(), 1)]
    block = ["```files", *listed.split(), "```"] if listed else []

    found = "\n".join(problems("\n".join(["# Add a thing", f"Today the change {more}", *lines, *block, ""]), tmp_path))

    assert problem in found
    assert bool(problem) == bool(found)


def test_every_noun_has_an_owner() -> None:
    nouns = folders(PACKAGE / "domain") | folders(PACKAGE / "usecases")
    assert len(nouns) > 10
    assert {noun for noun in nouns if f"**/{noun}/" not in owners()} == set()


def test_every_layer_has_an_owner() -> None:
    layers = folders(PACKAGE)
    assert {"domain", "adapters", "usecases"} < layers
    assert {layer for layer in layers if f"/include/millrace/{layer}/" not in owners()} == set()


def test_a_noun_is_owned_by_one_team_in_every_layer() -> None:
    order = list(owners())
    nouns = [index for index, pattern in enumerate(order) if pattern.startswith("**/")]
    assert nouns == list(range(min(nouns), len(order)))  # the last line that matches decides


def test_owners_are_teams_and_each_line_owns_a_folder() -> None:
    there = {path for path in PACKAGE.rglob("*") if path.is_dir()}
    for pattern, names in owners().items():
        assert names, pattern
        assert all(re.fullmatch(r"@millrace/[a-z]+", name) for name in names), pattern
        if pattern.startswith("**/"):
            assert any(path.name == pattern.strip("*/") for path in there), pattern
        elif pattern != "*":
            assert (REPOSITORY / pattern.strip("/")).is_dir(), pattern


def test_make_has_five_targets_that_call_the_launcher() -> None:
    text = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^([a-z]+): ## (.+)\n\t(.+)$", text, re.MULTILINE)

    assert {name: recipe for name, _, recipe in targets if name != "help"} | {"help": ""} == TARGETS
    assert re.findall(r"^(\S+):", text, re.MULTILINE) == [".PHONY", *TARGETS]
    assert re.search(r"^\.PHONY: (.+)$", text, re.MULTILINE)[1].split() == list(TARGETS)  # type: ignore[index]
    assert ".DEFAULT_GOAL := help\n" in text
    if shutil.which("make") is not None:  # it need not be on a machine; then the text alone is judged
        printed = subprocess.run(
            ["make", "--no-print-directory"],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=True,
            timeout=Deadline.COMMAND.seconds,
        ).stdout
        assert [line.split("\t") for line in printed.splitlines()] == [[name, line] for name, line, _ in targets]


def test_the_editor_breaks_lines_where_the_formatter_does() -> None:
    settings = (REPOSITORY / ".editorconfig").read_text(encoding="utf-8")
    formatter = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    [length] = re.findall(r"^line-length = (\d+)$", formatter, re.MULTILINE)
    assert re.findall(r"^max_line_length = (\d+)$", settings, re.MULTILINE) == [length]
