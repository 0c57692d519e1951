"""Each error has a code, and the reference explains each code and lists its messages."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from millrace.errors import Code, PartFailedError, StalePlanError, UsageError
from support.declarations import CHECKOUT
from support.prose.check import check_messages
from support.prose.messages import Message, messages, sections, with_messages

INDEX = CHECKOUT / "docs" / "reference" / "errors.md"
PAGES = sorted((CHECKOUT / "docs" / "reference" / "errors").glob("*.md"))
UPDATE = os.environ.get("MILLRACE_UPDATE_SNAPSHOTS")


def test_each_code_is_explained_once_with_cause_and_repair() -> None:
    explained = [(code, text) for page in PAGES for code, text in sections(page.read_text(encoding="utf-8")).items()]
    assert sorted(code for code, _ in explained) == sorted(Code)
    assert [code for code, text in explained if not re.search(r"\*\*Cause\.\*\*.+\*\*Repair\.\*\*", text, re.S)] == []


def test_the_index_names_each_code_beside_its_page() -> None:
    rows = dict(re.findall(r"^\| \[[^]]+\]\(errors/(\w+\.md)\) \| (.+) \|$", INDEX.read_text("utf-8"), re.MULTILINE))
    assert {page: re.findall(r"`([a-z-]+)`", codes) for page, codes in rows.items()} == {
        page.name: list(sections(page.read_text(encoding="utf-8"))) for page in PAGES
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_lists_the_messages_of_its_codes(page: Path) -> None:
    """With MILLRACE_UPDATE_SNAPSHOTS=1 the lists are written again; the other text stays."""
    text = page.read_text(encoding="utf-8")
    expected = with_messages(text, messages())
    if UPDATE:
        page.write_text(expected, encoding="utf-8")
    else:
        assert text == expected


def test_each_code_has_a_message() -> None:
    """A code that no error uses would be explained for nothing."""
    assert sorted(set(Code) - {message.code for message in messages()} - USED_WITHOUT_A_TEXT_OF_THEIR_OWN) == []


USED_WITHOUT_A_TEXT_OF_THEIR_OWN = {Code.SINK_EXHAUSTED}
"""Codes whose messages are those of a server."""


def test_messages_and_next_steps_are_in_plain_english() -> None:
    assert check_messages() == []


def test_an_error_shows_its_code_behind_its_first_sentence() -> None:
    error = UsageError("unknown stream", where="a.b", next_step="see `streams list`", code=Code.UNKNOWN_NAME)
    assert error.lines == ("a.b: unknown stream [unknown-name]", "  next: see `streams list`")
    assert StalePlanError("it expired").lines == ("it expired [stale-plan]",)
    assert str(PartFailedError("it ended:\nline one\nline two")) == "it ended [part-failed]:\nline one\nline two"
    assert UsageError("foreign\nname").lines == ("foreign\nname [wrong-usage]",)


def test_lists_of_messages_are_written_again_and_prose_stays() -> None:
    page = "# Title\n\nText.\n\n## `refused`\n**Cause.** One.\n\nMessages:\n- `old`\n\n## `fenced`\n**Cause.** Two.\n"
    known = frozenset({Message(Code.REFUSED, "b … 'c'"), Message(Code.REFUSED, "a"), Message(Code.FAILED, "d")})
    written = with_messages(page, known)
    assert written == (
        "# Title\n\nText.\n\n## `refused`\n**Cause.** One.\n\nMessages:\n- `a`\n- `b … 'c'`\n\n"
        "## `fenced`\n**Cause.** Two.\n"
    )
    assert with_messages(written, known) == written
