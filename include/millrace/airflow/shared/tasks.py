"""The parts that tasks of several DAGs share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException
from airflow.triggers.base import StartTriggerArgs

from millrace.airflow.shared.assets import topic_asset
from millrace.errors import MillraceError, UnreachableError

if TYPE_CHECKING:
    from airflow.sdk import Context

NEVER_RESUMED = "never_resumed"


class FromTrigger(BaseOperator):
    """A task that starts and ends in the triggerer: it needs no slot and no worker."""

    start_from_trigger = True

    def never_resumed(self, context: Context, event: object = None) -> None:
        """What a trigger's event would resume; ours end their task themselves."""

    def execute(self, context: Context) -> None:
        """Park; only where a worker runs the task after all (`dags test`)."""
        from airflow.sdk.module_loading import import_string

        arguments = self.start_trigger_args
        trigger = import_string(arguments.trigger_cls)(**arguments.trigger_kwargs)
        self.defer(trigger=trigger, method_name=NEVER_RESUMED)

    def _start_by(self, trigger: str, **names: str) -> None:
        self.start_trigger_args = StartTriggerArgs(
            trigger_cls=f"millrace.airflow.{trigger}", trigger_kwargs=names, next_method=NEVER_RESUMED
        )


@contextmanager
def failing_at_once(*, but_for: type[MillraceError] = UnreachableError) -> Iterator[None]:
    """Fail the task for good on every error of Millrace that a retry cannot better.

    Args:
        but_for: an error that a retry may better, besides that of a server that does not answer.
    """
    try:
        yield
    except (UnreachableError, but_for):
        raise
    except MillraceError as error:
        raise AirflowFailException(str(error)) from error


def announce_only(task: BaseOperator, connection: str, topics: Iterable[str]) -> None:
    """Have a task that succeeds announce no other topics: Airflow takes every outlet of it for written.

    The task that runs is a copy; the DAG keeps its outlets, and so does the asset graph.
    """
    written = {topic_asset(connection, topic).uri for topic in topics}
    task.outlets = [asset for asset in task.outlets if asset.uri in written]
