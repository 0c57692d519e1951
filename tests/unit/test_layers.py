"""The rule of the folders, `LAYER/NOUN/PART.py`, and who may import whom: held by reading the tree and the imports.

docs/architecture.md explains both; `./millrace test tests/unit/test_layers.py` prints the files of each folder.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path, PurePosixPath

import pytest

from support.waiting import Deadline

CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGE = CHECKOUT / "include" / "millrace"
TESTS = CHECKOUT / "tests"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


NOUNS = _words(
    "declaration topics retention groups streams sinks formats archive rewind quarantine quality plans "
    "alarms jobs windows replay releases metrics activity example"
)
MOST_FILES = 12
"""More modules in one folder are too many to look through; `__init__.py` does not count."""
MANY_FILES = {"declarations", "adapters/control/migrations/versions", "spark"}
"""One file for each section of a declaration, for each version of the control database, and for each app of a site."""

FOLDERS: dict[str, frozenset[str]] = {
    "domain": NOUNS | _words("archive/audits archive/proof archive/restore chain retention/forecasts sinks/dataset"),
    "usecases": NOUNS,
    "airflow": NOUNS | {"shared"},
    "cli": NOUNS | {"checks", "stack", "terminal"},
    "web": NOUNS | {"static", "templates"},
    "declarations": frozenset(),
    "ports": frozenset({"control"}),
    "wiring": frozenset(),
    "adapters": _words(
        "airflow alarms apps apps/jobs apps/runners archive archive/audits chain control control/database "
        "control/forecasts control/migrations control/migrations/versions control/quality control/snapshots "
        "kafka kafka/cluster kafka/cluster/schemas kafka/producers kafka/settings postgres quality s3 sinks "
        "sinks/kafka sinks/postgres sinks/s3"
    ),
    "runtime": _words("backup formats formats/json jobs life stream stream/batch"),
    "embedded": _words("compose jars servers"),
}
"""The folders of each layer. A folder is made with its first file: most nouns have none in most layers."""
FLAT: dict[str, frozenset[str]] = {
    "ports": _words("archive groups jobs kafka logs objects platform quality runner sink_readers sinks"),
    "airflow": frozenset({"pipeline", "platform"}),
    "cli": frozenset({"main"}),
    "runtime": frozenset({"main"}),
    "web": frozenset({"app", "chart", "guard", "host", "rendering"}),
    "embedded": _words(
        "component credentials doctor environment layout locking ports processes progress stack supervisor watchdog"
    ),
}
"""The modules that lie in a layer itself: those that know all of its nouns, or none."""
BESIDE_LAYERS = frozenset({"errors", "moved", "reader", "settings", "templates"})

OF_TESTS = NOUNS | {"checks", "stack"}
FOLDERS_OF_TESTS: dict[str, frozenset[str]] = {
    **{f"unit/{layer}": folders for layer, folders in FOLDERS.items()},
    "unit/guides": frozenset(),
    "unit/project": frozenset(),
    "unit/support": frozenset(),
    **{f"contract/{servers}": OF_TESTS | {"archive/store", "archive/tee"} for servers in ("host", "kafka", "mixed")},
    **{f"contract/{servers}": OF_TESTS | {"archive/store", "archive/tee"} for servers in ("postgres", "s3")},
    "dags": OF_TESTS,
    "spark": OF_TESTS,
    "drills": OF_TESTS,
    "bench": OF_TESTS,
    "integration": OF_TESTS | {"airflow", "airflow/ui"},
    "support": OF_TESTS | {"archive/audits", "archive/restores", "documents", "drills", "fakes", "prose", "ui"},
}
FLAT_TESTS: dict[str, frozenset[str]] = {
    "unit/embedded": _words(
        "test_another_layout test_doctor_connections test_executor_check test_outage_check test_supervisor"
    ),
    "contract/mixed": frozenset({"conftest"}),
    "dags": frozenset({"conftest"}),
    "drills": frozenset({"conftest"}),
    "bench": _words("accounting conftest limits produce scan workload"),
    "support": _words("begun commands crash_walks declarations disturbed overlays same_thread waiting"),
}

# A room is a layer, or a module beside the layers. It may import itself, these rooms, and (but for domain and reader)
# libraries.
BELOW_ALL = {"domain", "errors", "settings"}
ALLOWED: dict[str, set[str]] = {
    "domain": set(),
    "errors": set(),
    "settings": {"errors"},
    "templates": {"domain"},
    "reader": {"domain"},  # other teams import it beside whatever client they have
    "ports": BELOW_ALL,
    "declarations": BELOW_ALL,
    "adapters": BELOW_ALL | {"ports"},
    "usecases": BELOW_ALL | {"declarations", "ports", "templates"},
    "wiring": BELOW_ALL | {"declarations", "ports", "adapters", "usecases"},
    "embedded": BELOW_ALL | {"declarations", "ports", "adapters", "usecases", "wiring", "airflow"},
    "runtime": BELOW_ALL | {"declarations", "ports", "adapters", "wiring"},
    "web": BELOW_ALL | {"declarations", "ports", "usecases", "templates"},
    "airflow": BELOW_ALL | {"declarations", "ports", "usecases", "wiring", "web"},  # `web` at the first page only
    "cli": BELOW_ALL | {"declarations", "ports", "usecases", "wiring", "embedded", "airflow"},  # names alone
}
OF_THE_PACKAGE = {"__version__", "LAYOUT", "LAYOUT_VARIABLE", "ROOT_VARIABLE"}
"""Names of `millrace` itself, which every room may import."""
NAMES_ALONE = ("millrace.airflow.shared.names", "millrace.airflow.shared.trim")
"""Modules of `airflow` that import nothing of Airflow: `cli` and `embedded` may import these, and no other."""
ONLY_STANDARD_LIBRARY = {"domain", "reader"}
HEAVY = {"pyspark": {"runtime"}, "airflow": {"airflow"}, "great_expectations": {"adapters"}, "pandas": {"runtime"}}


def misplaced(root: Path, folders: dict[str, frozenset[str]], flat: dict[str, frozenset[str]]) -> Iterator[str]:
    """Say what breaks the rule below `root`, by folder.

    Args:
        root: the package, or the tests.
        folders: the folders that may be, by layer.
        flat: the modules that may lie in a layer itself, by layer; a layer without folders takes any.
    """
    for folder, names in sorted(tree(root).items()):
        layer = max((name for name in folders if PurePosixPath(folder).is_relative_to(name)), key=len, default=None)
        if layer is None:
            if folder not in {"", "contract", "unit"}:
                yield f"{folder}: is no layer"
            continue
        inside = PurePosixPath(folder).relative_to(layer).as_posix()
        if inside != "." and inside not in folders[layer]:
            yield f"{folder}: {layer} has no such folder; its folders are {', '.join(sorted(folders[layer]))}"
        takes_any = not folders[layer] or layer in MANY_FILES
        stray = frozenset() if takes_any else names - flat.get(layer, frozenset())
        if inside == "." and stray:
            yield f"{folder}: {', '.join(sorted(stray))} lies flat in its layer"
        yield from misnamed(folder, names)


def misnamed(folder: str, names: frozenset[str]) -> Iterator[str]:
    """Say which of a folder's modules are too many, or repeat in their names what a folder says."""
    if len(names) > MOST_FILES and folder not in MANY_FILES:
        yield f"{folder}: has {len(names)} files, more than {MOST_FILES}"
    if folder in MANY_FILES:
        return
    own = PurePosixPath(folder).name
    plain = {name: name.removeprefix("test_").removeprefix("bench_") for name in names}
    for name, word in plain.items():
        if word == own or word.startswith((f"{own}_", f"{own.removesuffix('s')}_")):
            yield f"{folder}: {name} repeats its folder's name"
    prefixes = Counter(word.partition("_")[0] for word in plain.values())
    yield from (
        f"{folder}: {count} files begin with {word}: they are a folder" for word, count in prefixes.items() if count > 2
    )


