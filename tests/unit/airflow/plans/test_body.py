"""A plan as Markdown: nothing that a person wrote can become anything but code."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from millrace.airflow.plans.body import MOST_ROWS, body_of, code, code_block
from millrace.domain.plans.plan import Change, Plan, PlanKind, facts

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
NASTY = ["a `b` c", "``` \n# Heading", "**bold** | [a](http://x)", "<img src=x onerror=alert(1)>", "\\`", "`", "~~~\n"]


def plan(reason: str = "wrong numbers", changes: int = 2) -> Plan:
    moves = tuple(
        Change("rewind.move", f"shop.purchases/{n}", facts({"offset": 9}), facts({"offset": 4})) for n in range(changes)
    )
    about = facts({"records": 10, "not_repaired": "shop.other | shop_more"})
    day = timedelta(hours=24)
    return Plan(PlanKind.REWIND, "shop.purchases", "c", "k", moves, (), NOW, NOW + day, "airflow:anna", reason, about)


def kinds(markdown: str) -> set[str]:
    """The kinds of everything that a page makes of a text."""
    tokens = MarkdownIt().enable("table").parse(markdown)
    return {token.type for outer in tokens for token in (outer, *(outer.children or ()))}


@pytest.mark.parametrize("reason", NASTY)
def test_the_reason_stands_as_it_was_written_in_a_block_of_code(reason: str) -> None:
    (fence,) = [token for token in MarkdownIt().parse(code_block(reason)) if token.level == 0]
    assert (fence.type, fence.content.rstrip("\n")) == ("fence", reason.rstrip("\n"))
    assert kinds(body_of(plan(reason))) == kinds(body_of(plan()))


@given(st.text(alphabet="`|\\*_<>[]()#~ ab\n", max_size=20))
def test_a_value_is_one_piece_of_code_in_one_cell_whatever_it_holds(text: str) -> None:
    head = "| a | b |\n| --- | --- |\n"
    tokens = MarkdownIt().enable("table").parse(f"{head}| {code(text)} | end |")
    cells = [token for token in tokens if token.type == "inline"][2:]
    assert len(cells) == 2
    assert cells[1].content == "end"
    assert {child.type for child in cells[0].children or ()} <= {"code_inline"}
    assert "".join((cells[0].children or [])[n].content for n in range(len(cells[0].children or []))).split() == (
        text.split()
    )


def test_many_changes_are_cut_and_counted() -> None:
    body = body_of(plan(changes=MOST_ROWS + 1200))
    assert body.count("shop.purchases/") == MOST_ROWS
    assert "and 1,200 more" in body
