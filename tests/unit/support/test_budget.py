"""The budget of the first tier: what its file may say, whom spending is put down to, and that going over fails."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from support.checks.budget import (
    Budget,
    BudgetError,
    Capability,
    Kind,
    Ledger,
    close_ledger,
    open_ledger,
    read_budget,
    spend,
)
from support.checks.driver_starts import DriverStarts
from support.waiting import Deadline

TESTS = Path(__file__).resolve().parents[2]
NEW_CAPABILITY = {
    Kind.DRIVER_STARTS: 2,
    Kind.SPARK_SESSIONS: 1,
    Kind.DAG_RUNS: 3,
    Kind.BROWSER_JOURNEYS: 1,
    Kind.SERVER_RESTARTS: 0,
}
DEFAULT = "[default]\n" + "".join(f"{kind.value} = {number}\n" for kind, number in NEW_CAPABILITY.items())


@pytest.fixture
def tests(tmp_path: Path) -> Path:
    """A folder of tests with two files and no budget yet."""
    folder = tmp_path / "tests"
    (folder / "unit").mkdir(parents=True)
    for name in ("test_one.py", "test_two.py"):
        (folder / "unit" / name).touch()
    return folder


def read(tests: Path, text: str) -> Budget:
    (tests / "budget.toml").write_text(textwrap.dedent(text))
    return read_budget(tests)


def test_the_budget_of_this_checkout_is_sound_and_gives_a_new_capability_what_it_should() -> None:
    budget = read_budget(TESTS)
    assert budget.default == NEW_CAPABILITY
    assert budget.of("unit/test_of_tomorrow.py").allowed == NEW_CAPABILITY


def test_an_entry_raises_what_it_names_for_all_of_its_files(tests: Path) -> None:
    budget = read(
        tests,
        f"{DEFAULT}[capability.both]\n"
        'tests = ["unit/test_one.py", "unit/test_two.py"]\ndag_runs = 5\ndriver_starts = 0\nreason = "it runs five"\n',
    )
    assert budget.of("unit/test_one.py") == budget.of("unit/test_two.py")
    allowed = NEW_CAPABILITY | {Kind.DAG_RUNS: 5, Kind.DRIVER_STARTS: 0}
    assert budget.of("unit/test_one.py") == Capability("both", allowed)
    assert budget.of("unit/test_other.py") == Capability("unit/test_other.py", NEW_CAPABILITY)


ONE = '[capability.one]\ntests = ["unit/test_one.py"]\n'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param("[default", "the file: ", id="no TOML"),
        pytest.param(ONE, "default: must be a table", id="no default"),
        pytest.param(DEFAULT.replace("dag_runs = 3\n", ""), "default: dag_runs is missing", id="kind missing"),
        pytest.param(f"{DEFAULT}seconds = 3\n", "default.seconds: is not known here", id="unknown kind"),
        pytest.param(f"{DEFAULT}[capabilities.one]\n", "capabilities: is not known here", id="unknown table"),
        pytest.param(f"{DEFAULT}[capability]\none = 1\n", "capability.one: must be a table", id="no table"),
        pytest.param(f"{DEFAULT}{ONE}dag_run = 1\n", "capability.one.dag_run: is not known here", id="unknown key"),
        pytest.param(f"{DEFAULT}[capability.one]\n", "capability.one.tests: must list", id="no files"),
        pytest.param(f"{DEFAULT}[capability.one]\ntests = [1]\n", "capability.one.tests: must list", id="no names"),
        pytest.param(
            f"{DEFAULT}{ONE}".replace("_one", "_three"), "there is no file tests/unit/test_three.py", id="no file"
        ),
        pytest.param(f"{DEFAULT}{ONE}".replace("unit/", "./unit/"), "there is no file tests/./unit", id="odd path"),
        pytest.param(
            f"{DEFAULT}{ONE}{ONE.replace('.one', '.two')}",
            "capability.two.tests: unit/test_one.py belongs to one already",
            id="file of two",
        ),
        pytest.param(f"{DEFAULT}{ONE}dag_runs = 4\n", "capability.one.dag_runs: 4 is above the default 3", id="reason"),
        pytest.param(f'{DEFAULT}{ONE}dag_runs = 4\nreason = " "\n', "capability.one.reason: must be", id="blank"),
        pytest.param(f"{DEFAULT}{ONE}dag_runs = 4\nreason = 1\n", "capability.one.reason: must be", id="no text"),
        *(
            pytest.param(
                f'{DEFAULT}{ONE}dag_runs = {number}\nreason = "why"\n', "capability.one.dag_runs: ", id=f"{number}"
            )
            for number in ("-1", "1.0", "true", '"3"')
        ),
    ],
)
def test_what_is_wrong_in_the_file_is_named(tests: Path, text: str, told: str) -> None:
    with pytest.raises(BudgetError) as met:
        read(tests, text)
    assert str(met.value).startswith("tests/budget.toml: ")
    assert told in str(met.value)


def test_no_file_is_no_budget(tests: Path) -> None:
    with pytest.raises(BudgetError, match="the file: "):
        read_budget(tests)


@pytest.fixture
def ledger() -> Ledger:
    shared = Capability("shared", NEW_CAPABILITY)
    return Ledger(Budget(NEW_CAPABILITY, {"a.py": shared, "b.py": shared}))


def test_files_of_a_capability_spend_together_and_the_test_that_goes_over_is_told(ledger: Ledger) -> None:
    for test, file, times in (("a::first", "a.py", 2), ("other::test", "other.py", 3), ("a::none", "a.py", 0)):
        ledger.begin(test, file, exempt=False)
        ledger.spend(Kind.DAG_RUNS, times)
        assert ledger.has_spent == (times > 0)
        assert ledger.complaint() == ""
    ledger.begin("b::second", "b.py", exempt=False)
    ledger.spend(Kind.DAG_RUNS, 2)
    assert ledger.complaint().splitlines()[:4] == [
        "b::second is over the budget.",
        "shared: dag_runs: spent 4, allowed 3:",
        "  2  a::first",
        "  2  b::second",
    ]
    assert "@pytest.mark.full" in ledger.complaint()
    assert "tests/budget.toml" in ledger.complaint()
    ledger.begin("b::thrifty", "b.py", exempt=False)
    ledger.spend(Kind.DRIVER_STARTS)
    assert ledger.complaint() == "", "a test was blamed for what others have spent"


def test_what_an_exempt_test_or_nobody_spends_is_put_down_for_nobody(ledger: Ledger) -> None:
    ledger.spend(Kind.SERVER_RESTARTS)
    ledger.begin("a::long", "a.py", exempt=True)
    ledger.spend(Kind.SERVER_RESTARTS, 9)
    assert ledger.complaint() == ""
    ledger.begin("a::short", "a.py", exempt=False)
    ledger.end()
    ledger.spend(Kind.SERVER_RESTARTS)
    assert ledger.spent == {}


def test_spending_reaches_the_ledger_that_is_open(ledger: Ledger) -> None:
    ledger.begin("a::test", "a.py", exempt=False)
    open_ledger(ledger)
    try:
        spend(Kind.BROWSER_JOURNEYS, 2)
    finally:
        close_ledger(ledger)
    assert [kinds[Kind.BROWSER_JOURNEYS].total() for kinds in ledger.spent.values()] == [2]


def epoch(project: Path, stream: str, number: int | str, *, driver: bool = True) -> None:
    (project / ".millrace" / "streams" / stream / str(number) / "scratch").mkdir(parents=True)
    if driver:
        (project / "spark_apps").mkdir(exist_ok=True)
        (project / "spark_apps" / "stream.py").touch()


def test_each_epoch_of_a_stream_is_one_start_whoever_started_it(tmp_path: Path) -> None:
    starts = DriverStarts(tmp_path)
    assert starts.new_ones(everywhere=True) == 0
    epoch(tmp_path / "stacks" / "run", "shop.purchases", 1)
    epoch(tmp_path / "stacks" / "run", "shop.purchases", 2)
    epoch(tmp_path / "stacks" / "run", "shop.customers", 1)
    epoch(tmp_path / "stacks" / "run", "shop.customers", "notes")
    assert starts.new_ones(everywhere=False) == 3
    epoch(tmp_path / "stacks" / "run", "shop.purchases", 3)
    epoch(tmp_path / "pytest" / "test_a0", "d1.s", 1)
    epoch(tmp_path / "pytest" / "test_b0" / "m0", "d2.s", 0)
    epoch(tmp_path / "pytest" / "test_c0", "stub.s", 1, driver=False)
    (tmp_path / "pytest" / "test_acurrent").symlink_to(tmp_path / "pytest" / "test_a0")
    assert starts.new_ones(everywhere=False) == 1
    assert starts.new_ones(everywhere=True) == 2
    assert starts.new_ones(everywhere=True) == 0


NESTED = """
import os
from pathlib import Path

