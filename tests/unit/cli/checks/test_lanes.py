"""Which lane each test file is in, and how durations fill the lanes."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from millrace.cli.checks.lanes import (
    AIRFLOW,
    CODE,
    DURATIONS,
    SERVERS,
    capabilities,
    fast_lanes,
    fill,
    lanes,
    read_durations,
    write_durations,
)
from millrace.cli.checks.second_try import Duration
from support.checks.budget import read_budget

CHECKOUT = Path(__file__).resolve().parents[4]
ALL = sorted(str(path.relative_to(CHECKOUT)) for path in (CHECKOUT / "tests").rglob("test_*.py"))
BOTH = {"tests/a": ("one", "two")}


def files_of(steps: list[list[str]]) -> list[str]:
    return [word for command in steps for word in command if Path(word).name.startswith("test_")]


@pytest.mark.parametrize("everything", [False, True])
def test_every_test_file_is_in_one_lane(everything: bool) -> None:
    made = lanes(CHECKOUT, everything=everything)
    commands = {name: [list(step.command) for step in steps] for name, steps in made.items()}
    assert Counter(files_of([command for lane in commands.values() for command in lane])) == Counter(ALL)
    tests = [command for lane in commands.values() for command in lane if files_of([command])]
    assert all(("--all" in command) == everything for command in tests)


def test_a_lane_starts_its_servers_once_and_airflow_is_in_one_lane_and_first() -> None:
    made = lanes(CHECKOUT, everything=False)
    for name, steps in made.items():
        with_servers = [step for step in steps if step.name.startswith("tests with servers")]
        assert len(with_servers) <= 1, name
    files = files_of([list(step.command) for step in made[AIRFLOW]])
    with_airflow = [file for file in files if file.startswith("tests/integration/airflow/")]
    assert with_airflow
    assert files[: len(with_airflow)] == sorted(with_airflow)
    for name in (SERVERS, CODE):
        assert not [
            file
            for file in files_of([list(step.command) for step in made[name]])
            if file.startswith("tests/integration/airflow/")
        ]


def test_files_of_one_budget_are_in_one_lane() -> None:
    made = lanes(CHECKOUT, everything=False)
    lane_of = {file: name for name, steps in made.items() for file in files_of([list(step.command) for step in steps])}
    budget = read_budget(CHECKOUT / "tests")
    assert [file for group in capabilities(CHECKOUT) for file in group] == [f"tests/{name}" for name in budget.by_file]
    for group in capabilities(CHECKOUT):
        assert len({lane_of[file] for file in group}) == 1, group


def test_a_fast_run_is_unit_tests_and_static_checks_without_servers() -> None:
    commands = [list(step.command) for steps in fast_lanes(CHECKOUT).values() for step in steps]
    assert Counter(files_of(commands)) == Counter(file for file in ALL if file.startswith("tests/unit/"))
    modules = {command[command.index("-m") + 1] for command in commands}
    assert modules == {"pytest", "ruff", "mypy"}


def test_the_longest_file_goes_first_and_lanes_are_filled_evenly() -> None:
    durations = {f"tests/a/test_{name}.py": Duration(float(name)) for name in (1, 2, 3, 4, 5, 9)}
    filled = fill(sorted(durations), durations, BOTH, everything=False)
    assert sorted(lane.seconds for lane in filled.values()) == [12.0, 12.0]
    assert [lane.files[0] for lane in filled.values()] == ["tests/a/test_9.py", "tests/a/test_5.py"]


def test_a_new_file_counts_as_the_median() -> None:
    durations = {
        f"tests/a/test_{name}.py": Duration(seconds) for name, seconds in (("x", 1.0), ("y", 4.0), ("z", 90.0))
    }
    filled = fill([*durations, "tests/a/test_new.py"], durations, BOTH, everything=False)
    assert sorted(lane.seconds for lane in filled.values()) == [9.0, 90.0]


def test_the_second_tier_counts_in_a_run_of_both() -> None:
    durations = {"tests/a/test_x.py": Duration(1.0, 50.0), "tests/a/test_y.py": Duration(2.0)}
    for everything, first in ((False, "tests/a/test_y.py"), (True, "tests/a/test_x.py")):
        filled = fill(sorted(durations), durations, {"tests/a": ("one",)}, everything=everything)
        assert filled["one"].files[0] == first


def test_files_that_have_no_choice_are_placed_first() -> None:
    durations = {"tests/a/test_x.py": Duration(5.0), "tests/b/test_y.py": Duration(4.0)}
    filled = fill(sorted(durations), durations, {**BOTH, "tests/b": ("one",)}, everything=False)
    assert {name: lane.files for name, lane in filled.items()} == {
        "one": ["tests/b/test_y.py"],
        "two": ["tests/a/test_x.py"],
    }


def test_files_that_belong_together_share_a_lane_and_files_that_cannot_are_named() -> None:
    durations = {f"tests/a/test_{name}.py": Duration(1.0) for name in "wxyz"}
    together = [["tests/a/test_w.py", "tests/a/test_z.py"]]
    filled = fill(sorted(durations), durations, BOTH, everything=False, together=together)
    assert sorted(len([file for file in lane.files if file in together[0]]) for lane in filled.values()) == [0, 2]
    apart = {"tests/a": ("one",), "tests/b": ("two",)}
    files = ["tests/a/test_x.py", "tests/b/test_x.py"]
    with pytest.raises(ValueError, match=r"no lane may take all of tests/a/test_x.py, tests/b/test_x.py"):
        fill(files, {}, apart, everything=False, together=[files])


def test_nobody_has_measured_yet(tmp_path: Path) -> None:
    assert read_durations(tmp_path) == {}
    filled = fill(["tests/a/test_x.py", "tests/a/test_y.py"], {}, BOTH, everything=False)
    assert [len(lane.files) for lane in filled.values()] == [1, 1]


def test_durations_are_a_line_each(tmp_path: Path) -> None:
    (tmp_path / DURATIONS).parent.mkdir()
    write_durations(tmp_path, {"tests/b.py": Duration(1.04, 2.0, tests=3), "tests/a.py": Duration(0.5)})
    text = (tmp_path / DURATIONS).read_text()
    assert text.splitlines() == ["{", '"tests/a.py": [0.5, 0.0],', '"tests/b.py": [1.0, 2.0]', "}"]
    assert json.loads(text)
    assert read_durations(tmp_path) == {"tests/a.py": Duration(0.5), "tests/b.py": Duration(1.0, 2.0)}


def test_other_steps_of_a_lane_count_too() -> None:
    durations = {"slow check": Duration(3.0), "tests/a/test_x.py": Duration(2.0), "tests/a/test_y.py": Duration(2.0)}
    files = [name for name in durations if name.startswith("tests/")]
    filled = fill(files, durations, BOTH, everything=False, beside={"one": ["slow check"]})
    assert {name: lane.files for name, lane in filled.items()} == {"one": [], "two": files}


@pytest.mark.parametrize(
    "text", ["", "<<<<<<< ours", "null", "[]", '{"a": 3}', '{"a": ["b", 1]}', '{"a": [1]}'], ids=lambda text: text
)
def test_durations_that_cannot_be_read_count_as_none_and_are_named(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / DURATIONS).parent.mkdir()
    (tmp_path / DURATIONS).write_text(text)
    assert read_durations(tmp_path) == {}
    assert "tests/durations.json cannot be read" in capsys.readouterr().out


def test_contracts_come_before_integration_and_drills_after_all_tests_whose_servers_they_kill() -> None:
    folders = ("tests/integration/airflow/", "tests/contract/", "tests/integration/", "tests/drills/")
    for steps in lanes(CHECKOUT, everything=True).values():
        files = files_of([list(step.command) for step in steps if step.name.startswith("tests with servers")])
        places = [next(place for place, folder in enumerate(folders) if file.startswith(folder)) for file in files]
        assert places == sorted(places)
