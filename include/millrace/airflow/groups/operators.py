"""The operators of the DAGs that look at consumer groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from millrace.airflow.shared.tasks import FromTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context


class TakeSnapshots(FromTrigger):
    """Takes a snapshot of every cluster each minute until the hour is over; fails where none could be taken."""

    ui_color = "#f2e8cf"

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._start_by("groups.triggers.SnapshotsTaken")


class CheckGroups(BaseOperator):
    """Fails where a declared reader is stuck, or something new may go wrong with its group."""

    ui_color = "#4d908e"

    def execute(self, context: Context) -> None:
        """What is wrong comes first in the log; then what was known, and a line a group."""
        from millrace.airflow.shared.settings import airflow_platform
        from millrace.usecases.groups.check import check

        found = check(airflow_platform())
        for line in (*found.wrong, *found.unseen):
            self.log.error("%s", line)
        for line in found.known:
            self.log.warning("known: %s", line)
        for line in found.told:
            self.log.info("%s", line)
        if found.wrong:
            raise AirflowFailException("\n".join((*found.wrong, *found.unseen)))
        if found.unseen:  # the next try may see a new one
            raise AirflowException("\n".join(found.unseen))
