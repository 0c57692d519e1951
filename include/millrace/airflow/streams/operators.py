"""The operators of Millrace's DAGs. Each is a thin way into one use case, which it imports when it runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from airflow.triggers.base import StartTriggerArgs

from millrace.airflow.shared.assets import topic_asset

if TYPE_CHECKING:
    from airflow.sdk import Context

    from millrace.domain.declaration.pipeline import Notifier
    from millrace.domain.streams.control import Alarm
    from millrace.usecases.alarms.notify import Tell

NEVER_RESUMED = "never_resumed"
FIRST_LINES = 50


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

    def _start_by(self, trigger: str, *, module: str = "triggers", **names: str) -> None:
        self.start_trigger_args = StartTriggerArgs(
            trigger_cls=f"millrace.airflow.{module}.{trigger}", trigger_kwargs=names, next_method=NEVER_RESUMED
        )


class WatchWaiting(FromTrigger):
    """Holds as long as the stream is stopped, backing off or given up, and starts what is due; else is skipped.

    Args:
        stream: PIPELINE.STREAM.
        waiting: which of the three, a `domain.watch.WatchTask`.
    """

    ui_color = "#f2e8cf"

    def __init__(self, *, stream: str, waiting: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.stream = stream
        self.waiting = waiting
        self._start_by("StreamWaits", stream=stream, waiting=waiting)


class WatchRunning(FromTrigger):
    """Watches the stream's app: succeeds when it stopped as asked or is stuck, fails when it died."""

    ui_color = "#a7c957"

    def __init__(self, *, stream: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.stream = stream
        self._start_by("StreamRuns", stream=stream)


class WatchStuck(FromTrigger):
    """Holds as long as the stream is stuck: succeeds when it moves again, fails when it died; else is skipped."""

    ui_color = "#bc4749"

    def __init__(self, *, stream: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.stream = stream
        self._start_by("StreamStuck", stream=stream)


class WaitForAlarm(FromTrigger):
    """Waits until there is an alarm whose notifiers are to be called."""

    ui_color = "#f2e8cf"

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._start_by("UntoldAlarm")


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
        from millrace.usecases.alarms import notify as alarms

        platform = airflow_platform()
        age = alarms.OVERDUE_AFTER if self.only_overdue else timedelta()
        found = alarms.untold(platform, older_than=age)
        if not found and self.only_overdue:
            return
        if not found:  # an earlier try of this task died after telling, or millrace.supervise told it: red all the same
            raise AirflowFailException(
                "a breach opened an alarm that people were told of already, or that somebody has acknowledged since; "
                "see `millrace alarms list --all`"
            )
        environment = alarms.environment_of(platform.settings.root)
        notifiers = alarms.notifiers_of(
            environment,
            platform.settings.state_folder,
            lambda notifier: (
                _airflow_notifier(notifier, context)
                if notifier.needs_airflow
                else alarms.webhook_notifier(platform, notifier)
            ),
        )
        told = alarms.tell(platform, found, notifiers)
        for one in told:
            if not one.is_news:
                self.log.info("told by all notifiers now, after a retry: %s", one)
        if news := [one for one in told if one.is_news]:
            raise AirflowFailException("\n".join(map(str, news)))


def _airflow_notifier(notifier: Notifier, context: Context) -> Tell:
    """An Airflow notifier class by its import path; the alarm stands in the context as `alarm` and `exception`.

    Each call has an own instance and an own copy of the context, so that a notifier changes nothing for the next one.
    The copy is not deep: two calls at once, after one that hangs, share the task instance and the run in it.
    """
    from airflow.sdk.module_loading import import_string

    from millrace.usecases.alarms.notify import described

    def notify(alarm: Alarm) -> None:
        text = described(alarm)
        instance = import_string(notifier.kind)(**dict(notifier.arguments))
        filled = {**context, "alarm": alarm, "exception": AirflowException(text), "reason": text}
        instance._update_context(filled)
        instance.render_template_fields(filled)
        instance.notify(filled)

    return notify


@contextmanager
def _failing_at_once() -> Iterator[None]:
    """No second try for what a second try cannot better: all that Millrace says but that a server does not answer."""
    from millrace.errors import MillraceError, UnreachableError

    try:
        yield
    except UnreachableError:
        raise
    except MillraceError as error:
        raise AirflowFailException(str(error)) from error


def _announce_only(task: BaseOperator, connection: str, topics: Iterable[str]) -> None:
    """Have a task that succeeds announce no other topics: Airflow takes every outlet of it for written.

    The task that runs is a copy; the DAG keeps its outlets, and so does the asset graph.
    """
    written = {topic_asset(connection, topic).uri for topic in topics}
    task.outlets = [asset for asset in task.outlets if asset.uri in written]


class SuperviseStreams(BaseOperator):
    """Supervises every stream that anybody ever wanted anything of. Reads a declaration only to start a stream."""

    ui_color = "#a7c957"

    def execute(self, context: Context) -> None:
        """Supervise each; a stream that cannot be looked at does not keep the others from it."""
        from millrace.airflow.shared.settings import airflow_platform
        from millrace.usecases.streams.supervise import supervise, tidy

        platform = airflow_platform()
        failures = []
        for desired in platform.control().streams.all_desired():
            try:
                report = supervise(platform, desired.stream, f"dag:{context['dag'].dag_id}")
            except Exception as error:  # whatever it is, the next stream comes first
                self.log.exception("%s could not be supervised", desired.stream)
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
        from millrace.usecases.alarms.notify import environment_of
        from millrace.usecases.streams import adoption
        from millrace.usecases.streams import supervise as streams

        platform = airflow_platform()
        params = context["params"]
        user = getattr(context["dag_run"], "triggering_user_name", None)
        operators = environment_of(platform.settings.root).operators
        if operators and user not in operators:
            raise AirflowFailException(
                f"{user or 'who triggered this'} may not operate streams: the environment's operators are "
                + ", ".join(operators)
            )
        actions = {
            "start": streams.start,
            "stop": streams.stop,
            "accept-recreated": streams.accept,
            "adopt": adoption.adopt,
        }
        stream = f"{self.pipeline}.{params['stream']}"
        try:
            report = actions[params["action"]](platform, stream, f"airflow:{user or 'unknown'}", params["reason"])
        except MillraceError as error:
            raise AirflowFailException(str(error)) from error
        self.log.info("%s: %s, epoch %s. %s", report.stream, report.state, report.epoch, report.why)


class ProvisionTopics(BaseOperator):
    """Makes the pipeline's topics as declared where that is safe, and fails on what is not.

    Only a run that a person triggered creates topics; any other names in its log those that wait for that.
    A run that succeeded announces the topics that it made or changed, and no other.
    """

    ui_color = "#f4a259"

    def __init__(self, *, pipeline: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.pipeline = pipeline

    def execute(self, context: Context) -> None:
        """Plan, run what is safe, fail loudly on the rest."""
        from millrace.airflow.shared.settings import airflow_platform
        from millrace.declarations import load_pipeline
        from millrace.domain.plans.plan import Outcome
        from millrace.usecases.topics.plan import provision

        platform = airflow_platform()
        pipeline = load_pipeline(platform.settings.root, self.pipeline)
        user = getattr(context["dag_run"], "triggering_user_name", None)
        actor = f"airflow:{user}" if user else f"dag:{context['dag'].dag_id}"
        asked = context["dag_run"].run_type == "manual"  # another DAG's trigger is no person
        reason = "asked for in Airflow" if asked else "the daily look at topics"
        with _failing_at_once():
            report = provision(platform, pipeline, actor, reason, asked=asked)
        for result in report.results:
            self.log.info("%s: %s, %s", result.subject, result.action, result.outcome.value)
        if report.unasked:
            self.log.warning("%s", report.unasked)
        elif not report.results:
            self.log.info("every topic of %s is as declared", pipeline.name)
        changed = [result.subject for result in report.results if result.outcome is Outcome.DONE]
        _announce_only(self, pipeline.kafka, changed)


class LoadSource(BaseOperator):
    """Runs a source program: writes what its topic does not hold yet, and announces the topic if that was anything.

    Does not guarantee that a try which was killed after its last write is announced by the try after it.
    """

    ui_color = "#8cb369"

    def __init__(self, *, pipeline: str, source: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.pipeline = pipeline
        self.source = source

    def execute(self, context: Context) -> None:
        """Load; repeatable without doubling."""
        from millrace.airflow.shared.settings import airflow_platform
        from millrace.declarations import load_pipeline
        from millrace.wiring import load_source

        settings = airflow_platform().settings
        pipeline = load_pipeline(settings.root, self.pipeline)
        with _failing_at_once():
            report = load_source(settings, pipeline, self.source, lambda progress: self.log.info("%s", progress))
        self.log.info("%s", report)
        _announce_only(self, pipeline.kafka, [report.topic] if report.produced else [])


class AuditArchive(BaseOperator):
    """Audits every archive of a topic, keeps the evidence and fails where something is wrong."""

    ui_color = "#4d908e"

    def __init__(self, *, pipeline: str, topic: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.pipeline = pipeline
        self.topic = topic

    def execute(self, context: Context) -> None:
        """Audit as the daily turn has it; what is wrong comes first in the log."""
        from millrace.airflow.shared.settings import airflow_platform
        from millrace.declarations import load_pipeline
        from millrace.domain.archive.audits.findings import summed_up
        from millrace.usecases.archive import audits

        platform = airflow_platform()
        pipeline = load_pipeline(platform.settings.root, self.pipeline)
        (backed,) = audits.backed_topics([pipeline], self.topic)
        with _failing_at_once():
            found = [audits.audit(platform, backed, here, None) for here in audits.incarnations(platform, backed)]
        wrong = [line for one in found for line in summed_up(one.audit)]
        for line in wrong[:FIRST_LINES]:
            self.log.error("%s: %s", self.topic, line)
        for one in found:
            self.log.info("%s", audits.in_a_line(one.audit))
            self.log.info("evidence: %s", one.page)
            for text in one.failures:
                self.log.warning("%s", text)
        if not found:
            self.log.warning("there is no topic %s, and no archive of one", self.topic)
        if audits.exit_code_of([one.audit for one in found]) == 1:
            raise AirflowFailException("\n".join(wrong[:FIRST_LINES]))
        if wrong:  # partitions that nobody could look at: perhaps the next try can
            raise AirflowException("\n".join(wrong[:FIRST_LINES]))
