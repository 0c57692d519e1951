"""A kind of alarm is added by the files that its guide lists, and by no other."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from support.overlays import REPOSITORY, overlaid
from support.waiting import Deadline

GUIDE = REPOSITORY / "docs" / "contributing" / "add-an-alarm.md"
ROW = (
    "| [`group.empty`](../guide/groups.md#empty) | a declared group has no member; its app may be down | "
    "it has one | members missing | none |\n"
)
TESTED = """

def test_a_group_without_members_is_told_until_one_joins(platform: GroupsPlatform) -> None:
    group_checks.watch_members(platform, "a group", 0)
    assert [alarm.kind for alarm in platform.alarms.list()] == ["group.empty"]
    group_checks.watch_members(platform, "a group", 1)
    assert platform.alarms.list() == ()
"""
OPENED = '''

def watch_members(platform: Platform, group: str, members: int) -> None:
    """Open an alarm for a group without members, and close it once there is one."""
    alarms = platform.control.alarms
    if members:
        alarms.close(AlarmKind.GROUP_EMPTY, group)
    else:
        alarms.open(AlarmKind.GROUP_EMPTY, group, "nobody reads", Extent(1))
'''
CHILD = """
import json, sys
from pathlib import Path
from typer.testing import CliRunner
import millrace
from millrace.cli.alarms import commands
from millrace.usecases.alarms.notifiers import described, document_of
from millrace.usecases.groups.check import watch_members
from support.alarms.kind_checks import problems
from support.fakes.streams import FakePlatform

root = Path(sys.argv[1])
platform = FakePlatform(root)
commands.open_settings = lambda: None
commands.open_platform = lambda settings: platform
call = lambda *words: CliRunner().invoke(commands.app, words).stdout
watch_members(platform, "a group", 0)
[alarm] = platform.alarms.list()
found = {
    "package": millrace.__path__[0], "problems": problems(root), "list": call("list", "--json"),
    "show": call("show", "1"),
    "described": described(alarm), "document": document_of(alarm),
}
watch_members(platform, "a group", 1)
print(json.dumps(found | {"left": call("list", "--json")}))
"""


def after(line: str, added: str) -> Callable[[str], str]:
    """Return an edit that puts text behind a line that is there once."""

    def edit(former: str) -> str:
        assert former.count(line) == 1, line
        return former.replace(line, line + added)

    return edit


def kinds(former: str) -> str:
    with_word = after('    GROUP_RISK = "group.risk"\n', '    GROUP_EMPTY = "group.empty"\n')(former)
    facts = """    AlarmKind.GROUP_EMPTY: AlarmFacts(
        "a declared group has no member",
        opened_by=(_GROUPS,),
        closed_by=(_GROUPS,),
        runbook="guide/groups.md#empty",
        measure=Measure("members"),
    ),
"""
    return with_word.replace("    AlarmKind.TOPIC_HOLD: AlarmFacts(", f"{facts}    AlarmKind.TOPIC_HOLD: AlarmFacts(")


def row(former: str) -> str:
    return re.sub(r"(?m)^(?=\| \[`topic\.hold`\])", ROW, former)


ADDED: dict[str, str | Callable[[str], str]] = {
    "include/millrace/domain/alarms/kinds.py": kinds,
    "include/millrace/usecases/groups/check.py": lambda former: former + OPENED,
    "tests/unit/usecases/groups/test_list_and_check.py": lambda former: former + TESTED,
    "docs/operations/alarms.md": row,
    "docs/guide/groups.md": lambda former: former + "\n## Empty\nStart the app of the group.\n",
    "CHANGELOG.md": lambda former: former + "- The alarm `group.empty`.\n",
}


def test_a_kind_that_is_added_by_the_files_of_the_guide_opens_is_shown_and_closes(tmp_path: Path) -> None:
    [listed] = re.findall(r"^```files\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert list(ADDED) == listed.splitlines()

    shutil.copytree(REPOSITORY / "docs", tmp_path / "docs")
    package = overlaid(tmp_path, ADDED)
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join([str(package), str(REPOSITORY / "tests")])}
    limits = {"capture_output": True, "text": True, "timeout": Deadline.COMMAND.seconds}
    child = subprocess.run([sys.executable, "-c", CHILD, str(tmp_path)], env=paths, cwd=tmp_path, check=False, **limits)
    assert child.returncode == 0, child.stderr
    found = json.loads(child.stdout)

    assert found["package"] == str(package / "millrace")
    assert found["problems"] == []
    assert [alarm["kind"] for alarm in json.loads(found["list"])["alarms"]] == ["group.empty"]
    assert "docs/guide/groups.md#empty" in found["show"]
    assert "a declared group has no member" in found["show"]
    assert found["described"] == "group.empty of a group: nobody reads"
    assert (found["document"]["unit"], found["document"]["runbook"]) == ("members", "docs/guide/groups.md#empty")
    assert json.loads(found["left"])["alarms"] == []
