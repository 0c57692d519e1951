"""The kinds of alarms: each has facts, a row of the page, and the modules that open and close it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from millrace.domain.alarms.kinds import FACTS, NOTHING, AlarmKind, facts_of, measure_of, runbook_of
from support.alarms.kind_checks import code_problems, page_problems, problems

REPOSITORY = Path(__file__).resolve().parents[4]
GROUPS, CAT = "usecases/groups/check.py", "usecases/archive/cat.py"
QUALITY = "usecases/quality/alarms.py"
DRIVER, KEEPER = "runtime/stream/driver.py", "runtime/backup/keeper.py"
EXHAUSTED = "self._life.reporter.alarm(AlarmKind.STREAM_SINK_EXHAUSTED"
IMPORT = "from millrace.domain.alarms.kinds import AlarmKind"
FIRST = "from __future__ import annotations\n"


def test_each_kind_is_as_the_page_and_the_code_say() -> None:
    assert problems(REPOSITORY) == []


@pytest.mark.parametrize("kind", AlarmKind)
def test_a_kind_has_a_sentence_and_a_page_that_is_there(kind: AlarmKind) -> None:
    facts = FACTS[kind]
    assert facts_of(kind.value) is facts
    assert facts.text
    assert facts.text[0].islower()
    assert not facts.text.endswith(".")
    assert facts.opened_by
    assert facts.closed_by
    assert (REPOSITORY / runbook_of(kind.value).partition("#")[0]).is_file()


def test_a_kind_of_another_release_has_no_facts_and_grows() -> None:
    assert (facts_of("moon.gone"), measure_of("moon.gone"), runbook_of("moon.gone")) == (None, NOTHING, "")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("| [`stream.died`]", "| [`stream.dead`]", "the page has the kinds stream.dead, stream.stuck"),
        ("(supervision.md#a-stream-that-is-stuck) |", "(supervision.md#stopping) |", "the page leads to operations/su"),
        ("| its app runs but", "| the app runs but", "stream.stuck: the page says `the app runs but makes no progress"),
        ("([what to do](backup-audit.md#late))", "([what to do](backup-audit.md#lost))", "says what to do at backup"),
        ("| partitions that are late |", "| seconds |", "backup.late: the page measures `seconds`"),
    ],
)
def test_a_row_of_the_page_that_differs_is_told(tmp_path: Path, old: str, new: str, told: str) -> None:
    page = tmp_path / "operations" / "alarms.md"
    page.parent.mkdir()
    text = (REPOSITORY / "docs" / "operations" / "alarms.md").read_text(encoding="utf-8")
    page.write_text(text.replace(old, new))
    assert told in "\n".join(page_problems(tmp_path))


@pytest.mark.parametrize(
    ("module", "old", "new", "told"),
    [
        (GROUPS, "AlarmKind.GROUP_RISK", '"group.risk"', "usecases.groups.check writes `group.risk`"),
        (GROUPS, "AlarmKind.GROUP_RISK", "RISK", "usecases.groups.check is said to open group.risk"),
        (GROUPS, "AlarmKind.GROUP_RISK", "AlarmKind.DISK_FULL", "usecases.groups.check names disk.full"),
        (CAT, FIRST, f"{FIRST}x.open(AlarmKind.DISK_FULL)\n", "usecases.archive.cat opens disk.full"),
        (CAT, FIRST, f"{FIRST}x.close(AlarmKind.DISK_FULL)\n", "usecases.archive.cat closes disk.full"),
        ("usecases/streams/supervise.py", ".alarms.open(", ".alarms.close(", "is said to open stream.died"),
        ("usecases/retention/growth.py", "alarms.close(", "alarms.open(", "is said to close disk.full"),
        (DRIVER, f"{EXHAUSTED}, None)", "pass", "driver is said to close stream.sink_exhausted"),
        (DRIVER, f"{EXHAUSTED}, str(error))", "pass", "driver is said to open stream.sink_exhausted"),
        (KEEPER, "self._parts.breach(AlarmKind.BACKUP_HALTED, str(here), None)", "pass", "to close backup.halted"),
        (GROUPS, "alarms.close(", "alarms.get(", "usecases.groups.check is said to close group.risk"),
        (QUALITY, "alarms.close(", "alarms.get(", "usecases.quality.alarms is said to close quality.broken"),
        (CAT, FIRST, f'{FIRST}AlarmKind["DISK_FULL"]\n', "usecases.archive.cat hides a kind: `AlarmKind['DISK_FULL']`"),
        (CAT, FIRST, f"{FIRST}kinds.AlarmKind.DISK_FULL\n", "usecases.archive.cat hides a kind: `kinds.AlarmKind`"),
        (CAT, FIRST, f"{FIRST}{IMPORT} as K\n", f"usecases.archive.cat hides a kind: `{IMPORT} as K`"),
    ],
)
def test_code_that_differs_from_the_facts_is_told(tmp_path: Path, module: str, old: str, new: str, told: str) -> None:
    package = tmp_path / "millrace"
    shutil.copytree(REPOSITORY / "include" / "millrace", package, ignore=shutil.ignore_patterns("__pycache__"))
    text = (package / module).read_text(encoding="utf-8")
    assert old in text
    (package / module).write_text(text.replace(old, new))
    assert told in "\n".join(code_problems(package))