import pytest

from support.checks.budget import Kind, spend

STREAM = Path(os.environ["MILLRACE_TEST_RUN"]) / "stacks" / "run" / ".millrace" / "streams" / "shop.purchases"

@pytest.fixture(scope="module")
def started():
    (STREAM / "1").mkdir(parents=True)
    (STREAM.parents[2] / "spark_apps").mkdir()
    (STREAM.parents[2] / "spark_apps" / "stream.py").touch()
    yield
    (STREAM / "3").mkdir()

def test_within(started):
    spend(Kind.DAG_RUNS, 2)

@pytest.mark.full
def test_full(started):
    (STREAM / "2").mkdir()
    spend(Kind.DAG_RUNS, 50)

def test_free():
    pass

@pytest.mark.parametrize("times", [1, 2])
def test_over(started, times):
    spend(Kind.DAG_RUNS, times)
"""


def nested(project: Path, budget: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A run of its own, held to a budget of its own."""
    (project / "pytest.ini").write_text("[pytest]\nmarkers =\n    full: of the second tier\naddopts = -q\n")
    (project / "tests" / "conftest.py").write_text(
        f"import sys\nsys.path[:0] = {[str(TESTS), str(TESTS.parent / 'include')]!r}\n"
        'pytest_plugins = ["support.checks.budget_plugin"]\n'
    )
    (project / "tests" / "budget.toml").write_text(budget)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(project / "tests"), *arguments],
        cwd=project,
        env={**os.environ, "MILLRACE_TEST_RUN": str(project / "run")},
        capture_output=True,
        text=True,
        timeout=Deadline.COMMAND.seconds,
        check=False,
    )


