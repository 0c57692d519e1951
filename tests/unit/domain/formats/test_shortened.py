"""Long lists for people."""

from __future__ import annotations

import pytest

from millrace.domain.formats.shortened import shortened, shortened_lines


@pytest.mark.parametrize(
    ("count", "line", "lines"),
    [
        (0, "", []),
        (1, "0", ["0"]),
        (2, "0, 1", ["0", "1"]),
        (3, "0, 1 and 1 more", ["0", "1", "and 1 more"]),
        (1234, "0, 1 and 1,232 more", ["0", "1", "and 1,232 more"]),
    ],
)
def test_a_list_is_cut_and_the_others_are_counted(count: int, line: str, lines: list[str]) -> None:
    assert shortened(range(count), 2) == line
    assert shortened_lines(range(count), 2) == lines
