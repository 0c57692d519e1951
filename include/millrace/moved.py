"""Former paths of modules and classes that others have stored, and the present ones.

Airflow keeps the paths of triggers and operators in its database, and its configuration names the secrets backend. A
site's own files import modules that make DAGs and records. `millrace/__init__.py` installs this table, so a former
path leads to the present module. It needs the standard library only: programs without Airflow import it too.

The CHANGELOG says when the entries go.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_AIRFLOW = "millrace.airflow"
MOVED = {
    # Airflow's database
    f"{_AIRFLOW}.triggers": f"{_AIRFLOW}.streams.triggers",
    f"{_AIRFLOW}.triggers.UntoldAlarm": f"{_AIRFLOW}.alarms.triggers.UntoldAlarm",
    f"{_AIRFLOW}.group_triggers": f"{_AIRFLOW}.groups.triggers",
    f"{_AIRFLOW}.operators": f"{_AIRFLOW}.streams.operators",
    f"{_AIRFLOW}.operators.WaitForAlarm": f"{_AIRFLOW}.alarms.operators.WaitForAlarm",
    f"{_AIRFLOW}.operators.TellAlarms": f"{_AIRFLOW}.alarms.operators.TellAlarms",
    f"{_AIRFLOW}.operators.ProvisionTopics": f"{_AIRFLOW}.topics.operators.ProvisionTopics",
    f"{_AIRFLOW}.operators.LoadSource": f"{_AIRFLOW}.topics.operators.LoadSource",
    f"{_AIRFLOW}.operators.AuditArchive": f"{_AIRFLOW}.archive.operators.AuditArchive",
    f"{_AIRFLOW}.group_operators": f"{_AIRFLOW}.groups.operators",
    f"{_AIRFLOW}.plan_operators": f"{_AIRFLOW}.plans.operators",
    f"{_AIRFLOW}.rewind_operators": f"{_AIRFLOW}.rewind.operators",
    f"{_AIRFLOW}.redrive_operators": f"{_AIRFLOW}.quarantine.operators",
    f"{_AIRFLOW}.quality_operators": f"{_AIRFLOW}.quality.operators",
    f"{_AIRFLOW}.books_dag": f"{_AIRFLOW}.quality.operators",
    f"{_AIRFLOW}.books_dag.books_dag": f"{_AIRFLOW}.quality.dag.books_dag",
    f"{_AIRFLOW}.quality.books": f"{_AIRFLOW}.quality.operators",
    f"{_AIRFLOW}.quality.books.books_dag": f"{_AIRFLOW}.quality.dag.books_dag",
    f"{_AIRFLOW}.retention_operators": f"{_AIRFLOW}.retention.operators",
    # a site's Airflow configuration and its own files
    f"{_AIRFLOW}.connections_file": f"{_AIRFLOW}.shared.connections_file",
    f"{_AIRFLOW}.factory": f"{_AIRFLOW}.pipeline",
    f"{_AIRFLOW}.platform_dags": f"{_AIRFLOW}.platform",
    f"{_AIRFLOW}.plugin": f"{_AIRFLOW}.shared.plugin",
    "millrace.domain.sources": "millrace.domain.topics.sources",
    "millrace.runtime.coordinator_log": "millrace.runtime.formats.coordinator_log",
    "millrace.spec": "millrace.declarations",
}
"""Former paths of modules, and of classes that did not move with the rest of their module."""


def install() -> None:
    """Let former paths be imported; a second call does nothing.

    The finder comes before the others, because the folder of a former package may still lie there with compiled files.
    Python would take that folder for a package without a file.
    """
    if not any(isinstance(finder, _Former) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Former())


class _Former(MetaPathFinder, Loader):
    """Finds former modules, and no other; each has the names of the present one."""

    modules = frozenset(path for path in MOVED if path.rpartition(".")[0] not in MOVED)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec for a former module, else nothing."""
        return ModuleSpec(fullname, self) if fullname in self.modules else None

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its names; the present module is imported when somebody asks for one."""
        former = module.__name__

        def present(name: str) -> object:
            place = MOVED.get(f"{former}.{name}", f"{MOVED[former]}.{name}")
            target, _, attribute = place.rpartition(".")
            try:
                found = importlib.import_module(target)
            except AttributeError as error:  # `from FORMER import NAME` would call the name unknown
                raise ImportError(f"module {former!r} is {target!r} now, which fails: {error!r}") from error
            try:
                return getattr(found, attribute)
            except AttributeError as error:
                raise AttributeError(f"module {former!r} is {target!r} now, which has no {name!r}") from error

        vars(module)["__getattr__"] = present
