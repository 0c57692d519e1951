"""Names that others choose: shown in one line, with escapes for what could move a cursor or turn the writing round."""

from __future__ import annotations

import ast
import io
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from jinja2 import Environment
from markupsafe import Markup, escape
from rich.console import Console
from typer.testing import CliRunner

import millrace.cli
from millrace.airflow.plans.body import code
from millrace.cli.groups.text import print_group, print_groups, print_lag
from millrace.cli.streams import commands as stream_commands
from millrace.cli.terminal.output import Text, emit, lines, paragraph, show_error
from millrace.domain.groups.commits import Committed
from millrace.domain.groups.risks import risks
from millrace.domain.groups.snapshots import GroupSeen, GroupType, LogSeen, Member, Snapshot, TopicSeen, history_of
from millrace.domain.groups.status import judge
from millrace.errors import PartFailedError, UsageError
from millrace.usecases.archive.audit_page import _environment as audit_pages
from millrace.usecases.groups.listing import GroupList, GroupRow, furthest_first
from millrace.web.rendering import _environment as web_pages
from millrace.web.rendering import render

NOON = datetime(2026, 11, 2, 12, tzinfo=UTC)
HOSTILE = {
    "a new line": "a\nbilling is ok",
    "a carriage return": "a\rb",
    "a colour of the terminal": "a\x1b[31mb\x1b]0;title\x07",
    "a C1 control": "a\x9b31mb",
    "delete": "a\x7fb",
    "a line separator": "a\u2028b\u2029c",
    "a turn of the writing": "a\u202eb\u2066c",
    "markup of Rich": "a[red]b[/red][link=http://x]c[/link]",
}
ESCAPES = {
    "a new line": r"a\nbilling is ok",
    "a carriage return": r"a\rb",
    "a colour of the terminal": r"a\x1b[31mb\x1b]0;title\x07",
    "a C1 control": r"a\x9b31mb",
    "delete": r"a\x7fb",
    "a line separator": r"a\u2028b\u2029c",
    "a turn of the writing": r"a\u202eb\u2066c",
    "markup of Rich": "a[red]b[/red][link=http://x]c[/link]",
}


