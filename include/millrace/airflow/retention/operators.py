"""The operator of the DAG that looks at what topics keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from millrace.airflow.shared import names

if TYPE_CHECKING:
    from airflow.sdk import Context

    from millrace.domain.declaration.pipeline import Pipeline
    from millrace.ports.platform import Platform


class CheckRetention(BaseOperator):
    """Ends the holds that are over, forecasts topics once a day, and holds topics and readers against their limits.

    Fails where a hold waits for a reader, a disk is newly expected to be full soon, a reader is about to lose
    something, or a topic newly breaks a bound. One task for all of it: a worker's start costs more than each. A part
    that cannot be done keeps none of the others from being done.

    Args:
        pipeline: whose topics they are.
    """

    ui_color = "#4d908e"

    def __init__(self, *, pipeline: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.pipeline = pipeline

    def execute(self, context: Context) -> None:
        """What is wrong comes first in the log of each part; then what was known, and the tables."""
        from millrace.airflow.shared.settings import airflow_platform
        from millrace.declarations import load_pipeline
        from millrace.errors import MillraceError

        platform = airflow_platform()
        pipeline = load_pipeline(platform.settings.root, self.pipeline)
        wrong: list[str] = []
        failed: list[MillraceError] = []
        for part in (self._end_holds, self._forecast, self._check):
            try:
                wrong += part(platform, pipeline)
            except MillraceError as error:
                self.log.error("%s", error)
                failed.append(error)
        if wrong:
            raise AirflowFailException("\n".join((*wrong, *map(str, failed))))
        if failed:  # a server that is away: the next try may reach it
            raise failed[0]

    def _end_holds(self, platform: Platform, pipeline: Pipeline) -> list[str]:
        from millrace.usecases.retention.holds import end_due, overdue

        actor = f"dag:{names.retention(pipeline)}"
        lines = end_due(platform, pipeline.kafka, pipeline.topics, actor=actor)
        for line in lines:
            self.log.info("%s", line)
        return lines if overdue(platform, pipeline.kafka, pipeline.topics) else []

    def _forecast(self, platform: Platform, pipeline: Pipeline) -> list[str]:
        from millrace.usecases.retention.growth import forecast_lines, foresee

        found = foresee(platform, pipeline)
        for line in found.new:
            self.log.error("%s", line)
        for line in found.known:
            self.log.warning("known: %s", line)
        mine = {topic.name for topic in pipeline.topics}
        for line in forecast_lines({name: one for name, one in found.topics.items() if name in mine}):
            self.log.info("%s", line)
        for disk in found.disks:
            self.log.info("%s", disk)
        return list(found.new)

    def _check(self, platform: Platform, pipeline: Pipeline) -> list[str]:
        from millrace.usecases.retention.check import check

        found = check(platform, pipeline)
        for line in found.wrong:
            self.log.error("%s", line)
        for line in found.known:
            self.log.warning("%s", line)
        for line in found.told:
            self.log.info("%s", line)
        return list(found.wrong)
