"""The rules of plain English that a program can hold; CONTRIBUTING.md explains them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from support.prose.sentences import Sentence

MOST_WORDS = 25
MOST_OF_A_SUBJECT = 72
OPENINGS = ("Of", "What", "Whether", "Who", "Whose", "Those", "Where")
OPENING = re.compile(rf"[\"'(*\[]*({'|'.join(OPENINGS)})\b", re.IGNORECASE)
PHRASES = (
    r"of which",
    r"of whom",
    r"go(?:es|ne)? on with",
    r"told",
    r"mend(?:s|ed|ing)?",
    r"lest",
    r"what is there",
    r"(?:is|are|be) at it",
)
PHRASE = re.compile(rf"\b(?:{'|'.join(PHRASES)})\b", re.IGNORECASE)
CODE = re.compile(r"`[^`]*`")
TEST_NAME = re.compile(r"test_(and|nor|so|it)_")
SUBJECT = re.compile(r"[a-z][\w ,./-]*: [a-z].*[^.]")


def faults(sentence: Sentence) -> Iterator[str]:
    """Yield each rule that a sentence breaks, in words for who wrote it."""
    text = CODE.sub("CODE", sentence.text)
    if opening := OPENING.match(text):
        yield f"begins with {opening[1]!r}: put the subject first"
    for phrase in PHRASE.finditer(text):
        yield f"has {phrase[0]!r}: use the field's term"
    if (words := len(sentence.words)) > MOST_WORDS:
        yield f"has {words} words of at most {MOST_WORDS}: one idea a sentence"


def old_docstrings(tree: ast.Module) -> Iterator[int]:
    """Yield the line of each part of a program whose docstring does not begin with a verb or a noun phrase."""
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(tree):
        if isinstance(node, documented) and OPENING.match(ast.get_docstring(node) or ""):
            yield getattr(node, "lineno", 1)


def old_test_names(tree: ast.Module) -> Iterator[str]:
    """Yield the name of each test that does not stand by itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and TEST_NAME.match(node.name):
            yield node.name


def faults_of_commit(subject: str, body: str) -> Iterator[str]:
    """Yield each rule that a commit message breaks.

    Args:
        subject: its first line.
        body: all after the blank line.
    """
    if not SUBJECT.fullmatch(subject):
        yield "is not `area: verb ...` without a full stop"
    if len(subject) > MOST_OF_A_SUBJECT:
        yield f"has {len(subject)} characters of at most {MOST_OF_A_SUBJECT}"
    if opening := OPENING.match(subject.partition(": ")[2]):
        yield f"begins with {opening[1]!r}"
    if not body.strip():
        yield "has no body that says why"
