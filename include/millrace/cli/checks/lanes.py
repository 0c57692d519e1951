"""Spread the checks of a whole run over lanes: lanes run side by side, the steps of a lane run one after another.

A lane has at most one pytest that starts servers, so it starts each server once. The folder of a test file says which
servers the file needs, and with that which lanes may take it. Measured durations fill the lanes evenly.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from millrace.cli.checks.second_try import Duration

EVERYTHING = "--all"
PYTEST = (sys.executable, "-m", "pytest")
SHOWN = ("-ra", "--durations=15")
EACH_TEST = "-vv"
"""Prints a line for each test. A test that starts servers takes long."""
LAST = ("nice", "-n", "10") if shutil.which("nice") else ()
"""Steps without servers leave the processors to servers, for which other tests wait."""

DURATIONS = Path("tests/durations.json")
"""Seconds of each test file, and of each step beyond its files, relative to the project; a green `--all` writes it."""
SPARK_CLASSES = Path("tests/support/checks/spark_classes.py")
"""Makes an archive of Spark's classes, with which the JVMs of all lanes start in half the CPU time."""
BUDGET = Path("tests/budget.toml")
"""Test files of one capability share a budget, which one pytest counts."""

AIRFLOW, SERVERS, CODE = "airflow", "servers", "code"
WITH_SERVERS = (AIRFLOW, SERVERS)
PLACES: Mapping[str, Sequence[str]] = {
    "tests/integration/airflow": (AIRFLOW,),
    "tests/contract/host": (AIRFLOW, SERVERS, CODE),
    "tests/contract/postgres": (AIRFLOW, SERVERS, CODE),
    "tests/dags": (CODE,),
    "tests/spark": (CODE,),
    "tests/unit": (CODE,),
}
"""The lanes that may take the files of a folder. The longest matching folder decides; all other files need servers."""

CODE_STEP, SPARK_STEP = "tests of code", "tests of Spark"
_IN_TURN = ("tests/integration/airflow/", "", "tests/integration/", "tests/drills/")
"""Which files of a lane with servers run before which; the longest matching beginning decides."""
_IN_PROCESS = ("tests/dags", "tests/spark", "tests/unit")
"""Folders whose tests start no servers. They load Airflow or Spark into their own process."""


@dataclass(frozen=True, slots=True)
class Step:
    """One check: a command, and for a pytest the files it is given."""

    name: str
    command: Sequence[str]


@dataclass(slots=True)
class _Lane:
    files: list[str] = field(default_factory=list)
    seconds: float = 0.0


def lanes(root: Path, *, everything: bool) -> dict[str, list[Step]]:
    """Return the steps of a whole run by lane.

    Args:
        root: the project.
        everything: also run the second tier.
    """
    found = sorted(str(path.relative_to(root)) for path in (root / "tests").rglob("test_*.py"))
    archive, checks = Step("archive of classes", [sys.executable, str(SPARK_CLASSES)]), static_checks()
    filled = fill(
        found,
        read_durations(root),
        PLACES,
        everything=everything,
        together=capabilities(root),
        beside={
            AIRFLOW: [_servers_step(AIRFLOW)],
            SERVERS: [_servers_step(SERVERS)],
            CODE: [*(step.name for step in (archive, *checks)), _servers_step(CODE), CODE_STEP, SPARK_STEP],
        },
    )
    more = (EVERYTHING,) if everything else ()
    steps = {name: _steps_of_tests(name, filled.get(name, _Lane()).files, more) for name in (*WITH_SERVERS, CODE)}
    steps[CODE] = [archive, *steps[CODE], *checks]
    return steps


def fast_lanes(root: Path) -> dict[str, list[Step]]:
    """Return the steps of `--fast`: the static checks and the unit tests, in two lanes without servers."""
    found = sorted(str(path.relative_to(root)) for path in (root / "tests/unit").rglob("test_*.py"))
    places, checks = {"tests/unit": (CODE, "code 2")}, static_checks()
    beside = {CODE: [step.name for step in checks]}
    filled = fill(found, read_durations(root), places, everything=False, beside=beside)
    steps = {name: [pytest_step(CODE_STEP, lane.files, LAST)] for name, lane in filled.items()}
    return {**steps, CODE: [*steps.get(CODE, []), *checks]}


def static_checks() -> list[Step]:
    """Return linter, formatter and type checker."""
    return [
        Step("ruff check", [*LAST, sys.executable, "-m", "ruff", "check", "."]),
        Step("ruff format", [*LAST, sys.executable, "-m", "ruff", "format", "--check", "."]),
        Step("mypy", [*LAST, sys.executable, "-m", "mypy"]),
    ]


def _steps_of_tests(lane: str, files: Sequence[str], more: Sequence[str]) -> list[Step]:
    in_process = {folder: [file for file in files if file.startswith(f"{folder}/")] for folder in _IN_PROCESS}
    with_servers = [file for file in files if not file.startswith(tuple(f"{folder}/" for folder in _IN_PROCESS))]
    with_servers.sort(key=_turn)
    code = [*in_process["tests/unit"], *in_process["tests/dags"]]
    steps = []
    if with_servers:
        steps.append(pytest_step(_servers_step(lane), with_servers, (), EACH_TEST, *more))
    if code:
        steps.append(pytest_step(CODE_STEP, code, LAST, *more))
    if in_process["tests/spark"]:
        steps.append(pytest_step(SPARK_STEP, in_process["tests/spark"], LAST, *more))
    return steps


