"""The operators of the DAGs that look at what topics keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from millrace.airflow import names

if TYPE_CHECKING:
    from airflow.sdk import Context


class EndHolds(BaseOperator):
    """Ends the holds of topics whose time is over; fails where one waits for a reader.

    Args:
        pipeline: whose topics they are.
    """

    ui_color = "#f2e8cf"

    def __init__(self, *, pipeline: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.pipeline = pipeline

    def execute(self, context: Context) -> None:
        """A line a hold."""
        from millrace.airflow.settings import airflow_platform
        from millrace.spec import load_pipeline
        from millrace.usecases.holds import end_due, overdue

        platform = airflow_platform()
        pipeline = load_pipeline(platform.settings.root, self.pipeline)
        actor = f"dag:{names.retention(pipeline)}"
        lines = end_due(platform, pipeline.kafka, pipeline.topics, actor=actor)
        for line in lines:
            self.log.info("%s", line)
        if overdue(platform, pipeline.kafka, pipeline.topics):
            raise AirflowFailException("\n".join(lines))


class ForecastTopics(BaseOperator):
    """Forecasts the topics of the pipeline's cluster once a day; fails where a disk is newly expected to be full soon.

    Args:
        pipeline: whose cluster it is.
    """

    ui_color = "#f2e8cf"

    def __init__(self, *, pipeline: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.pipeline = pipeline

    def execute(self, context: Context) -> None:
        """A line a topic of the pipeline, and one a disk."""
        from millrace.airflow.settings import airflow_platform
        from millrace.spec import load_pipeline
        from millrace.usecases.growth import forecast_lines, foresee

        platform = airflow_platform()
        pipeline = load_pipeline(platform.settings.root, self.pipeline)
        found = foresee(platform, pipeline)
        for line in (*found.new, *found.known):
            self.log.warning("%s", line)
        mine = {topic.name for topic in pipeline.topics}
        for line in forecast_lines({name: one for name, one in found.topics.items() if name in mine}):
            self.log.info("%s", line)
        for disk in found.disks:
            self.log.info("%s", disk)
        if found.new:
            raise AirflowFailException("\n".join(found.new))


class CheckRetention(BaseOperator):
    """Fails where a reader of the pipeline's topics is about to lose something, or a topic newly breaks a bound.

    Args:
        pipeline: whose topics they are.
    """

    ui_color = "#4d908e"

    def __init__(self, *, pipeline: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.pipeline = pipeline

    def execute(self, context: Context) -> None:
        """What is wrong comes first in the log; then what was known, and the tables."""
        from millrace.airflow.settings import airflow_platform
        from millrace.spec import load_pipeline
        from millrace.usecases.retention import check

        platform = airflow_platform()
        found = check(platform, load_pipeline(platform.settings.root, self.pipeline))
        for line in found.wrong:
            self.log.error("%s", line)
        for line in found.known:
            self.log.warning("%s", line)
        for line in found.told:
            self.log.info("%s", line)
        if found.wrong:
            raise AirflowFailException("\n".join(found.wrong))