def test_the_test_that_goes_over_fails_at_its_teardown_and_the_run_tells_who_spent_what(tests: Path) -> None:
    (tests / "unit" / "test_one.py").write_text(NESTED)
    done = nested(tests.parent, DEFAULT + ONE + "driver_starts = 1\n")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    assert "5 passed, 1 error" in done.stdout
    assert "ERROR at teardown of test_over[2]" in done.stdout
    for line in (
        "tests/unit/test_one.py::test_over[2] is over the budget.",
        "one: dag_runs: spent 5, allowed 3:",
        "  2  tests/unit/test_one.py::test_within",
        "one: driver_starts: spent 2, allowed 1:",
        "  1  tests/unit/test_one.py::test_over[2]",  # by its module's teardown
    ):
        assert line in done.stdout.splitlines(), done.stdout
    (row,) = [line.split() for line in done.stdout.splitlines() if line.startswith("  one  ")]
    assert row == ["one", "2/1", "5/3"]


def test_a_repeat_is_held_to_no_budget(tests: Path) -> None:
    spends = "from support.checks.budget import Kind, spend\n\ndef test_spends():\n    spend(Kind.DAG_RUNS, 50)\n"
    (tests / "unit" / "test_one.py").write_text(spends)
    once = nested(tests.parent, DEFAULT + ONE)
    assert "1 passed, 1 error" in once.stdout, once.stdout
    repeated = nested(tests.parent, DEFAULT + ONE, "--count", "2")
    assert "2 passed" in repeated.stdout, repeated.stdout
    assert repeated.returncode == 0


def test_a_run_with_a_wrong_budget_does_not_begin(tests: Path) -> None:
    (tests / "unit" / "test_one.py").write_text(NESTED)
    done = nested(tests.parent, DEFAULT + ONE + "seconds = 900\n")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout
    assert "tests/budget.toml: capability.one.seconds: is not known here" in done.stderr
    assert not (tests.parent / "run").exists()
