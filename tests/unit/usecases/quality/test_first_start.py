"""The first start of a stream writes its record of work, and creates its table some seconds later."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.domain.declaration.pipeline import Stream
from millrace.domain.declaration.sinks import PostgresSink
from millrace.domain.quality.books import Fault, Finding
from millrace.domain.quality.holding import Found
from millrace.domain.quality.ranges import Mark, Work
from millrace.domain.topics.offsets import TopicPartition
from millrace.usecases.quality.books import _Look
from millrace.usecases.quality.check import _hold

ZERO, ONE = TopicPartition("t", "id", 0), TopicPartition("t", "id", 1)
BEGAN = (Work(1, ZERO, 5, 5), Work(1, ONE, 0, 0))
WROTE = (Work(1, ZERO, 5, 5), Work(1, ONE, 0, 3), Work(2, ONE, 3, 3))
"""A rewind opened a second timeline, in which nothing is done yet."""
GONE = Finding(Fault.MISSING, None, detail="table a.b is not there")
STREAM = Stream("b", "a", "app", ("t",), PostgresSink("writer", "a.b"), "group")


@pytest.mark.parametrize(("work", "findings"), [(BEGAN, []), (WROTE, [GONE])], ids=["began", "wrote"])
def test_a_missing_table_is_a_fault_of_the_books_once_an_offset_is_done(
    work: tuple[Work, ...], findings: list[Finding]
) -> None:
    books: Any = SimpleNamespace(about_the_table=lambda: (GONE,))  # asked anything else of a missing table, it fails
    look = _Look(books, work, {}, SimpleNamespace(), lambda _: None)  # type: ignore[arg-type]
    look.at([])
    assert look.findings == findings


@pytest.mark.parametrize(
    ("work", "problem"),
    [(BEGAN, ""), (WROTE, "table a.b is missing, and its stream has written to it")],
    ids=["began", "wrote"],
)
def test_a_missing_table_is_a_fault_of_a_check_once_an_offset_is_done(work: tuple[Work, ...], problem: str) -> None:
    nothing = Found({}, 0, 0, {}, {}, "")
    checker = SimpleNamespace(hold=lambda asked: nothing)
    platform: Any = SimpleNamespace(sinks=SimpleNamespace(checker=lambda connection: checker))
    looked: Any = SimpleNamespace(work=work, mark=Mark(), last=None, ranges=(), came=(), freshness={}, usual={})
    quality: Any = SimpleNamespace(connection=None, rules=())
    assert _hold(platform, STREAM, quality, looked, datetime(2026, 11, 29, tzinfo=UTC)) == (None, problem)
