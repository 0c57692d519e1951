"""What a command and a DAG file cost before they do anything: CPU, as a ratio to what they cannot do without."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pytest
from rich.console import Console
from rich.table import Table

from support.waiting import Deadline

CHECKOUT = Path(__file__).resolve().parents[3]
ROUNDS = int(os.environ.get("MILLRACE_BENCH_RUNS", "7"))

AIRFLOW = "import time, airflow.sdk, airflow.triggers.base"
SAY_BOTH = "print(time.process_time(), airflow_alone)"
AFTER_AIRFLOW = {
    "any DAG with an asset": "airflow.sdk.DAG('any', schedule='@daily'); airflow.sdk.Asset(name='any', uri='kafka://a/a')",
    "dags/platform.py": f"import runpy; runpy.run_path({str(CHECKOUT / 'dags' / 'platform.py')!r})",
    "dags/shop.py": f"import runpy; runpy.run_path({str(CHECKOUT / 'dags' / 'shop.py')!r})",
}


@dataclass(frozen=True, slots=True)
class Taken:
    """CPU seconds of a process from its start on, and of what it is compared with in the same round."""

    seconds: float
    beside_seconds: float
    beside: str

    @property
    def ratio(self) -> float:
        return self.seconds / self.beside_seconds


def test_starts_beside_what_they_cannot_do_without(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    environment = environment_in(tmp_path)
    one_round(environment)  # compiles
    rounds = [one_round(environment) for _ in range(ROUNDS)]
    with capsys.disabled():
        console = Console(width=130)
        console.print()
        console.print(table_of(rounds))


def environment_in(scratch: Path) -> dict[str, str]:
    """Settings and compiled modules of this run alone: what a machine has of them must not count."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return kept | {
        "PYTHONPYCACHEPREFIX": str(scratch / "compiled"),
        "MILLRACE_ROOT": str(CHECKOUT),
        "AIRFLOW_HOME": str(scratch / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{scratch / 'airflow.db'}",
    }


def one_round(environment: dict[str, str]) -> dict[str, Taken]:
    """Each start once, one after the other, so that what else the machine does meets all of them."""
    python, _ = started(environment, "-c", "pass")
    command, _ = started(environment, "-m", "millrace.cli.main", "--help")
    found = {"python -c pass": Taken(python, python, "itself"), "millrace --help": Taken(command, python, "Python")}
    for name, work in AFTER_AIRFLOW.items():
        script = f"{AIRFLOW}; airflow_alone = time.process_time(); {work}; {SAY_BOTH}"
        _, said = started(environment, "-c", script)
        with_work, alone = map(float, said.splitlines()[-1].split())
        found[f"Airflow and {name}"] = Taken(with_work, alone, "Airflow in the same process")
    return found


def started(environment: dict[str, str], *arguments: str) -> tuple[float, str]:
    """CPU seconds of a new Python and of what it waited for, and what it printed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=Deadline.COMMAND.seconds,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def table_of(rounds: list[dict[str, Taken]]) -> Table:
    """The median of the ratios, each made within one round, and how far they reach."""
    table = Table(title=f"CPU of a new process, {ROUNDS} rounds, modules compiled")
    table.add_column("process")
    for name in ("CPU s", "ratio", "least", "most"):
        table.add_column(name, justify="right")
    table.add_column("to")
    for name, first in rounds[0].items():
        ratios = [taken[name].ratio for taken in rounds]
        cells = [f"{each:.2f}" for each in (median(ratios), min(ratios), max(ratios))]
        table.add_row(name, f"{median(taken[name].seconds for taken in rounds):.3f}", *cells, first.beside)
    return table
