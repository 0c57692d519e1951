"""The second try and the two tiers of a real test run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from millrace.cli.checks.turn import VARIABLE as TURN_VARIABLE
from support.waiting import Deadline, output_of

CHECKOUT = Path(__file__).resolve().parents[4]
CONFTEST = f"""
import sys
sys.path[:0] = [{str(CHECKOUT / "include")!r}, {str(CHECKOUT / "tests")!r}]
pytest_plugins = ["support.checks.tiers_plugin", "support.checks.report_plugin"]
"""
MARKERS = "[pytest]\naddopts = --import-mode=importlib\nmarkers = full: of the second tier\n"
TESTS = """
import subprocess
from pathlib import Path

import pytest

from support.waiting import Deadline, DeadlinePassedError

HERE = Path(__file__).parent
first = not (HERE / "tried").exists()

@pytest.fixture
def tried():
    yield
    (HERE / "tried").touch()

def test_wait(tried):
    if first:
        raise DeadlinePassedError(Deadline.SERVER, "the server to be back", None)

@pytest.fixture
def reached(tried):
    import psycopg

    if first:
        with psycopg.connect("host=127.0.0.1 port=1 user=x"):
            pass

def test_server(reached):
    pass

def test_always():
    raise DeadlinePassedError(Deadline.SERVER, "what never comes", None)

def test_count(tried):
    assert not first

def test_exit_code(tried):
    subprocess.run(["false"], check=first)

def test_examples():
    from hypothesis import settings

    print(f"examples: {settings.default.max_examples}")

@pytest.mark.full
def test_of_the_second_tier():
    pass

@pytest.mark.full
@pytest.mark.parametrize("number", [1, 2])
def test_of_the_second_tier_too(number):
    pass
"""
FILE = "tests/integration/test_tried.py"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for folder in ("integration", "drills"):
        (tmp_path / "tests" / folder).mkdir(parents=True)
        (tmp_path / "tests" / folder / "test_tried.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text(MARKERS)
    return tmp_path


def run(project: Path, *arguments: str) -> tuple[int, str]:
    """Return the exit code and the output of `millrace test ARGUMENTS`. Of plugins it loads pytest-repeat only."""
    code = "import sys; from pathlib import Path; from millrace.cli.checks.run import run_checks; "
    code += "sys.exit(run_checks(Path(sys.argv[1]), sys.argv[2:]))"
    own = {name: value for name, value in os.environ.items() if name != TURN_VARIABLE}
    own |= {"PYTHONPATH": str(CHECKOUT / "include"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(project), *arguments, "-p", "no:cacheprovider", "-p", "pytest_repeat", "-rA"],
        env=own,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    output = output_of(process, within=Deadline.COMMAND, what="the end of a run")
    return process.returncode, output


def passed(output: str) -> list[str]:
    """The tests that passed, in the order of their names."""
    return sorted(line.split()[1] for line in output.splitlines() if line.startswith("PASSED"))


def test_a_wait_that_ran_out_once_and_a_server_that_was_away_once_are_told_and_not_red(project: Path) -> None:
    code, output = run(project, FILE, "-k", "wait or server")
    assert code == 0, output
    table = output[output.index("second try of tests") :]
    for test, error in (
        ("wait", "DeadlinePassedError: waited 90 s (SERVER) for the server"),
        ("server", "Operational"),
    ):
        assert f"  {FILE}::test_{test}\n    first   FAILED  load" in table
        assert error in table
    assert table.count("second  passed") == 2


def test_what_fails_again_is_red_and_both_outcomes_are_told(project: Path) -> None:
    code, output = run(project, FILE, "-k", "always")
    assert code == pytest.ExitCode.TESTS_FAILED
    assert output.count("GB free  DeadlinePassedError: waited 90 s (SERVER) for what never comes") == 2


def test_nothing_is_tried_again_when_something_else_failed_too_or_not_everything_was_run(project: Path) -> None:
    for arguments in ((FILE, "-k", "wait or count or exit_code"), (FILE, "-x", "-k", "wait or server")):
        code, output = run(project, *arguments)
        assert code == pytest.ExitCode.TESTS_FAILED
        assert "second try" not in output
        (project / "tests" / "integration" / "tried").unlink()


SECOND_TIER = (f"{FILE}::test_of_the_second_tier", f"{FILE}::test_of_the_second_tier_too[2]")
EXAMPLES = f"{FILE}::test_examples"


@pytest.mark.parametrize(
    ("arguments", "tests", "count"),
    [
        (("tests",), 0, 34),
        (("tests", "--all"), 6, 100),
    ],
    ids=["the first tier", "both tiers"],
)
def test_the_second_tier_and_all_examples_of_properties_run_when_they_are_asked_for(
    project: Path, arguments: Sequence[str], tests: int, count: int
) -> None:
    code, output = run(project, *arguments, "-k", "tier or examples")
    assert code == 0, output
    assert len([name for name in passed(output) if "tier" in name.partition("::")[2]]) == tests
    assert output.count(f"examples: {count}\n") == output.count("examples: ") == 2


def test_a_named_test_runs_in_any_tier_with_all_its_examples(project: Path) -> None:
    named = (SECOND_TIER[0], SECOND_TIER[1].replace("integration", "drills"), EXAMPLES)
    code, output = run(project, *named)
    assert code == 0, output
    assert passed(output) == sorted(named)
    assert "examples: 100\n" in output


def test_a_repeat_runs_a_test_of_the_second_tier_by_its_name_and_tries_nothing_again(project: Path) -> None:
    code, output = run(project, "--repeat", "3", FILE, *SECOND_TIER, "-k", "tier or wait")
    assert code == pytest.ExitCode.TESTS_FAILED
    assert passed(output) == [
        *(f"{SECOND_TIER[0]}[{number}-3]" for number in (1, 2, 3)),
        *(f"{SECOND_TIER[1][:-1]}-{number}-3]" for number in (1, 2, 3)),
    ]
    assert "3 failed" in output
    assert "second try" not in output
