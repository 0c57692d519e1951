"""The sentences of a Markdown page: text outside code blocks, tables, headings and quotations."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from markdown_it import MarkdownIt
from markdown_it.token import Token

QUOTED = re.compile(r'"[^"\n]*"|“[^”]*”')
ABBREVIATION = re.compile(r"\b(e\.g|i\.e|etc|vs|cf|approx)\.$")
END = re.compile(r"(?<=[.!?])[)\"*]*\s+(?=[\"(A-Z0-9`\[])")


@dataclass(frozen=True)
class Sentence:
    """One sentence of a page.

    Args:
        line: the first line of its paragraph, from 1.
        text: its words; a code span is one word in backticks, a quotation is the word QUOTED.
    """

    line: int
    text: str

    @property
    def words(self) -> list[str]:
        """Return the words: parts between white space that have a letter or a digit."""
        return [word for word in self.text.split() if any(map(str.isalnum, word))]


def of_page(text: str) -> Iterator[Sentence]:
    """Yield the sentences of a Markdown page, in order. A list item begins a sentence."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    depth = 0  # of blocks that are not judged
    for before, token in zip([None, *tokens], tokens, strict=False):
        if token.type in {"blockquote_open", "table_open", "heading_open"}:
            depth += 1
        elif token.type in {"blockquote_close", "table_close", "heading_close"}:
            depth -= 1
        elif token.type == "inline" and not depth:
            assert before is not None
            assert before.map is not None
            yield from of_text(_words_of(token), before.map[0] + 1)


def of_text(text: str, line: int = 1) -> Iterator[Sentence]:
    """Yield the sentences of plain text.

    Args:
        text: may have several lines; two of them are one sentence unless a full stop is between.
        line: of the text's beginning.
    """
    begin = ""
    for part in END.split(QUOTED.sub("QUOTED", text)):
        begin = f"{begin} {part}".strip()
        if begin and not ABBREVIATION.search(begin):
            yield Sentence(line, re.sub(r"\s+", " ", begin))
            begin = ""
    if begin:
        yield Sentence(line, re.sub(r"\s+", " ", begin))


def _words_of(inline: Token) -> str:
    """Return the text of a block. A code span becomes one word, so that what it contains is not judged."""
    words = []
    for child in inline.children or ():
        match child.type:
            case "text":
                words.append(child.content)
            case "code_inline":
                words.append("`" + re.sub(r"[^\w/-]+", "_", child.content) + "`")
            case "softbreak":
                words.append(" ")
            case "hardbreak":
                words.append(". ")
    return "".join(words)
