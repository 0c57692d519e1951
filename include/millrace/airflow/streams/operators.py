"""Operators that watch, supervise and operate streams."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from millrace.airflow.shared.tasks import FromTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context


class WatchWaiting(FromTrigger):
    """Holds as long as the stream is stopped, backing off or given up, and starts what is due; else is skipped.

    Args:
        stream: PIPELINE.STREAM.
        waiting: which of the three, a `domain.streams.watch.WatchTask`.
    """

    ui_color = "#f2e8cf"

    def __init__(self, *, stream: str, waiting: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.stream = stream
        self.waiting = waiting
        self._start_by("streams.triggers.StreamWaits", stream=stream, waiting=waiting)


class WatchRunning(FromTrigger):
    """Watches the stream's app: succeeds when it stopped as asked or is stuck, fails when it died."""

    ui_color = "#a7c957"

    def __init__(self, *, stream: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.stream = stream
        self._start_by("streams.triggers.StreamRuns", stream=stream)


class WatchStuck(FromTrigger):
    """Holds as long as the stream is stuck: succeeds when it moves again, fails when it died; else is skipped."""

    ui_color = "#bc4749"

    def __init__(self, *, stream: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.stream = stream
        self._start_by("streams.triggers.StreamStuck", stream=stream)


class SuperviseStreams(BaseOperator):
    """Supervises every stream that anybody ever wanted anything of. Reads a declaration only to start a stream."""

    ui_color = "#a7c957"

    def execute(self, context: Context) -> None:
        """Supervise each; a stream that cannot be looked at does not keep the others from it."""
        from millrace.airflow.shared.settings import airflow_platform
        from millrace.usecases.streams.supervise import supervise, tidy

        platform = airflow_platform()
        failures = []
        for desired in platform.control.streams.all_desired():
            try:
                report = supervise(platform, desired.stream, f"dag:{context['dag'].dag_id}")
            except Exception as error:  # whatever it is, the next stream comes first
                self.log.exception("the supervision of %s failed", desired.stream)
                failures.append(f"{desired.stream}: {error}")
                continue
            self.log.info("%s: %s, epoch %s. %s", report.stream, report.state, report.epoch, report.why)
        tidy(platform, datetime.now(UTC))
        if failures:
            raise AirflowException("\n".join(failures))


class OperateStream(BaseOperator):
    """Does what the form says, in the name of who filled it in."""

    ui_color = "#6a994e"

    def __init__(self, *, pipeline: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.pipeline = pipeline

    def execute(self, context: Context) -> None:
        """Start, stop, accept or adopt; refused for whom the environment does not name as operator."""
        from millrace.airflow.shared.settings import airflow_platform
        from millrace.errors import MillraceError
        from millrace.usecases.declaration.environment import environment_of
        from millrace.usecases.streams import adoption, supervise

        platform = airflow_platform()
        params = context["params"]
        user = getattr(context["dag_run"], "triggering_user_name", None)
        operators = environment_of(platform.settings.root).operators
        if operators and user not in operators:
            raise AirflowFailException(
                f"{user or 'an unknown user'} may not operate streams: the environment's operators are "
                + ", ".join(operators)
            )
        actions = {
            "start": supervise.start,
            "stop": supervise.stop,
            "accept-recreated": supervise.accept,
            "adopt": adoption.adopt,
        }
        stream = f"{self.pipeline}.{params['stream']}"
        try:
            report = actions[params["action"]](platform, stream, f"airflow:{user or 'unknown'}", params["reason"])
        except MillraceError as error:
            raise AirflowFailException(str(error)) from error
        self.log.info("%s: %s, epoch %s. %s", report.stream, report.state, report.epoch, report.why)
