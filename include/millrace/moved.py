"""Former class paths that others have stored, and the classes that they name now.

Airflow keeps the paths of triggers and operators in its database, its configuration names the secrets backend, and a
site's own files import what makes DAGs and records. `millrace/__init__.py` installs this table, so a former path
imports what stands at the present one. It needs the standard library only: programs without Airflow import it too.

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
    f"{_AIRFLOW}.triggers.StreamWaits": f"{_AIRFLOW}.streams.triggers.StreamWaits",
    f"{_AIRFLOW}.triggers.StreamRuns": f"{_AIRFLOW}.streams.triggers.StreamRuns",
    f"{_AIRFLOW}.triggers.StreamStuck": f"{_AIRFLOW}.streams.triggers.StreamStuck",
    f"{_AIRFLOW}.triggers.UntoldAlarm": f"{_AIRFLOW}.alarms.triggers.UntoldAlarm",
    f"{_AIRFLOW}.group_triggers.SnapshotsTaken": f"{_AIRFLOW}.groups.triggers.SnapshotsTaken",
    f"{_AIRFLOW}.operators.WatchWaiting": f"{_AIRFLOW}.streams.operators.WatchWaiting",
    f"{_AIRFLOW}.operators.WatchRunning": f"{_AIRFLOW}.streams.operators.WatchRunning",
    f"{_AIRFLOW}.operators.WatchStuck": f"{_AIRFLOW}.streams.operators.WatchStuck",
    f"{_AIRFLOW}.operators.SuperviseStreams": f"{_AIRFLOW}.streams.operators.SuperviseStreams",
    f"{_AIRFLOW}.operators.OperateStream": f"{_AIRFLOW}.streams.operators.OperateStream",
    f"{_AIRFLOW}.operators.WaitForAlarm": f"{_AIRFLOW}.alarms.operators.WaitForAlarm",
    f"{_AIRFLOW}.operators.TellAlarms": f"{_AIRFLOW}.alarms.operators.TellAlarms",
    f"{_AIRFLOW}.operators.ProvisionTopics": f"{_AIRFLOW}.topics.operators.ProvisionTopics",
    f"{_AIRFLOW}.operators.LoadSource": f"{_AIRFLOW}.topics.operators.LoadSource",
    f"{_AIRFLOW}.operators.AuditArchive": f"{_AIRFLOW}.archive.operators.AuditArchive",
    f"{_AIRFLOW}.group_operators.TakeSnapshots": f"{_AIRFLOW}.groups.operators.TakeSnapshots",
    f"{_AIRFLOW}.group_operators.CheckGroups": f"{_AIRFLOW}.groups.operators.CheckGroups",
    f"{_AIRFLOW}.plan_operators.ConfirmPlan": f"{_AIRFLOW}.plans.operators.ConfirmPlan",
    f"{_AIRFLOW}.plan_operators.RunPlan": f"{_AIRFLOW}.plans.operators.RunPlan",
    f"{_AIRFLOW}.rewind_operators.PlanRewind": f"{_AIRFLOW}.rewind.operators.PlanRewind",
    f"{_AIRFLOW}.rewind_operators.VerifyPlan": f"{_AIRFLOW}.rewind.operators.VerifyPlan",
    f"{_AIRFLOW}.redrive_operators.PlanRedrive": f"{_AIRFLOW}.quarantine.operators.PlanRedrive",
    f"{_AIRFLOW}.quality_operators.CheckQuality": f"{_AIRFLOW}.quality.operators.CheckQuality",
    f"{_AIRFLOW}.books_dag.ReconcileBooks": f"{_AIRFLOW}.quality.books.ReconcileBooks",
    f"{_AIRFLOW}.books_dag.TriggerBooks": f"{_AIRFLOW}.quality.books.TriggerBooks",
    f"{_AIRFLOW}.retention_operators.CheckRetention": f"{_AIRFLOW}.retention.operators.CheckRetention",
    # a site's Airflow configuration and its own files
    f"{_AIRFLOW}.connections_file.ConnectionsFile": f"{_AIRFLOW}.shared.connections_file.ConnectionsFile",
    f"{_AIRFLOW}.factory.pipeline_dags": f"{_AIRFLOW}.pipeline.pipeline_dags",
    f"{_AIRFLOW}.platform_dags.platform_dags": f"{_AIRFLOW}.platform.platform_dags",
    f"{_AIRFLOW}.plugin.StreamPageLink": f"{_AIRFLOW}.shared.plugin.StreamPageLink",
    f"{_AIRFLOW}.plugin.MillracePlugin": f"{_AIRFLOW}.shared.plugin.MillracePlugin",
    "millrace.domain.sources.SourceRecord": "millrace.domain.topics.sources.SourceRecord",
    "millrace.spec.Finding": "millrace.declarations.Finding",
    "millrace.spec.InvalidDeclarationError": "millrace.declarations.InvalidDeclarationError",
    "millrace.spec.Project": "millrace.declarations.Project",
    "millrace.spec.Severity": "millrace.declarations.Severity",
    "millrace.spec.check": "millrace.declarations.check",
    "millrace.spec.json_schema": "millrace.declarations.json_schema",
    "millrace.spec.load": "millrace.declarations.load",
    "millrace.spec.load_environment": "millrace.declarations.load_environment",
    "millrace.spec.load_pipeline": "millrace.declarations.load_pipeline",
}


def install() -> None:
    """Let former paths be imported; a second call does nothing.

    The finder comes before the others: the folder of a former package may still lie there, with compiled files in it,
    and Python would take it for a package without a file.
    """
    if not any(isinstance(finder, _Former) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Former())


class _Former(MetaPathFinder, Loader):
    """Finds modules of the table, and no other; each holds the names that the table gives it."""

    modules = frozenset(path.rpartition(".")[0] for path in MOVED)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec for a former module, else nothing."""
        return ModuleSpec(fullname, self) if fullname in self.modules else None

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its names; each is imported when somebody asks for it."""

        def present(name: str) -> object:
            place = MOVED.get(f"{module.__name__}.{name}")
            if place is None:
                raise AttributeError(f"module {module.__name__!r} was moved and has no attribute {name!r}")
            target, _, attribute = place.rpartition(".")
            return getattr(importlib.import_module(target), attribute)

        vars(module)["__getattr__"] = present
