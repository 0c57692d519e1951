"""The steps of a page that a reader does: commands, files to write, and the output that the page shows.

A block of `sh` has commands, a block with a `title` has a whole file, and a block of `text` after commands has their
output. A line of `...` there stands for any lines, `...` within a line for any words.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from markdown_it import MarkdownIt

PLAN = re.compile(r"\b[a-z]+-[0-9a-f]{12}\b")
VARYING = (
    (PLAN, "PLAN"),
    (re.compile(r"127\.0\.0\.1:\d+"), "ADDRESS"),
    (re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d)?"), "TIME"),
)
BORDERS = re.compile(r"[\s│┃|┏━┳┓┡╇┩└─┴┘]+")


@dataclass(frozen=True)
class File:
    """A file that the reader writes.

    Args:
        path: below the checkout.
        text: its whole content.
    """

    path: str
    text: str


@dataclass(frozen=True)
class Commands:
    """Commands that the reader types, with the output that the page shows of the last one; None where it shows none."""

    lines: tuple[str, ...]
    output: str | None = None


def steps_of(page: str) -> tuple[File | Commands, ...]:
    """Return the steps of a Markdown page, in order."""
    steps: list[File | Commands] = []
    for token in MarkdownIt("commonmark").parse(page):
        if token.type != "fence":
            continue
        if token.info == "sh":
            steps.append(Commands(tuple(line for line in token.content.splitlines() if line)))
        elif title := re.search(r'title="([^"]+)"', token.info):
            steps.append(File(title[1], token.content))
        elif token.info == "text":
            assert steps, f"line {token.map}: an output without commands"
            assert isinstance(steps[-1], Commands), f"line {token.map}: an output without commands"
            steps[-1] = Commands(steps[-1].lines, token.content)
    return tuple(steps)


def missing(output: str, printed: str) -> list[str]:
    """Return the first line of a page's output that was not printed after the lines before it; empty if all were.

    Args:
        output: as the page shows it.
        printed: by the command. Times, ids of plans, borders of tables and white space are not compared.
    """
    lines = [_plain(line) for line in printed.splitlines()]
    shown = [_plain(line) for line in output.splitlines()]
    at, any_before = 0, False
    for line in filter(None, shown):
        if line == "...":
            any_before = True
            continue
        pattern = re.compile(".*".join(re.escape(part.strip()) for part in line.split("...")))
        left = [number for number in range(at, len(lines)) if lines[number]]
        here = next((number for number in left if pattern.fullmatch(lines[number])), None)
        if here is None or (not any_before and here != left[0]):
            return [line]
        at, any_before = here + 1, False
    return []


def last_plan(printed: Sequence[str]) -> str:
    """Return the id of the plan that was printed last."""
    found = PLAN.findall("\n".join(printed))
    assert found, "the page says ID, and nothing printed the id of a plan"
    return str(found[-1])


def _plain(line: str) -> str:
    for pattern, word in VARYING:
        line = pattern.sub(word, line)
    return BORDERS.sub(" ", line).strip()