def _servers_step(lane: str) -> str:
    return f"tests with servers, {lane}"


def _turn(file: str) -> tuple[int, str]:
    """Return the key by which a lane with servers sorts its files.

    An Airflow test comes first: Airflow takes most of the lane's memory, and stops after the last one. Airflow tests
    run by name: a later one looks at the stream that an earlier one starts. Other integration tests come after all
    contracts: most start Spark, and the archive of its classes is likely there by then. A drill comes last: it kills
    servers.
    """
    place = max((folder for folder in _IN_TURN if file.startswith(folder)), key=len)
    return _IN_TURN.index(place), file if place == _IN_TURN[0] else ""


def pytest_step(name: str, files: Sequence[str], before: Sequence[str], *options: str) -> Step:
    """Return a step that runs these files in this order."""
    return Step(name, [*before, *PYTEST, *SHOWN, *options, *files])


def fill(
    files: Sequence[str],
    durations: Mapping[str, Duration],
    places: Mapping[str, Sequence[str]],
    *,
    everything: bool,
    together: Sequence[Sequence[str]] = (),
    beside: Mapping[str, Sequence[str]] = {},
) -> dict[str, _Lane]:
    """Put each file into the emptiest of its lanes, longest first.

    Files that have no choice are placed before all others. A file without a duration counts as the median.

    Args:
        files: paths relative to the project.
        durations: what was measured, by path.
        places: the lanes of each folder; see `PLACES`.
        everything: count the second tier too.
        together: files that must run in one pytest.
        beside: the names of the steps of a lane; what a step takes beyond its files stands under its name.
    """
    known = [durations[file].seconds(everything=everything) for file in files if file in durations]
    median = statistics.median(known) if known else 1.0
    seconds = {file: durations[file].seconds(everything=everything) if file in durations else median for file in files}
    groups = _groups(files, together)
    choices = {group: _choices(group, places) for group in groups}
    filled = {
        name: _Lane(seconds=sum(durations.get(step, Duration()).first for step in steps))
        for name, steps in beside.items()
    }
    for group in sorted(groups, key=lambda one: (len(choices[one]), -sum(seconds[file] for file in one), one)):
        lane = min((filled.setdefault(name, _Lane()) for name in choices[group]), key=lambda one: one.seconds)
        lane.files += group
        lane.seconds += sum(seconds[file] for file in group)
    for lane in filled.values():
        lane.files.sort(key=lambda file: (-seconds[file], file))
    return filled


def _groups(files: Sequence[str], together: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    grouped = [tuple(file for file in group if file in files) for group in together]
    taken = {file for group in grouped for file in group}
    return [*(group for group in grouped if group), *((file,) for file in files if file not in taken)]


def _choices(group: Sequence[str], places: Mapping[str, Sequence[str]]) -> Sequence[str]:
    """Return the lanes that may take every file of a group."""
    of_each = [_lanes_of(file, places) for file in group]
    common = [name for name in of_each[0] if all(name in names for names in of_each)]
    if not common:
        raise ValueError(f"{BUDGET}: no lane may take all of {', '.join(group)}")
    return common


def _lanes_of(file: str, places: Mapping[str, Sequence[str]]) -> Sequence[str]:
    matching = [folder for folder in places if file.startswith(f"{folder}/")]
    return places[max(matching, key=len)] if matching else WITH_SERVERS


def capabilities(root: Path) -> list[list[str]]:
    """Return the test files of each capability that `tests/budget.toml` names; no file, no capabilities."""
    try:
        document = tomllib.loads((root / BUDGET).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    return [[f"tests/{file}" for file in entry["tests"]] for entry in document.get("capability", {}).values()]


def read_durations(root: Path) -> dict[str, Duration]:
    """Return the measured seconds of each test file and step; none where nobody has measured yet.

    Durations only balance lanes, so a file that cannot be read, as one with a conflict of Git, counts as none.
    """
    try:
        document = json.loads((root / DURATIONS).read_text(encoding="utf-8"))
        return {str(name): Duration(float(first), float(second)) for name, (first, second) in document.items()}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, AttributeError) as error:
        print(f"{DURATIONS} cannot be read, so lanes are filled by the number of files: {error}", flush=True)
        return {}


def write_durations(root: Path, measured: Mapping[str, Duration]) -> None:
    """Store the seconds of each test file and step, a line each, whole or not at all."""
    rounded = {file: [round(took.first, 1), round(took.second, 1)] for file, took in sorted(measured.items())}
    lines = [f"{json.dumps(file)}: {json.dumps(seconds)}" for file, seconds in rounded.items()]
    draft = (root / DURATIONS).with_suffix(".draft")
    draft.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    draft.replace(root / DURATIONS)
