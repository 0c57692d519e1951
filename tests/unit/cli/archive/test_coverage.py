"""What `backup coverage` prints: the worst is shown, and what is left out is counted."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from millrace.cli.archive.coverage_text import print_coverage
from millrace.domain.archive.audits.findings import Audit, Breach, BreachKind
from millrace.domain.archive.proof.partition import Label, Tile
from support.archive.audits.made import lost, of, of_every_label, part


class File(StringIO):
    """A file of some encoding."""

    name_of_encoding = "utf-8"

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self.name_of_encoding


def printed(audit: Audit, encoding: str = "utf-8", width: int = 160) -> str:
    file = File()
    file.name_of_encoding = encoding
    print_coverage(Console(file=file, width=width), [audit])
    return file.getvalue()


@pytest.mark.parametrize(("encoding", "glyphs"), [("utf-8", "█░▒▓x?!"), ("ascii", "=-.~x?!")])
def test_every_label_has_a_glyph_of_its_own_that_the_legend_names(encoding: str, glyphs: str) -> None:
    text = printed(of_every_label(), encoding)
    *lines, legend = text.splitlines()
    bars = "".join(lines)
    for glyph in glyphs:
        assert glyph in bars
        assert f"{glyph} " in legend
    assert encoding == "utf-8" or text.isascii()


def test_one_lost_partition_of_many_that_wait_has_a_line() -> None:
    waiting = [part(number, Tile(number, 8, 9, Label.PENDING)) for number in range(70)]
    text = printed(of(*waiting, part(70, lost(1, 2, 70), unacknowledged=[lost(1, 2, 70)])))
    assert "\n      70 " in text
    assert "and 21 more partitions, 21 of them not all archived" in text


def test_lines_that_are_left_out_are_counted() -> None:
    breaches = tuple(Breach.of_tile(lost(number, number + 1)) for number in range(60))
    text = printed(of(part(), breaches=breaches, counts=((BreachKind.LOST, 60),)))
    assert text.count("is lost") == 20
    assert "and 40 more lines" in text


def test_what_is_not_named_is_not_counted_as_if_it_were_all() -> None:
    text = printed(of(part(0, lost(1, 4), unacknowledged=[lost(1, 4)], more_tiles=5)))
    assert "at least 3 lost, 5 more ranges not named" in text


def test_ranges_that_wait_are_named_and_the_share_is_rounded_down() -> None:
    text = printed(of(part(0, Tile(0, 9999, 10_000, Label.PENDING), archived_to=9999)))
    assert "partition 0 [9999, 10000) waits" in text
    assert "to 99.9%" in text
    assert "to 100%" not in text
