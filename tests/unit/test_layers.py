"""Who may import whom: the house's walls, held by reading the imports."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.waiting import Deadline

PACKAGE = Path(__file__).resolve().parents[2] / "include" / "millrace"

# A room may import itself, these rooms, and (but for domain and reader) libraries. `top` is what stands beside the
# folders.
TOP = {"errors", "settings", "ports", "wiring", "reader"}
BELOW_ALL = {"domain", "errors", "settings"}
ALLOWED: dict[str, set[str]] = {
    "domain": set(),
    "errors": set(),
    "settings": {"errors"},
    "reader": {"domain"},  # other teams import it beside whatever client they have
    "ports": {"domain", "errors"},
    "declarations": BELOW_ALL,
    "adapters": BELOW_ALL | {"ports"},
    "usecases": BELOW_ALL | {"declarations", "ports", "wiring"},
    "wiring": BELOW_ALL | {"declarations", "ports", "adapters", "usecases"},
    # `airflow.trim` and `airflow.names` import nothing of Airflow: they only know names of ours.
    "embedded": BELOW_ALL | {"declarations", "ports", "adapters", "usecases", "wiring", "airflow"},
    "runtime": BELOW_ALL | {"declarations", "ports", "adapters", "wiring"},
    "web": BELOW_ALL | {"declarations", "ports", "usecases", "wiring"},
    "airflow": BELOW_ALL | {"declarations", "ports", "usecases", "wiring", "web"},  # `web` at the first page only
    "cli": BELOW_ALL | {"declarations", "ports", "usecases", "wiring", "embedded", "airflow"},  # `airflow.names` alone
}
ONLY_STANDARD_LIBRARY = {"domain", "reader"}
HEAVY = {"pyspark": {"runtime"}, "airflow": {"airflow"}, "great_expectations": {"adapters"}, "pandas": {"runtime"}}


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            if node.module == "millrace":
                yield from ((f"millrace.{alias.name}", node.lineno) for alias in node.names)
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
            if target not in {own, "__version__"} and target not in ALLOWED[own]:
                wrong.append(f"line {line}: {name}")
        elif own in ONLY_STANDARD_LIBRARY and top not in sys.stdlib_module_names:
            wrong.append(f"line {line}: {name} is not the standard library")
        elif top in HEAVY and own not in HEAVY[top]:
            wrong.append(f"line {line}: {name} belongs to {HEAVY[top] or 'no room yet'}")
    assert not wrong


def test_the_command_line_and_declarations_start_without_heavy_imports() -> None:
    script = (
        "import sys, millrace.cli.main, millrace.declarations\n"
        f"print(sorted(set(sys.modules) & {set(HEAVY) | {'pyarrow', 'sqlalchemy', 'boto3'}!r}))"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=Deadline.COMMAND.seconds
    )
    assert found.stdout.strip() == "[]"
