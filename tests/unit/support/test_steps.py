"""Steps of a page: which a reader does, and when the output of one is as the page shows it."""

from __future__ import annotations

import pytest

from support.prose.steps import Commands, File, last_plan, missing, steps_of

PAGE = """\
Do this:
```sh
first one

second
```
```text
shown
```
Then this:
```python title="apps/a.py"
x = 1
```
```yaml
not: a step
```
```sh
third
```
"""


def test_steps_are_commands_with_their_output_and_whole_files() -> None:
    assert steps_of(PAGE) == (
        Commands(("first one", "second"), "shown\n"),
        File("apps/a.py", "x = 1\n"),
        Commands(("third",)),
    )


PRINTED = """\
begun

│ a.b   │ 2026-11-29 12:35:23 │ offset: 521 │
plan rewind-4b87dca30b77, good until 2026-11-30 12:35 UTC
1,002 of 1,002 read
"""


@pytest.mark.parametrize(
    "output",
    [
        "begun",
        "begun\n│ a.b │ 2020-01-01 00:00:00 │ offset: 521   │",
        "...\nplan rewind-000000000000, good until 2000-01-01 00:00 UTC\n",
        "begun\n...\n1,002 of ... read",
        "...\nplan rewind-000000000000, ...\n...",
    ],
)
def test_output_is_as_the_page_shows_it_but_for_what_varies(output: str) -> None:
    assert missing(output, PRINTED) == []


@pytest.mark.parametrize(
    ("output", "line"),
    [
        ("ended", "ended"),
        ("1,002 of 1,002 read", "1,002 of 1,002 read"),
        ("...\n1,003 of ... read", "1,003 of ... read"),
        ("begun\n1,002 of 1,002 read", "1,002 of 1,002 read"),
        ("...\n1,002 of 1,002 read\n...\nbegun", "begun"),
        ("...\n│ a.b │ 2020-01-01 00:00:00 │ offset: 52 │", "a.b TIME offset: 52"),
    ],
)
def test_a_line_that_was_not_printed_in_its_place_is_named(output: str, line: str) -> None:
    assert missing(output, PRINTED) == [line]


def test_the_plan_of_a_command_is_the_last_one_that_was_printed() -> None:
    assert last_plan(["plan topics-78976a1917ef", "plan rewind-4b87dca30b77, made of topics"]) == "rewind-4b87dca30b77"
    with pytest.raises(AssertionError, match="the page says ID"):
        last_plan(["no plan"])
