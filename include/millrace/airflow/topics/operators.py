"""Operators that provision topics and load sources."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from millrace.airflow.shared.tasks import announce_only, failing_at_once

if TYPE_CHECKING:
    from airflow.sdk import Context


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
        reason = "requested in Airflow" if asked else "the daily check of topics"
        with failing_at_once():
            report = provision(platform, pipeline, actor, reason, asked=asked)
        for result in report.results:
            self.log.info("%s: %s, %s", result.subject, result.action, result.outcome.value)
        if report.unasked:
            self.log.warning("%s", report.unasked)
        elif not report.results:
            self.log.info("every topic of %s is as declared", pipeline.name)
        changed = [result.subject for result in report.results if result.outcome is Outcome.DONE]
        announce_only(self, pipeline.kafka, changed)


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
        from millrace.wiring.sources import load_source

        settings = airflow_platform().settings
        pipeline = load_pipeline(settings.root, self.pipeline)
        with failing_at_once():
            report = load_source(settings, pipeline, self.source, lambda progress: self.log.info("%s", progress))
        self.log.info("%s", report)
        announce_only(self, pipeline.kafka, [report.topic] if report.produced else [])