def tree(root: Path) -> dict[str, frozenset[str]]:
    """Return the modules of each folder below `root`, without `__init__`; folders by their path from there."""
    found: dict[str, set[str]] = {}
    for path in root.rglob("*.py"):
        names = found.setdefault(path.parent.relative_to(root).as_posix().removeprefix("."), set())
        if path.stem != "__init__":
            names.add(path.stem)
    return {folder: frozenset(names) for folder, names in found.items()}


def test_every_file_lies_in_the_folder_of_its_noun(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print()
        for line in counted(PACKAGE, FOLDERS):
            print(line)
    assert list(misplaced(PACKAGE, FOLDERS, FLAT)) == []
    assert tree(PACKAGE)[""] == BESIDE_LAYERS


def test_tests_lie_in_the_folders_of_what_they_test() -> None:
    assert list(misplaced(TESTS, FOLDERS_OF_TESTS, FLAT_TESTS)) == []
    assert tree(TESTS)["unit"] == {"conftest", "test_layers"}
    assert tree(TESTS)["contract"] == tree(TESTS)[""] == {"conftest"}


def test_a_sites_own_tests_may_lie_beside_ours(tmp_path: Path) -> None:
    for number in range(MOST_FILES + 1):  # as `spec new` writes them
        made(tmp_path / "spark" / f"test_pipeline_{number}_events.py")
    assert list(misplaced(tmp_path, FOLDERS_OF_TESTS, FLAT_TESTS)) == []


def counted(root: Path, folders: dict[str, frozenset[str]]) -> Iterator[str]:
    """Return a line a layer: how many files each of its folders has."""
    there = tree(root)
    for layer in folders:
        inside = {folder: names for folder, names in there.items() if PurePosixPath(folder).is_relative_to(layer)}
        parts = (f"{folder.removeprefix(layer).strip('/') or '.'} {len(names)}" for folder, names in inside.items())
        yield f"{layer} {sum(map(len, inside.values()))}: {', '.join(sorted(parts))}"


@pytest.mark.parametrize(
    ("file", "told"),
    [
        ("domain/groups.py", "domain: groups lies flat in its layer"),
        ("adapters/kafka_topics.py", "adapters: kafka_topics lies flat in its layer"),
        ("cli/active.py", "cli: active lies flat in its layer"),
        ("embedded/kafka.py", "embedded: kafka lies flat in its layer"),
        ("usecases/utilities/text.py", "usecases/utilities: usecases has no such folder"),
        ("domain/archive/repairs/plan.py", "domain/archive/repairs: domain has no such folder"),
        ("helpers/text.py", "helpers: is no layer"),
        ("helpers/__init__.py", "helpers: is no layer"),
        ("cli/groups/groups.py", "cli/groups: groups repeats its folder's name"),
        ("cli/groups/group_text.py", "cli/groups: group_text repeats its folder's name"),
        ("domain/retention/forecast_errors.py", "domain/retention: 3 files begin with forecast"),
        ("domain/retention/one_more.py", "domain/retention: has 13 files"),
    ],
)
def test_a_file_in_the_wrong_place_is_named(tmp_path: Path, file: str, told: str) -> None:
    for name in ("forecast_a", "forecast_b", *(f"{letter}_rest" for letter in "abcdefghij")):
        made(tmp_path / "domain" / "retention" / f"{name}.py")
    assert list(misplaced(tmp_path, FOLDERS, FLAT)) == []
    made(tmp_path / file)
    assert any(line.startswith(told) for line in misplaced(tmp_path, FOLDERS, FLAT))


def made(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            if node.module.partition(".")[0] == "millrace":
                yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)
            else:
                yield node.module, node.lineno


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_room_imports_only_what_stands_below_it(path: Path) -> None:
    own = room(path)
    wrong = []
    for name, line in imports(path):
        top, _, rest = name.partition(".")
        if top == "millrace" and rest:
            target = rest.partition(".")[0]
            if target not in {own, *OF_THE_PACKAGE, *ALLOWED[own]}:
                wrong.append(f"line {line}: {name}")
            if target == "airflow" and own in {"cli", "embedded"} and not name.startswith(NAMES_ALONE):
                wrong.append(f"line {line}: {name} is not one of {' or '.join(NAMES_ALONE)}")
        elif own in ONLY_STANDARD_LIBRARY and top not in sys.stdlib_module_names:
            wrong.append(f"line {line}: {name} is not the standard library")
        elif top in HEAVY and own not in HEAVY[top]:
            wrong.append(f"line {line}: {name} belongs to {HEAVY[top] or 'no room yet'}")
    assert not wrong


def test_the_wiring_starts_without_the_ports_that_it_only_names() -> None:
    script = (
        "import sys, millrace.wiring\nprint(sorted(name for name in sys.modules if name.startswith('millrace.ports.')))"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=Deadline.COMMAND.seconds
    )
    assert found.stdout.strip() == "[]"


def test_layers_import_in_one_direction() -> None:
    order = list(TopologicalSorter(ALLOWED).static_order())
    assert order.index("usecases") < order.index("wiring") < order.index("cli")


def circles(imported: dict[str, set[str]]) -> list[list[str]]:
    """Return the modules that import each other, by way of others too; one circle at a time is found.

    Args:
        imported: the modules that each module imports, anywhere in its text.
    """
    try:
        TopologicalSorter(imported).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return [found]
    return []


def imported_modules(root: Path) -> dict[str, set[str]]:
    """Return the modules below `root` with those that each imports: at its top, in functions and for types."""
    paths = {module_name(path, root): path for path in root.rglob("*.py")}
    found: dict[str, set[str]] = {}
    for own, path in paths.items():
        names = {name for name, _ in imports(path)}
        found[own] = {name if name in paths else name.rpartition(".")[0] for name in names} & set(paths) - {own}
    return found


def module_name(path: Path, root: Path) -> str:
    return ".".join((root.name, *path.relative_to(root).with_suffix("").parts)).removesuffix(".__init__")


def test_no_modules_import_each_other() -> None:
    assert circles(imported_modules(PACKAGE)) == []


def test_a_circle_is_found_in_functions_and_types_too(tmp_path: Path) -> None:
    root = tmp_path / "millrace"
    root.mkdir()
    (root / "one.py").write_text("def f():\n    from millrace.two import g\n", encoding="utf-8")
    (root / "two.py").write_text("from millrace import three\n", encoding="utf-8")
    (root / "three.py").write_text("if TYPE_CHECKING:\n    import millrace.one\n", encoding="utf-8")
    (root / "four.py").write_text("from millrace.one import f\n", encoding="utf-8")
    assert [set(circle) for circle in circles(imported_modules(root))] == [
        {"millrace.one", "millrace.two", "millrace.three"}
    ]
    (root / "three.py").write_text("", encoding="utf-8")
    assert circles(imported_modules(root)) == []


def test_the_command_line_and_declarations_start_without_heavy_imports() -> None:
    script = (
        "import sys, millrace.cli.main, millrace.declarations\n"
        f"print(sorted(set(sys.modules) & {set(HEAVY) | {'pyarrow', 'sqlalchemy', 'boto3'}!r}))"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=Deadline.COMMAND.seconds
    )
    assert found.stdout.strip() == "[]"
