"""The operator that audits archives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from millrace.airflow.shared.tasks import failing_at_once

if TYPE_CHECKING:
    from airflow.sdk import Context

FIRST_LINES = 50


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
        with failing_at_once():
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
            self.log.warning("topic %s does not exist and has no archive", self.topic)
        if audits.exit_code_of([one.audit for one in found]) == 1:
            raise AirflowFailException("\n".join(wrong[:FIRST_LINES]))
        if wrong:  # partitions that nobody could look at: perhaps the next try can
            raise AirflowException("\n".join(wrong[:FIRST_LINES]))