class Named:
    """A value that is no text and prints a name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return self.name


each_hostile = pytest.mark.parametrize("what", sorted(HOSTILE))


def groups_of(name: str) -> GroupList:
    """One group of this name, whose member has the same for its ids and its host."""
    partition = ("orders", 0)
    member = Member(name, name, name, instance=name, partitions=(partition,))
    seen = GroupSeen(name, GroupType.CLASSIC, "Stable", "range", (member,), {partition: Committed(3)}, fault=name)
    snapshot = Snapshot(NOON, "c", {"orders": TopicSeen("id", (LogSeen(5, 9, 9),))}, {name: seen}, faults=(name,))
    history = history_of(snapshot)
    reading = judge(seen, snapshot, history)
    row = GroupRow(reading, "", False, risks(reading, snapshot, history))
    return GroupList("millrace_kafka", snapshot, timedelta(0), NOON, [row])


def printed(show: Callable[[Console], None]) -> str:
    out = io.StringIO()
    show(Console(file=out, width=400, force_terminal=False))
    return out.getvalue()


@each_hostile
@pytest.mark.parametrize("command", ["list", "show", "lag"])
def test_a_group_of_any_name_takes_the_lines_of_a_plain_one(command: str, what: str) -> None:
    def show(name: str) -> str:
        found = groups_of(name)
        if command == "lag":
            return printed(lambda console: print_lag(console, found, furthest_first(found.groups), 0))
        return printed(lambda console: (print_groups if command == "list" else print_group)(console, found))

    text = show(HOSTILE[what])
    assert ESCAPES[what] in text
    assert len(text.splitlines()) == len(show("plain").splitlines())
    assert all(each.isprintable() for each in text.split("\n"))


@each_hostile
def test_a_document_has_the_exact_name(capsys: pytest.CaptureFixture[str], what: str) -> None:
    emit({"schema": "x/1", "group": HOSTILE[what]}, as_json=True, text=lambda console: None)
    assert json.loads(capsys.readouterr().out)["group"] == HOSTILE[what]


@each_hostile
def test_text_for_people_is_one_line_however_it_is_put_together(what: str) -> None:
    name, escaped = HOSTILE[what], ESCAPES[what]
    assert Text(name).plain == escaped
    assert Text("x ").append(name, style="bold").plain == f"x {escaped}"
    assert Text.assemble("x ", (name, "bold")).plain == f"x {escaped}"
    assert lines([name, name]).plain == f"{escaped}\n{escaped}"


def test_a_message_of_our_own_keeps_its_lines() -> None:
    assert paragraph("wrong\n  next: \x1b[2J do this").plain == "wrong\n  next: \\x1b[2J do this"


@each_hostile
def test_a_page_shows_the_escapes(what: str) -> None:
    page = render("log.html.j2", text=f"first\nsecond {HOSTILE[what]}")
    assert "first\nsecond " in page  # a log keeps its lines
    assert all(each.isprintable() for each in page.split("\n"))
    refused = render("refused.html.j2", base="/", root="/", error=UsageError(f"there is no group {HOSTILE[what]}"))
    assert str(escape(f"there is no group {ESCAPES[what]}")) in refused
    assert all(each.isprintable() for each in refused.split("\n"))


@each_hostile
def test_only_its_own_next_step_begins_a_line_of_an_error(capsys: pytest.CaptureFixture[str], what: str) -> None:
    name, escaped = HOSTILE[what], ESCAPES[what]
    show_error(UsageError(f"no group {name}", where=f"cluster {name}", next_step=f"see {name}"))
    first, *others = capsys.readouterr().err.rstrip("\n").split("\n")
    assert first == f"millrace: cluster {escaped}: no group {escaped} [wrong-usage]"
    assert "".join(others) == f"  next: see {escaped}".replace("\\n", "    ")
    show_error(PartFailedError(f"it ended:\n{name}", next_step="see the log"))
    first, *others, last = capsys.readouterr().err.rstrip("\n").split("\n")
    assert (first, last) == ("millrace: it ended [part-failed]:", "  next: see the log")
    assert "".join(others) == f"    {escaped}".replace("\\n", "    ")


@each_hostile
def test_the_log_of_a_driver_keeps_its_lines_and_tabs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    file = tmp_path / ".millrace/streams/shop.purchases/1/driver.log"
    file.parent.mkdir(parents=True)
    name = HOSTILE[what].replace("\r", "")  # a log's lines end at one, too
    file.write_text(f"first\tcolumn\n{name}\nlast", encoding="utf-8")
    monkeypatch.setenv("MILLRACE_ROOT", str(tmp_path))
    done = CliRunner().invoke(stream_commands.app, ["logs", "shop.purchases"])
    assert (
        done.stdout
        == f"first\tcolumn\n{ESCAPES[what].replace(chr(92) + 'n', chr(10)).replace(chr(92) + 'r', '')}\nlast"
    )


@each_hostile
@pytest.mark.parametrize("pages", [web_pages, audit_pages], ids=["web", "audit"])
def test_a_value_of_a_page_is_one_line_and_markup_of_ours_stays(pages: Callable[[], Environment], what: str) -> None:
    page = pages().from_string("<b>{{ name }}</b>").render(name=HOSTILE[what])
    assert page == f"<b>{escape(ESCAPES[what])}</b>"
    assert pages().from_string("{{ name }}").render(name=[HOSTILE[what]]).isprintable()
    shown = pages().from_string("{{ name }}").render(name=Named(HOSTILE[what]))
    assert shown == escape(ESCAPES[what])
    assert pages().from_string("{{ ours }}").render(ours=Markup("<i>\n</i>")) == "<i>\n</i>"


@each_hostile
def test_a_plan_that_airflow_shows_has_no_control_characters(what: str) -> None:
    assert code(HOSTILE[what]).isprintable()


def _prints_without_text(tree: ast.AST) -> list[int]:
    """Return the lines that print, or put into a table, an f-string as it is: Rich would read markup in it.

    Text that was put together before, in a variable or by a function, is not seen.
    """
    return [
        call.lineno
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in ("print", "add_row")
        and any(isinstance(one, ast.JoinedStr) and _names_something(one) for one in call.args)
    ]


def _names_something(text: ast.JoinedStr) -> bool:
    """Return whether it holds a value without a format; one with a format is a number or a time."""
    return any(isinstance(part, ast.FormattedValue) and part.format_spec is None for part in text.values)


def test_commands_print_names_by_the_text_that_escapes_them() -> None:
    wrong: dict[str, Any] = {}
    for file in sorted(Path(millrace.cli.__file__).parent.rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        imported = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module == "rich.text"]
        plain = any(alias.asname != "RichText" for node in imported for alias in node.names)
        if plain or (found := _prints_without_text(tree)):
            wrong[str(file)] = "imports rich.text" if plain else found
    assert wrong == {}
