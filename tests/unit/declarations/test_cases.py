"""Break every rule of the loader once: which finding stands where, and that following it mends the file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from millrace import declarations
from millrace.declarations.findings import Finding
from support.declarations import RETURNS, SHOP, valid_project
from support.waiting import Deadline, in_time

CASES = Path(__file__).with_name("cases.yaml")
ENVIRONMENT = "production"


@dataclass(frozen=True)
class Expected:
    """A finding by its place and by the decisive parts of its text."""

    at: str
    says: str
    next: str = ""

    def matches(self, found: Finding) -> bool:
        at = f"{found.file}:{found.line}: {found.field}"
        return at == self.at and self.says in found.what and self.next in found.next_step


@dataclass(frozen=True)
class Case:
    name: str
    file: str
    by: str
    expected: Sequence[Expected]
    replace: str | None = None
    mended: str | None = None


def _cases() -> list[Case]:
    cases = YAML(typ="safe", pure=True).load(CASES.read_text(encoding="utf-8"))
    return [Case(**{**case, "expected": [Expected(**each) for each in case["expected"]]}) for case in cases]


ALL = _cases()
MENDED = [case for case in ALL if case.mended is not None and case.replace is not None]


def _write(root: Path, case: Case, text: str) -> None:
    path = root / case.file
    if case.replace is None:
        path.write_text(text, encoding="utf-8")
        return
    original = path.read_text(encoding="utf-8")
    assert original.count(case.replace) == 1, case.name
    path.write_text(original.replace(case.replace, text), encoding="utf-8")


def test_the_unbroken_project_is_valid(tmp_path: Path) -> None:
    root = valid_project(tmp_path)

    assert declarations.check(root, ENVIRONMENT) == ()
    assert declarations.check(root, "embedded") == ()


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_a_broken_rule_is_found_at_its_place(tmp_path: Path, case: Case) -> None:
    root = valid_project(tmp_path)
    _write(root, case, case.by)

    found = declarations.check(root, ENVIRONMENT)

    told = "\n".join(map(str, found))
    assert len(found) == len(case.expected), told
    assert [one for one, finding in zip(case.expected, found, strict=True) if not one.matches(finding)] == [], told


@pytest.mark.parametrize("case", MENDED, ids=lambda case: case.name)
def test_following_the_named_fix_makes_the_project_valid(tmp_path: Path, case: Case) -> None:
    root = valid_project(tmp_path)
    _write(root, case, case.mended or "")

    assert case.expected, "the broken text must have a finding; the test above holds it against this"
    assert declarations.check(root, ENVIRONMENT) == ()


def test_every_expected_finding_has_a_decisive_text() -> None:
    assert [case.name for case in ALL if not all(one.says for one in case.expected)] == []


def _is_named(case: Case) -> bool:
    """Return whether a next step names what the mended text has and the broken text has not."""
    mended, by = case.mended or "", case.by
    steps = {one.next for one in case.expected if one.next}
    return any(step in mended and step not in by for step in steps) or ("remove" in steps and len(mended) < len(by))


def test_most_findings_name_the_fix_in_their_next_step() -> None:
    named = [case.name for case in MENDED if _is_named(case)]

    assert len(named) >= 60, named


def test_two_broken_files_are_both_reported_in_order(tmp_path: Path) -> None:
    root = valid_project(tmp_path)
    (root / SHOP).write_text("pipeline: shop\n", encoding="utf-8")
    (root / RETURNS).write_text("pipeline: returns\nowner: 3\nkafkas: x\n", encoding="utf-8")

    found = declarations.check(root, "embedded")

    assert [(each.file, each.line, each.field) for each in found] == [
        (RETURNS, 2, "owner"),
        (RETURNS, 3, "kafkas"),
        (SHOP, 1, "owner"),
    ]


@pytest.mark.parametrize(
    ("content", "line", "what"),
    [
        pytest.param(b"\xff\xfep\x00", 1, "byte 1 is not UTF-8", id="UTF-16"),
        pytest.param(b"pipeline: shop\nowner: caf\xe9\n", 2, "byte 26 is not UTF-8", id="Latin-1"),
        pytest.param(b"#" * (1024 * 1024 + 1), 1, "larger than 1048576 bytes", id="too large"),
        pytest.param(b"a: [" + b"1," * 20_000 + b"]", 1, "more than 20000 values", id="too many values"),
        pytest.param(b"a: " + b"[" * 500_000, 1, "nested more than 16 deep", id="deep"),
        pytest.param(
            b"a: &a [x,x]\nb: &b [*a,*a]\nc: &c [*b,*b]\nd: [*c,*c]\n", 1, "`&a` is an anchor", id="billion laughs"
        ),
    ],
)
def test_says_which_bytes_are_no_declaration(tmp_path: Path, content: bytes, line: int, what: str) -> None:
    root = valid_project(tmp_path)
    (root / SHOP).write_bytes(content)

    with pytest.raises(declarations.InvalidDeclarationError) as caught:
        declarations.load_pipeline(root, "shop")

    first = caught.value.findings[0]
    assert (first.file, first.line) == (SHOP, line)
    assert what in first.what


def test_a_byte_order_mark_and_windows_line_ends_are_fine(tmp_path: Path) -> None:
    root = valid_project(tmp_path)
    text = (root / SHOP).read_text(encoding="utf-8")
    (root / SHOP).write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())

    assert declarations.check(root, ENVIRONMENT) == ()


def test_a_folder_in_place_of_a_file_is_a_finding(tmp_path: Path) -> None:
    root = valid_project(tmp_path)
    (root / "include/pipelines/odd.yaml").mkdir()

    assert [str(each) for each in declarations.check(root, ENVIRONMENT)] == [
        "include/pipelines/odd.yaml:1: (file): the file cannot be read: is a directory\n  next: make it a readable file"
    ]


def test_a_pipe_in_place_of_a_file_is_a_finding_and_not_waited_for(tmp_path: Path) -> None:
    root = valid_project(tmp_path)
    os.mkfifo(root / "include/pipelines/odd.yaml")

    (found,) = in_time(
        lambda: declarations.check(root, ENVIRONMENT), within=Deadline.THREAD, what="the check beside a pipe"
    )

    assert found.what == "the file cannot be read: not a regular file"


def test_a_file_that_is_not_read_because_of_its_name_is_a_finding(tmp_path: Path) -> None:
    root = valid_project(tmp_path)
    (root / "include/pipelines/other.yml").touch()

    (found,) = declarations.check(root, ENVIRONMENT)

    assert found.next_step == "rename it to other.yaml"


def test_a_file_name_that_is_no_pipeline_name_is_a_finding(tmp_path: Path) -> None:
    root = valid_project(tmp_path)
    (root / RETURNS).rename(root / "include/pipelines/Returns-2.yaml")

    (found,) = declarations.check(root, ENVIRONMENT)

    assert found.what == "the file's name `Returns-2` is not a pipeline's name"
