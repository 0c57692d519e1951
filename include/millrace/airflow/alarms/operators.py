"""Operators that wait for alarms and notify people of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from millrace.airflow.shared.tasks import FromTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

    from millrace.domain.alarms.alarm import Alarm
    from millrace.domain.declaration.pipeline import Notifier
    from millrace.usecases.alarms.notifiers import Tell


class WaitForAlarm(FromTrigger):
    """Waits until there is an alarm whose notifiers are to be called."""

    ui_color = "#f2e8cf"

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._start_by("alarms.triggers.UntoldAlarm")


class TellAlarms(BaseOperator):
    """Calls the environment's notifiers for each alarm that is due, then fails: a breach is a red run.

    Succeeds where all it did was to try notifiers again that had failed before, and all delivered.

    Args:
        only_overdue: tell only alarms that the DAG `millrace.alarms` should have told long ago.
    """

    ui_color = "#bc4749"

    def __init__(self, *, only_overdue: bool = False, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.only_overdue = only_overdue

    def execute(self, context: Context) -> None:
        """Call the notifiers, record what came of it, and fail if anything was new or could not be delivered."""
        from datetime import timedelta

        from millrace.airflow.shared.settings import airflow_platform
        from millrace.usecases.alarms.notifiers import notifiers_of, webhook_notifier
        from millrace.usecases.alarms.notify import OVERDUE_AFTER, tell, untold
        from millrace.usecases.declaration.environment import environment_of

        platform = airflow_platform()
        age = OVERDUE_AFTER if self.only_overdue else timedelta()
        found = untold(platform, older_than=age)
        if not found and self.only_overdue:
            return
        if not found:  # an earlier try of this task died after telling, or millrace.supervise told it: red all the same
            raise AirflowFailException(
                "the alarm that was due is already delivered or acknowledged: run `millrace alarms list --all`"
            )
        environment = environment_of(platform.settings.root)
        notifiers = notifiers_of(
            environment,
            platform.settings.state_folder,
            lambda notifier: (
                _airflow_notifier(notifier, context) if notifier.needs_airflow else webhook_notifier(platform, notifier)
            ),
        )
        told = tell(platform, found, notifiers)
        for one in told:
            if not one.is_news:
                self.log.info("delivered by all notifiers after a retry: %s", one)
        if news := [one for one in told if one.is_news]:
            raise AirflowFailException("\n".join(map(str, news)))


def _airflow_notifier(notifier: Notifier, context: Context) -> Tell:
    """An Airflow notifier class by its import path; the alarm stands in the context as `alarm` and `exception`.

    Each call has an own instance and an own copy of the context, so that a notifier changes nothing for the next one.
    The copy is not deep: two calls at once, after one that hangs, share the task instance and the run in it.
    """
    from airflow.sdk.module_loading import import_string

    from millrace.usecases.alarms.notifiers import described

    def notify(alarm: Alarm) -> None:
        text = described(alarm)
        instance = import_string(notifier.kind)(**dict(notifier.arguments))
        filled = {**context, "alarm": alarm, "exception": AirflowException(text), "reason": text}
        instance._update_context(filled)
        instance.render_template_fields(filled)
        instance.notify(filled)

    return notify
