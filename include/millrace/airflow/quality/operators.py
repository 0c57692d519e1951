"""The operator of the DAG that checks the quality of what a stream wrote."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from millrace.airflow.shared import names

if TYPE_CHECKING:
    from airflow.sdk import Context

    from millrace.usecases.quality.check import Checked

COUNTS = "counts"


class CheckQuality(BaseOperator):
    """Holds a stream's table against its rules.

    Fails where a rule of severity fail is broken or could not be tried, and is skipped where there were no rows. Its
    XCom `counts` holds numbers alone; its log names rules, counts and sources, never a value of a row.

    Args:
        pipeline: whose stream it is.
        stream: its name there.
    """

    ui_color = "#577590"

    def __init__(self, *, pipeline: str, stream: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.pipeline = pipeline
        self.stream = stream

    def execute(self, context: Context) -> None:
        """What is wrong comes first in the log; then what is told, and each rule."""
        from millrace.airflow.shared.settings import airflow_platform
        from millrace.declarations import load_pipeline
        from millrace.domain.quality.results import Verdict
        from millrace.usecases.quality import check as quality

        platform = airflow_platform()
        pipeline = load_pipeline(platform.settings.root, self.pipeline)
        stream = pipeline.stream(self.stream)
        actor = f"dag:{names.quality(stream)}"
        done = quality.check_on(platform, pipeline, stream, actor=actor, window=_window(context))
        for checked in done:
            self._tell(checked)
        context["ti"].xcom_push(key=COUNTS, value=counts_of(done[-1]))
        found, verdict = done[-1].check, quality.verdict_on(done)
        if verdict in (Verdict.FAILED, Verdict.ERROR):
            lines = [f"nothing could be checked: {found.problem}"] if found.problem else list(map(str, found.red))
            raise AirflowFailException("\n".join(lines))
        if verdict is Verdict.EMPTY:
            raise AirflowSkipException("there were no rows: nothing was checked, and nothing is proven")

    def _tell(self, checked: Checked) -> None:
        from millrace.domain.formats.durations import roughly

        self.log.info("%s", checked.check)
        for line in checked.new:
            self.log.error("%s", line)
        for line in (*checked.known, *checked.warned):
            self.log.warning("%s", line)
        for result in checked.check.results:
            self.log.info("%s", result)
        if checked.check.freshness is not None:
            for part, age in checked.check.freshness.parts:
                self.log.info("%s: %s", part, roughly(age))
        for key in checked.check.evidence:
            self.log.info("evidence: %s", key)
        if checked.evidence_problem:
            self.log.warning("%s", checked.evidence_problem)


def counts_of(checked: Checked) -> dict[str, int | str]:
    """A check as numbers, and its verdict."""
    from millrace.domain.quality.results import Outcome

    found = checked.check
    count = {outcome: sum(result.outcome is outcome for result in found.results) for outcome in Outcome}
    return {
        "check": found.identity or 0,
        "verdict": found.verdict.value,
        "rows": found.rows or 0,
        "passed": count[Outcome.PASSED],
        "failed": sum(result.outcome is Outcome.FAILED for result in found.red),
        "warned": len(found.warned),
        "errors": count[Outcome.ERROR],
        "skipped": count[Outcome.SKIPPED],
    }


def _window(context: Context) -> tuple[datetime, datetime] | None:
    """The time that the form asks for; None: what was gained."""
    from millrace.domain.rewind.time_travel import WrongTimeError, parse_window

    params = context["params"]
    try:
        return parse_window(params.get("from") or None, params.get("to") or None, datetime.now(UTC))
    except WrongTimeError as error:
        raise AirflowFailException(str(error)) from error
