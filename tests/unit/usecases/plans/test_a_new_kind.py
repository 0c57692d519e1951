"""A kind of plan that is added to a copy of the package: it touches the files of the guide, and no more."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from millrace.domain.plans.plan import PlanKind
from millrace.usecases.plans.kinds import KINDS
from support.overlays import REPOSITORY, overlaid
from support.waiting import Deadline

GUIDE = REPOSITORY / "docs" / "contributing" / "add-a-plan-kind.md"
PACKAGE = "include/millrace/"
NOTE_MODULE = '''"""Plans that write a note into their result."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from millrace.domain.plans.plan import (
    LIFETIME, Change, ChangeResult, Outcome, Plan, PlanKind, PlanStatus, StoredPlan, facts,
)
from millrace.usecases.plans.kind import Kind, Runner

if TYPE_CHECKING:
    from millrace.ports.platform import Platform


def make_plan(platform: Platform, target: str, note: str, *, by: str, now: datetime) -> Plan:
    change = Change("note.write", target, facts({"note": ""}), facts({"note": note}))
    plan = Plan(PlanKind.NOTE, target, "desk", "", (change,), (), now, now + LIFETIME, by, "to remember")
    return platform.control.plans.add(plan)


def run(platform: Platform, stored: StoredPlan, runner: Runner) -> None:
    plan = stored.plan
    if runner.now >= plan.expires:
        platform.control.plans.finish(plan.id, PlanStatus.STALE)
        raise NOTE_KIND.untrue(plan, "it expired")
    result = ChangeResult("note.write", plan.target, Outcome.DONE, dict(plan.changes[0].after)["note"])
    platform.control.plans.finish(plan.id, PlanStatus.DONE, [result])
    platform.control.log.append(
        actor=runner.actor, action="note.write", subject=plan.target, reason=runner.because(plan)
    )


def abort(platform: Platform, stored: StoredPlan, runner: Runner) -> None:
    platform.control.plans.finish(stored.plan.id, PlanStatus.ABORTED)
    platform.control.log.append(
        actor=runner.actor, action="plan.abort", subject=stored.plan.target, reason=runner.because(stored.plan)
    )


NOTE_KIND = Kind(PlanKind.NOTE, make="millrace note plan {target}", place="on", run=run, abort=abort)
'''
PROGRAM = """
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

from rich.console import Console

from millrace.cli.plans.text import print_stored
from millrace.errors import StalePlanError
from millrace.usecases.plans import confirming, listing, running
from millrace.usecases.plans.note import make_plan
from support.fakes.plans import FakePlans

plans, logged = FakePlans(), []
log = SimpleNamespace(append=lambda **entry: logged.append((entry["action"], entry["reason"])))
control = SimpleNamespace(plans=plans, log=log)
platform = SimpleNamespace(control=control)
NOW = datetime.now(UTC)


def planned(note, now=NOW):
    return make_plan(platform, "shop", note, by="cli:ann", now=now).id


def refusal(act):
    try:
        act()
    except StalePlanError as error:
        return str(error)


done, back, late = planned("buy milk"), planned("sell milk"), planned("too late", NOW - timedelta(days=2))
assert done.startswith("note-"), done
assert running.run(platform, done, actor="cli:ann").status == "done"
assert running.abort(platform, back, actor="cli:ann", reason="no milk").status == "aborted"
assert "make a new plan with `millrace note plan shop`" in refusal(lambda: running.run(platform, done, actor="cli:b"))
assert "stale: it expired" in refusal(lambda: running.run(platform, late, actor="cli:b"))
ended = plans.stored[back].plan
assert ": aborted" in refusal(lambda: confirming.confirm(platform, ended, by="ann", at=NOW))
for name in (done, back, late):
    print_stored(Console(width=100), listing.show(platform, name))
print(logged)
"""


def words(former: str, new: str) -> Callable[[str], str]:
    """Return an edit that puts `new` behind the one place where `former` is."""

    def edit(text: str) -> str:
        assert text.count(former) == 1, former
        return text.replace(former, former + new)

    return edit


def kinds_with_note(text: str) -> str:
    line = "from millrace.usecases.plans.kind import Kind\n"
    text = words(line, "from millrace.usecases.plans.note import NOTE_KIND\n")(text)
    return words("    REDRIVE_KIND,\n", "    NOTE_KIND,\n")(text)


OVERLAY: dict[str, str | Callable[[str], str]] = {
    PACKAGE + "domain/plans/plan.py": words('    REDRIVE = "redrive"\n', '    NOTE = "note"\n'),
    PACKAGE + "usecases/plans/note.py": NOTE_MODULE,
    PACKAGE + "usecases/plans/kinds.py": kinds_with_note,
}
EXAMPLES = {PACKAGE + "usecases/quarantine/redrive.py": PACKAGE + "usecases/plans/note.py"}
"""The module of the kind that the guide follows, and the one that stands in its place here."""


def ran(include: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(include), str(REPOSITORY / "tests")])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    command, most = [sys.executable, "-c", PROGRAM], Deadline.COMMAND.seconds
    return subprocess.run(
        command, env=environment, cwd=include, capture_output=True, text=True, timeout=most, check=False
    )


def test_each_kind_has_one_entry() -> None:
    assert Counter(kind.name for kind in KINDS) == Counter(PlanKind)


def test_a_new_kind_is_made_shown_run_and_taken_back(tmp_path: Path) -> None:
    found = ran(overlaid(tmp_path, OVERLAY))

    assert found.returncode == 0, found.stderr
    assert "shop: note on desk" in found.stdout
    assert "done: note.write shop: buy milk" in found.stdout
    assert "aborted at" in found.stdout
    assert "stale at" in found.stdout
    assert "('plan.abort', 'no milk (plan note-" in found.stdout


@pytest.mark.parametrize("missing", OVERLAY)
def test_a_new_kind_needs_each_of_its_files(tmp_path: Path, missing: str) -> None:
    rest = {path: change for path, change in OVERLAY.items() if path != missing}
    assert ran(overlaid(tmp_path, rest)).returncode != 0


def test_the_guide_names_the_files_that_a_new_kind_touches() -> None:
    [block] = re.findall(r"^```files\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    listed = [path for path in block.splitlines() if path.startswith(PACKAGE)]
    assert [EXAMPLES.get(path, path) for path in listed] == list(OVERLAY)
